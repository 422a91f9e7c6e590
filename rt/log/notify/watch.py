"""Watch: waits until directories may have changed; callers then read what changed from disk."""

import os
import select
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Self

from inotify_simple import INotify, flags, parse_events

from rt.errors import Misuse
from rt.log.notify.event_file import EventFile

MODES: Final = ("auto", "inotify", "poll")
# The longest wait, even with inotify: events may be lost, and network file systems send none.
POLL_S: Final = 0.25
# Without inotify: 200 checks a second for each waiter, about 1 % of a core.
_POLL_ONLY_S: Final = 0.005
_EVENTS_BYTES: Final = 64 * 1024
_EVENT_BYTES_MAX: Final = 16 + 256  # of an event with the longest possible name
_MASK: Final = flags.MODIFY | flags.CREATE | flags.MOVED_TO


@dataclass(frozen=True, slots=True)
class Changes:
    """The directories that may have changed.

    Attributes:
        directories: directories in which a file or directory was created or changed.
        rescan: whether events were lost, so that any directory may have changed.
        made: paths of directories that were created in a watched directory, or moved into it.
    """

    directories: frozenset[str] = frozenset()
    rescan: bool = False
    made: frozenset[str] = frozenset()


class Wake:
    """Lets another thread end a wait, with a descriptor that can be polled together with sockets.

    Threads:
        Any thread or signal handler may call `set`, even while the owner calls `close`. The waiting
        thread calls everything else. `_is_set` is set before the descriptor is written, and cleared
        after the descriptor was read. While `_is_set` is set, a wait that begins ends immediately.
    """

    __slots__ = ("_event", "_is_set", "_poller")

    def __init__(self) -> None:
        self._is_set = False
        self._event: EventFile | None = EventFile()
        self._poller = select.poll()
        self._poller.register(self._event.fd, select.POLLIN)

    def fileno(self) -> int:
        """The descriptor to poll for reading; -1 once it is closed."""
        return -1 if self._event is None else self._event.fd

    def set(self) -> None:
        """End the current wait, or the next one; does nothing after `close`.

        Many calls before the thread waits again cost only one system call.
        """
        event = self._event  # read once: it stays open until it is written
        if not self._is_set and event is not None:
            self._is_set = True
            os.eventfd_write(event.fd, 1)

    def clear(self) -> None:
        """Cancel every `set` so far."""
        try:
            with suppress(BlockingIOError):
                os.eventfd_read(self.fileno())
        finally:  # even if a signal handler raises: otherwise `set` would never write again
            self._is_set = False

    def wait(self, timeout_s: float) -> None:
        """Wait until `set` is called, or was called since the last `clear`; then clear it."""
        if self._poller.poll(max(0, int(timeout_s * 1000 + 0.999))):
            self.clear()

    def close(self) -> None:
        """Close the descriptor."""
        self._event = None
        self._poller = select.poll()  # empty: the number may soon be another file's


class Watch:
    """Watches many directories with one inotify instance, or by polling."""

    def __init__(
        self,
        mode: str = "auto",
        ignored: Collection[str] = (),
        inotify: Callable[..., INotify] = INotify,
    ) -> None:
        """Open the watch.

        Args:
            mode: `inotify` fails if it is not available, `poll` never tries it, `auto` falls back.
            ignored: names of files whose changes do not matter.
            inotify: called to open an inotify instance.

        Raises:
            Misuse: there is no such mode.
            OSError: no inotify instance is left (fs.inotify.max_user_instances), in mode `inotify`.
        """
        if mode not in MODES:
            raise Misuse(f"watch mode {mode!r}; use one of {', '.join(MODES)}")
        self._inotify: INotify | None = None
        self._directories: dict[int, str] = {}
        self._ignored = frozenset(ignored)
        self._missing: set[str] = set()  # do not exist yet, or no watch was left for them
        if mode != "poll":
            try:
                self._inotify = inotify(nonblocking=True)
            except OSError:
                if mode == "inotify":
                    raise

    @property
    def polls(self) -> bool:
        """Whether some changes cause no event and must be found by polling."""
        return self._inotify is None or bool(self._missing)

    def fileno(self) -> int:
        """The descriptor to poll for reading; -1 without inotify."""
        return -1 if self._inotify is None else self._inotify.fileno()

    def add(self, directory: str) -> None:
        """Watch a directory from now on; it need not exist yet."""
        self._missing.add(directory)
        self._add_missing()

    def remove(self, directory: str) -> None:
        """Stop watching a directory; does nothing if it was not watched."""
        self._missing.discard(directory)
        for descriptor in [each for each, path in self._directories.items() if path == directory]:
            del self._directories[descriptor]  # first, because the kernel confirms with an event
            with suppress(OSError):  # the directory was deleted
                if self._inotify is not None:
                    self._inotify.rm_watch(descriptor)

    def wait(self, timeout_s: float, *others: Wake) -> Changes:
        """Wait until something may have changed, one of `others` is set, or the time is up."""
        if self.polls:
            timeout_s = min(timeout_s, _POLL_ONLY_S)
        poller = select.poll()
        if self._inotify is not None:
            poller.register(self._inotify.fileno(), select.POLLIN)
        for other in others:
            poller.register(other.fileno(), select.POLLIN)
        ready = dict(poller.poll(max(0, int(min(timeout_s, POLL_S) * 1000 + 0.999))))
        for other in others:
            if other.fileno() in ready:
                other.clear()
        return self.changes()

    def changes(self) -> Changes:
        """Return what changed since the last call, without waiting."""
        self._add_missing()
        if self._inotify is None:
            return Changes(rescan=True)
        changed: set[str] = set()
        made: set[str] = set()
        rescan = False
        for event in parse_events(_waiting_events(self._inotify.fileno())):
            if event.mask & flags.Q_OVERFLOW:
                rescan = True
            elif event.mask & flags.IGNORED:
                self._forget(event.wd)
            elif event.wd in self._directories and event.name not in self._ignored:
                directory = self._directories[event.wd]
                changed.add(directory)
                if event.mask & flags.ISDIR:
                    made.add(os.path.join(directory, event.name))
        return Changes(frozenset(changed), rescan, frozenset(made))

    def close(self) -> None:
        """Close the inotify instance."""
        if self._inotify is not None:
            self._inotify.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def __del__(self) -> None:
        # Otherwise the inotify instance's own finalizer would warn of an unclosed file.
        if getattr(self, "_inotify", None) is not None:
            self.close()

    def _forget(self, descriptor: int) -> None:
        directory = self._directories.pop(descriptor, None)
        if directory is not None:
            self._missing.add(directory)

    def _add_missing(self) -> None:
        if self._inotify is None:
            return
        for directory in list(self._missing):
            try:
                self._directories[self._inotify.add_watch(directory, _MASK)] = directory
            except OSError:
                continue  # missing, or over max_user_watches: polling finds its changes
            self._missing.discard(directory)


def _waiting_events(fd: int) -> bytes:
    """Read all waiting events, in one call if they are few."""
    parts: list[bytes] = []
    with suppress(BlockingIOError):
        while not parts or len(parts[-1]) > _EVENTS_BYTES - _EVENT_BYTES_MAX:
            parts.append(os.read(fd, _EVENTS_BYTES))
    return b"".join(parts)


def directories_in(path: str) -> Iterable[str]:
    """Return the names of the directories in `path`; none if it does not exist."""
    try:
        with os.scandir(path) as entries:
            return [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
    except FileNotFoundError:
        return []
