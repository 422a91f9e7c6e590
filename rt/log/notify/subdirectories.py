"""Subdirectories: lists a directory's subdirectories; lists them again only after a change."""

import os
import time
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from rt.log.notify.watch import directories_in

# File system clocks tick every few milliseconds, some only every two seconds: a second change
# within one tick leaves the time as it was.
_SURE_S: Final = 2.5
# Some file systems never update a directory's times, and tools may reset them: list again after
# this.
_TRUSTED_S: Final = 10.0


class _Listing(NamedTuple):
    """One listing of the directory.

    Attributes:
        status: device, inode and change times of the directory, read before its entries.
        since_s: when this status was first seen.
        listed_s: when the directory was listed.
        names: the subdirectories that pass the filter.
    """

    status: tuple[int, int, int, int]
    since_s: float
    listed_s: float
    names: Sequence[str]


_NOTHING: Final = _Listing((0, 0, 0, 0), 0.0, 0.0, ())


class Subdirectories:
    """The subdirectories of a directory, filtered by name.

    Threads: any thread may call any method; `_last` is replaced as a whole.
    """

    def __init__(
        self, path: str, counts: Callable[[str], bool], clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Prepare; the directory is not listed before the first call of `names`.

        Args:
            path: The directory, which need not exist.
            counts: Returns whether a name passes the filter; the answer for a name never changes.
            clock: A monotonic clock, in seconds.
        """
        self._path = path
        self._counts, self._clock = counts, clock
        self._last = _NOTHING

    def names(self) -> Sequence[str]:
        """Return the subdirectories' names; one system call if nothing has changed for a while."""
        try:
            found = os.stat(self._path)
        except FileNotFoundError:
            return ()
        now_s, last = self._clock(), self._last
        status = (found.st_dev, found.st_ino, found.st_mtime_ns, found.st_ctime_ns)
        is_same = status == last.status
        is_sure = last.listed_s - last.since_s >= _SURE_S and now_s - last.listed_s < _TRUSTED_S
        if is_same and is_sure:
            return last.names
        since_s = last.since_s if is_same else now_s
        names = tuple(each for each in directories_in(self._path) if self._counts(each))
        self._last = _Listing(status, since_s, now_s, names)
        return names
