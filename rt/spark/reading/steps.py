"""Steps: finds and counts messages in a log from headers alone."""

from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from typing import NamedTuple

from rt.errors import CorruptLog, FrameError
from rt.format.frame import FrameKind
from rt.format.index import IndexEntry
from rt.position import Position
from rt.spark.reading.options import Selection
from rt.spark.reading.plan import LogView, headers

HasSession = Callable[[str], bool]
IsPast = Callable[[IndexEntry], bool]


class _Cut(NamedTuple):
    """The wanted messages: those from `start` up to `end`, of some sessions or of all."""

    start: Position
    end: Position
    has_session: HasSession | None = None


class Run(NamedTuple):
    """Messages of one frame, with consecutive positions and numbers; none is a repeat."""

    position: Position
    number: int
    messages: int
    # when they were merged; in a session, when the frame's first message was published
    time_ns: int

    @property
    def end(self) -> Position:
        """Return the position after the last message."""
        return Position(self.position + self.messages)

    @property
    def next_number(self) -> int:
        """Return the number after that of the last message."""
        return self.number + self.messages


def runs(
    view: LogView, start: Position, end: Position, has_session: HasSession | None = None
) -> Iterator[Run]:
    """Yield the messages between two positions, frame by frame.

    Args:
        view: what is known of the log.
        start: where to begin.
        end: where to stop, exclusive.
        has_session: whether messages of a session are wanted; None if all are.

    Raises:
        CorruptLog: a header is damaged.
    """
    cut = _Cut(start, end, has_session)
    for file, file_end in view.files():
        if start < file + file_end and file < end:
            yield from _runs(view, (file, file_end), _past(max(0, start - file)), cut)


def last_run(view: LogView, start: Position, end: Position) -> Run | None:
    """Return the last messages between two positions; raises `CorruptLog` as `runs`."""
    for file, file_end in reversed([*view.files()]):
        if start < file + file_end and file < end:
            # if the last indexed range is an event or has only repeats, start at the beginning
            for offset in (min(file_end, end - file) - 1, max(0, start - file)):
                found = [*_runs(view, (file, file_end), _past(offset), _Cut(start, end))]
                if found:
                    return found[-1]
    return None


def after_records(
    view: LogView, start: Position, count: int, end: Position, selection: Selection
) -> Position:
    """Return the position after the next `count` selected messages, or `end` if earlier.

    For all sessions together, messages are counted by number, so skipped numbers of a session count
    too. Counting ends at damage, which the task that reads it reports.
    """
    with suppress(CorruptLog):
        if selection.sessions is None or not view.log.merged:
            first = next(runs(view, start, end), None)
            return end if first is None else min(end, _place_of(view, first.number + count, end))
        for run in runs(view, start, end, selection.has_session):
            if count < run.messages:
                return Position(run.position + count)
            count -= run.messages
    return end


def after_bytes(view: LogView, start: Position, size: int, end: Position) -> Position:
    """Return the end of the next `size` bytes, at least one frame, or `end` if earlier."""
    for file, file_end in view.files():
        offset = max(0, start - file)
        if file + file_end <= start:
            continue
        if file_end - offset <= size:
            size -= file_end - offset
            continue
        return min(end, _boundary(view, max(start, file), offset + size, file_end))
    return end


def bytes_between(view: LogView, start: Position, end: Position) -> int:
    """Return how many bytes of the log are between two positions."""
    ends = ((file, file + file_end) for file, file_end in view.files())
    return sum(max(0, min(end, file_end) - max(start, file)) for file, file_end in ends)


def unread(view: LogView, start: Position, end: Position) -> tuple[int, int | None]:
    """Return how many messages there are from `start` to `end`, by number, and the first's time.

    The time is when it was merged; in a session, when its frame's first message was published. None
    if there is no message. Damaged frames are not counted.
    """
    with suppress(CorruptLog):
        first = next(runs(view, start, end), None)
        last = None if first is None else last_run(view, start, end)
        if first is not None and last is not None:
            return last.next_number - first.number, first.time_ns
    return 0, None


def _place_of(view: LogView, number: int, end: Position) -> Position:
    """Return the position of a message, or `end` if it is not there."""
    for file, file_end in view.files():
        rolled = view.log.manifest.rolled.get(file)
        if rolled is not None and rolled.next <= number:
            continue
        for run in _runs(view, (file, file_end), lambda e: e.number > number, _Cut(file, end)):
            if number < run.next_number:
                return Position(run.position + max(0, number - run.number))
    return end


def _boundary(view: LogView, start: Position, offset: int, end: int) -> Position:
    """Return the last frame boundary up to `offset`, but after `start`."""
    found = start
    with closing(view.log.open_file(start.file)) as file, suppress(FrameError):
        walk = view.walk_to(file, start.file, lambda entry: entry.offset > offset)
        found = walk.position
        for at, header in headers(file, walk, end):
            if found > start and at.offset + header.size > offset:
                break
            found = Position(at + header.size)
    return found if found > start else Position(start.file + end)


def _past(offset: int) -> IsPast:
    return lambda entry: entry.offset > offset


def _runs(view: LogView, place: tuple[Position, int], is_past: IsPast, cut: _Cut) -> Iterator[Run]:
    """Yield the wanted messages of one file, from the last indexed frame that is not past."""
    file, file_end = place
    passed = 0
    with closing(view.log.open_file(file)) as opened:
        walk = view.walk_to(opened, file, is_past)
        try:
            for at, header in headers(opened, walk, file_end):
                current = walk.range if view.log.merged else None
                if at >= cut.end:
                    return
                if header.kind == FrameKind.RANGE:
                    passed = 0
                    if current and cut.has_session and not cut.has_session(current.session):
                        walk.skip_range()
                    continue
                number, time_ns, repeats = header.sequence, header.time_ns, 0
                if current is not None:
                    number = current.number + max(0, passed - current.skip)
                    time_ns = current.time_ns
                    repeats = min(max(0, current.skip - passed), header.messages)
                    passed += header.messages
                first, last = max(repeats, cut.start - at), min(header.messages, cut.end - at)
                if header.kind == FrameKind.MESSAGES and first < last:
                    yield Run(Position(at + first), number + first - repeats, last - first, time_ns)
        except FrameError as error:
            path = view.log.file_path(walk.position.file)
            raise CorruptLog(path, walk.position, str(error)) from None
