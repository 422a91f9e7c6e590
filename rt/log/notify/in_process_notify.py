"""InProcessNotify: tells readers in the writer's own process that a log has grown."""

import os
from collections.abc import Callable
from typing import Final, NamedTuple
from weakref import WeakMethod

from rt.position import Position


class NewsPlace(NamedTuple):
    """Identifies a log: the real path of its stream's directory, and its name there."""

    stream: str
    name: str


class WrittenFrame(NamedTuple):
    """A small frame that was just written, so that readers in the process need not read the file.

    Attributes:
        log: the id of the log.
        position: where the frame begins.
        data: the whole frame.
        messages: number of messages in it.
        frames: number of frames, if several consecutive ones were joined.
    """

    log: str
    position: Position
    data: bytes
    messages: int
    frames: int = 1

    @property
    def end(self) -> Position:
        """The end of the frame; when the frame was written, this was also the end of the file."""
        return Position(self.position + len(self.data))


class News(NamedTuple):
    """A change of a log: it has grown, or its writer in this process was opened or closed.

    Attributes:
        alone: whether the log grew by a single message after a pause. If not, more messages may
            follow immediately, and the writer holds a lock that other threads wait for.
        end: where the whole frames of the log's active file now end; None if not reported.
        frame: the frame that was appended; None if it is large, or not the only one.
    """

    alone: bool = False
    end: Position | None = None
    frame: WrittenFrame | None = None


_NEWS: Final = News()
# Called in the writer's thread with a log's name and its news; must neither wait nor raise.
Heard = Callable[[str, News], None]
_NOBODY: Final[dict[int, WeakMethod[Heard]]] = {}


def place_of(directory: str) -> NewsPlace:
    """Return the key under which a log is known; its directory need not exist."""
    parent, name = os.path.split(os.path.abspath(directory))
    return NewsPlace(os.path.realpath(parent), name)


class InProcessNotify:
    """The logs that this process writes, and their readers in the same process.

    Through the file system, each notification would cost a thread wake-up, a read and some forty
    system calls; in one process it is a function call. A notification is only a wake-up: readers
    read the log from disk, and also poll, in case a writer announces nothing.

    Threads: any thread may call everything. Each reader has an entry of its own, and each log one
    for its last writer; single operations of a dictionary add and remove them, and loops go over
    copies. A stream's dictionary stays when it is empty, since another thread may be adding to it.
    """

    def __init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        # by the path of the stream's directory, and by id
        self._readers: dict[str, dict[int, WeakMethod[Heard]]] = {}
        self._writers: dict[NewsPlace, object] = {}  # the last one of each log

    def listen(self, stream: str, heard: Heard) -> None:
        """Call a bound method at each change of a stream's logs, as long as its object lives."""
        self.ignore(stream, None)
        reader = WeakMethod(heard)
        self._readers.setdefault(stream, {})[id(reader)] = reader

    def ignore(self, stream: str, heard: Heard | None) -> None:
        """Stop calling a bound method given to `listen`, and those that are gone; idempotent."""
        readers = self._readers.get(stream, {})
        for number, each in readers.copy().items():
            if each() in {None, heard}:
                readers.pop(number, None)

    def is_written(self, place: NewsPlace) -> bool:
        """Whether a writer in this process announces this log, so that no file watch is needed."""
        return place in self._writers

    def began(self, place: NewsPlace, writer: object) -> None:
        """Record that a writer has opened a log, and will announce each change of it."""
        self._writers[place] = writer
        self.grown(place)

    def ended(self, place: NewsPlace, writer: object) -> None:
        """Record that a writer has closed a log, unless another one has opened it since."""
        last = self._writers.pop(place, writer)
        if last is not writer:
            self._writers.setdefault(place, last)
        self.grown(place)

    def grown(self, place: NewsPlace, news: News = _NEWS) -> None:
        """Notify readers that a log has grown."""
        for each in [*self._readers.get(place.stream, _NOBODY).values()]:
            heard = each()
            if heard is not None:
                heard(place.name, news)

    def forget(self) -> None:
        """In a forked child: forget the parent's writers and readers."""
        self._begin()


in_process_notify: Final = InProcessNotify()
os.register_at_fork(after_in_child=in_process_notify.forget)


class Announcer:
    """Announces a writer's changes of one log to readers in the same process, until `close`.

    Threads: `grown` may be called by any thread; the owner calls `close`.
    """

    __slots__ = ("_is_open", "_place")

    def __init__(self, directory: str) -> None:
        """Record that this process writes the log in `directory`, and announces its changes."""
        self._place = place_of(directory)
        self._is_open = True
        in_process_notify.began(self._place, self)

    def grown(self, news: News = _NEWS) -> None:
        """Announce that the log has grown."""
        in_process_notify.grown(self._place, news)

    def grown_alone(self, frame: WrittenFrame | None) -> None:
        """Announce that the log has grown by one frame, written after a pause (`News.alone`).

        Args:
            frame: the frame; None if it is too large to pass on, so that readers read the file.
        """
        self.grown(News(True, None if frame is None else frame.end, frame))

    def close(self) -> None:
        """Stop announcing; idempotent."""
        if self._is_open:
            self._is_open = False
            in_process_notify.ended(self._place, self)
