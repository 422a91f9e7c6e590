"""Local news: tells the readers of a log, in its writer's own process, that it has grown."""

import os
import threading
from typing import Final, NamedTuple, Protocol
from weakref import WeakMethod

from rt.position import Position


class NewsPlace(NamedTuple):
    """Which log: the real path of its stream's directory, and its name in there."""

    stream: str
    name: str


class WrittenFrame(NamedTuple):
    """A small frame as it is in its file now, so that a reader in the process need not read it.

    Attributes:
        log: the id of its log.
        position: where it begins.
        data: all of it.
        messages: how many are in it.
        frames: how many these are, if several that follow each other were put together.
    """

    log: str
    position: Position
    data: bytes
    messages: int
    frames: int = 1

    @property
    def end(self) -> Position:
        """Where it ends, and its file too when it was written."""
        return Position(self.position + len(self.data))


class News(NamedTuple):
    """How a log has grown, or that its writer in this process was opened or closed.

    Attributes:
        alone: whether it grew by a message after a pause; otherwise more may follow at once, and
            the writer holds a lock that other threads wait for.
        end: up to where its active file holds whole frames now, if the writer says so.
        frame: what it grew by, if that is a single small frame.
    """

    alone: bool = False
    end: Position | None = None
    frame: WrittenFrame | None = None


_NEWS: Final = News()


class Heard(Protocol):
    """A bound method that news of a stream's logs are brought to."""

    def __call__(self, name: str, news: News, /) -> None:
        """Take news of the log of this name in the stream's directory.

        It is called by the writer's thread, so it must neither wait nor raise.
        """


def place_of(directory: str) -> NewsPlace:
    """Return the place of a log's directory, which need not exist."""
    parent, name = os.path.split(os.path.abspath(directory))
    return NewsPlace(os.path.realpath(parent), name)


class LocalNews:
    """The logs that this process writes, and who in it reads them.

    Being woken by the file system costs a lone message a thread's wake-up, a read and some forty
    calls; within a process a call will do. It only wakes: what grew is read from the disk, and
    listeners also poll, in case a writer announces nothing.

    Threads: any thread may call everything. `_lock` guards changes of the two dictionaries; their
    values are replaced whole and read without it.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._readers: dict[str, tuple[WeakMethod[Heard], ...]] = {}  # by directory of the stream
        self._writers: dict[NewsPlace, int] = {}

    def listen(self, stream: str, heard: Heard) -> None:
        """Bring news of all logs of a stream to a bound method, for as long as its owner lives."""
        with self._lock:
            there = [each for each in self._readers.get(stream, ()) if each() is not None]
            self._readers[stream] = (*there, WeakMethod(heard))

    def ignore(self, stream: str, heard: Heard) -> None:
        """Bring no more news to it; idempotent."""
        with self._lock:
            there = self._readers.get(stream, ())
            left = tuple(each for each in there if each() not in {None, heard})
            if left:
                self._readers[stream] = left
            else:
                self._readers.pop(stream, None)

    def is_written(self, place: NewsPlace) -> bool:
        """Whether a writer in this process announces this log, so that no watch is needed."""
        return place in self._writers

    def began(self, place: NewsPlace) -> None:
        """Record a writer; it announces from now on."""
        with self._lock:
            self._writers[place] = self._writers.get(place, 0) + 1
        self.grown(place)

    def ended(self, place: NewsPlace) -> None:
        """Record that a writer has ended."""
        with self._lock:
            left = self._writers.get(place, 0) - 1
            if left > 0:
                self._writers[place] = left
            else:
                self._writers.pop(place, None)
        self.grown(place)

    def grown(self, place: NewsPlace, news: News = _NEWS) -> None:
        """Announce that a log has grown."""
        for each in self._readers.get(place.stream, ()):
            heard = each()
            if heard is not None:
                heard(place.name, news)

    def forget(self) -> None:
        """In a forked child: its copies of writers and readers are not used."""
        self._lock = threading.Lock()
        self._readers, self._writers = {}, {}


local_news: Final = LocalNews()
os.register_at_fork(after_in_child=local_news.forget)


class Announcer:
    """A writer's side of the local news, from its opening to its close.

    Threads: `grown` may be called by any thread; the owner calls `close`.
    """

    __slots__ = ("_is_open", "_place")

    def __init__(self, directory: str) -> None:
        """Announce the log in `directory` from now on."""
        self._place = place_of(directory)
        self._is_open = True
        local_news.began(self._place)

    def grown(self, news: News = _NEWS) -> None:
        """Announce that the log has grown."""
        local_news.grown(self._place, news)

    def grown_alone(self, frame: WrittenFrame | None) -> None:
        """Announce a message after a pause, or what else is in its frame; None if that is large."""
        self.grown(News(True, None if frame is None else frame.end, frame))

    def close(self) -> None:
        """Announce nothing more; idempotent."""
        if self._is_open:
            self._is_open = False
            local_news.ended(self._place)
