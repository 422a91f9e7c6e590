"""InUse: a resource that one thread uses and any thread may close."""

import threading
from collections.abc import Callable


class InUse:
    """Lets any thread close a resource while another uses it; the release waits for that use.

    If a descriptor were closed during use, the using thread might next read another file that was
    given the same number.

    Threads:
        One thread at a time uses the resource, in a `with` block; any may call `stop` and `close`.
        `is_stopped` only ever becomes true, and any may read it. `_lock` guards the rest;
        `_release` is called without it, and only once.

    Examples:
        >>> files = InUse(lambda: print("released"))
        >>> with files:
        ...     files.close()
        ...     print("still there")
        still there
        released
    """

    __slots__ = ("_depth", "_is_closed", "_is_released", "_lock", "_release", "is_stopped")

    def __init__(self, release: Callable[[], None]) -> None:
        """Prepare; `release` is called once, when the resource is closed and no longer in use."""
        self.is_stopped = False
        self._release = release
        self._lock = threading.Lock()
        self._depth = 0
        self._is_closed = False
        self._is_released = False

    def __enter__(self) -> None:
        with self._lock:
            self._depth += 1

    def __exit__(self, *_error: object) -> None:
        with self._lock:
            self._depth -= 1
            is_due = self._is_due()
        if is_due:
            self._release()

    def stop(self) -> None:
        """Ask the thread that uses the resource to stop; safe in a signal handler."""
        self.is_stopped = True

    def close(self) -> None:
        """Stop, and release now or when the using thread is done. Idempotent."""
        self.is_stopped = True
        with self._lock:
            self._is_closed = True
            is_due = self._is_due()
        if is_due:
            self._release()

    def _is_due(self) -> bool:
        """Whether to release the resource now; True only once. The caller holds the lock."""
        is_due = self._is_closed and not (self._depth or self._is_released)
        self._is_released = self._is_released or is_due
        return is_due
