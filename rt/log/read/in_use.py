"""InUse: a resource that one thread uses and any thread may close."""

from collections.abc import Callable
from itertools import count


class InUse:
    """Lets any thread close a resource while another uses it; the release waits for that use.

    If a descriptor were closed during use, the using thread might next read another file that was
    given the same number.

    Threads:
        One thread at a time uses the resource, in `with` blocks, and changes `_depth`; any may call
        `stop` and `close`. `is_stopped` and `_is_closed` only ever become true. The using thread
        leaves and then looks whether the resource is closed; `close` closes it and then looks
        whether it is used. So at least one of them finds the release due; if both do, the first to
        take a number of `_releases` releases.

    Examples:
        >>> files = InUse(lambda: print("released"))
        >>> with files:
        ...     files.close()
        ...     print("still there")
        still there
        released
    """

    __slots__ = ("_depth", "_is_closed", "_release", "_releases", "is_stopped")

    def __init__(self, release: Callable[[], None]) -> None:
        """Prepare; `release` is called once, when the resource is closed and no longer in use."""
        self.is_stopped = False
        self._release = release
        self._releases = count()
        self._depth = 0
        self._is_closed = False

    def __enter__(self) -> None:
        self._depth += 1

    def __exit__(self, *_error: object) -> None:
        self._depth -= 1
        self._release_if_due()

    def stop(self) -> None:
        """Ask the thread that uses the resource to stop; safe in a signal handler."""
        self.is_stopped = True

    def close(self) -> None:
        """Stop, and release now or when the using thread is done. Idempotent."""
        self.is_stopped = self._is_closed = True
        self._release_if_due()

    def _release_if_due(self) -> None:
        if self._is_closed and not self._depth and not next(self._releases):
            self._release()
