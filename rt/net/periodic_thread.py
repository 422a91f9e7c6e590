"""PeriodicThread: a thread that calls a function repeatedly."""

import threading
from collections.abc import Callable


class PeriodicThread:
    """Calls a function repeatedly until stopped; each call returns the seconds until the next.

    It is used for work that waits for peers or disks where there is no event loop.

    Threads: any may call `wake`; the owner calls `start` and `stop`. `is_stopping` is set once,
        before the event `_woken`; any thread may read it.
    """

    def __init__(self, name: str, turn: Callable[[], float | None]) -> None:
        """Prepare; nothing is called before `start`.

        `turn` returns the seconds until it is called again, or None to rest until `wake`.
        """
        self.is_stopping = False
        self._turn = turn
        self._woken = threading.Event()
        self._first_s = 0.0
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self, after_s: float = 0.0) -> None:
        """Start the thread; the first call comes after `after_s` seconds."""
        self._first_s = after_s
        self._thread.start()

    def wake(self) -> None:
        """Call the function now; if a call is under way, call it once more after that."""
        self._woken.set()

    def stop(self, wait_s: float | None = None) -> None:
        """Stop calling the function; wait at most `wait_s` for a call under way. Idempotent."""
        self.is_stopping = True
        self._woken.set()
        if self._thread.is_alive():
            self._thread.join(wait_s)

    def _run(self) -> None:
        rest_s: float | None = self._first_s
        while True:
            self._woken.wait(rest_s)
            self._woken.clear()
            if self.is_stopping:
                return
            rest_s = self._turn()
