"""WaitNotes: reports on stderr which nodes a short command waits for."""

import threading
from collections.abc import Callable
from typing import Final, Self

from rt.cli.common.console import note
from rt.net.awaited import awaited

_LONG_S: Final = 1.0  # together with its start-up, the command reports within two seconds
_LOOK_S: Final = 0.25


class WaitNotes:
    """While open, reports on stderr which nodes this process has waited for longer than `long_s`.

    It is for short commands. A long-running program asks nodes all the time, and has reports of its
    own for nodes that it cannot reach.

    Threads: its own thread polls and prints; `_over` ends that thread.
    """

    def __init__(
        self, say: Callable[[str], None] = note, *, long_s: float = _LONG_S, poll_s: float = _LOOK_S
    ) -> None:
        """Prepare the thread; entering the context starts it.

        Args:
            say: Prints a report.
            long_s: Seconds after which a wait is reported.
            poll_s: Seconds between two checks of the waits.
        """
        self._say, self._long_s, self._poll_s = say, long_s, poll_s
        self._over = threading.Event()
        self._looking = threading.Thread(target=self._look, name="wait notes", daemon=True)

    def __enter__(self) -> Self:
        self._looking.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._over.set()
        self._looking.join()

    def _look(self) -> None:
        said: list[str] = []
        while not self._over.wait(self._poll_s):
            names = awaited(self._long_s)
            if names and names != said:
                self._say(f"waiting for an answer from {', '.join(names)}")
            said = names or said
