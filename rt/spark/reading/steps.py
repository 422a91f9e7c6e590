"""Steps: finds and counts messages in a log from headers alone."""

from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import replace
from typing import Final

from rt.errors import CorruptLog, FrameError
from rt.format.index import IndexEntry
from rt.position import Position
from rt.spark.reading.options import Selection
from rt.spark.reading.pieces import Damage, Part, PartReader, Piece
from rt.spark.reading.plan import LogView, headers

IsPast = Callable[[IndexEntry], bool]
_ALL: Final = Selection()


def runs(
    view: LogView, start: Position, end: Position, selection: Selection = _ALL
) -> Iterator[Piece]:
    """Yield the selected messages between two positions, a piece for each frame, without bodies.

    Raises:
        CorruptLog: a header is damaged.
    """
    for file, file_end in view.files():
        if start < file + file_end and file < end:
            is_past = _past(max(0, start - file))
            yield from _runs(view, file_end, is_past, Part(file, 0, 0, start, end), selection)


def last_run(view: LogView, start: Position, end: Position) -> Piece | None:
    """Return the messages of the last frame between two positions; None if there are none.

    Raises `CorruptLog` if a header is damaged.
    """
    for file, file_end in reversed([*view.files()]):
        if start < file + file_end and file < end:
            # if the last indexed range is an event or has only repeats, start at the beginning
            for offset in (min(file_end, end - file) - 1, max(0, start - file)):
                found = [*_runs(view, file_end, _past(offset), Part(file, 0, 0, start, end))]
                if found:
                    return found[-1]
    return None


def after_records(
    view: LogView, start: Position, count: int, end: Position, selection: Selection
) -> Position:
    """Return the position after the next `count` selected messages, or `end` if that is earlier.

    If all sessions are selected, numbers are counted, including those that a session skipped. If a
    header is damaged, returns `end`; the task that reads the frame reports the damage.
    """
    with suppress(CorruptLog):
        if selection.sessions is None or not view.log.merged:
            first = next(runs(view, start, end), None)
            return end if first is None else min(end, _place_of(view, first.number + count, end))
        for run in runs(view, start, end, selection):
            if count < len(run):
                return Position(run.start + count)
            count -= len(run)
    return end


def after_bytes(view: LogView, start: Position, size: int, end: Position) -> Position:
    """Return the last frame boundary within `size` bytes after `start`, or `end` if that is less.

    If the first frame is larger, return the end of that frame.
    """
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
    """Return how many messages there are from `start` to `end`, and the first message's time in ns.

    The time is when the message was merged, or in a session when its frame's first message was
    published; None if there is no message. If a header is damaged, returns 0 and None.
    """
    with suppress(CorruptLog):
        first = next(runs(view, start, end), None)
        last = None if first is None else last_run(view, start, end)
        if first is not None and last is not None:
            return last.next_number - first.number, first.time_ns
    return 0, None


def _place_of(view: LogView, number: int, end: Position) -> Position:
    """Return the position of the message with this number, or `end` if it is not before `end`."""
    for file, file_end in view.files():
        rolled = view.log.manifest.rolled.get(file)
        if rolled is not None and rolled.next <= number:
            continue
        part = Part(file, 0, 0, file, end)
        for run in _runs(view, file_end, lambda entry: entry.number > number, part):
            if number < run.next_number:
                return Position(run.start + max(0, number - run.number))
    return end


def _boundary(view: LogView, start: Position, offset: int, end: int) -> Position:
    """Return a file's last frame boundary after `start` up to `offset`; if none, the next one."""
    found = start
    with closing(view.log.open_file(start.file)) as file, suppress(FrameError):
        walk = view.walk_to(file, start.file, _past(offset))
        found = walk.position
        for at, header in headers(file, walk, end):
            if found > start and at.offset + header.size > offset:
                break
            found = Position(at + header.size)
    return found if found > start else Position(start.file + end)


def _past(offset: int) -> IsPast:
    return lambda entry: entry.offset > offset


def _runs(
    view: LogView, end: int, is_past: IsPast, part: Part, selection: Selection = _ALL
) -> Iterator[Piece]:
    """Yield the wanted messages of a file up to offset `end`, a piece for each frame.

    It begins where `LogView.walk_to` begins. Raises `CorruptLog` if a header is damaged.
    """
    log = view.log
    with closing(log.open_file(part.file)) as file:
        part = replace(part, begin=view.walk_to(file, part.file, is_past).position.offset, end=end)
        for found in PartReader(file, part, log.merged, log.session, selection.has_session, None):
            if isinstance(found, Damage):
                raise CorruptLog(log.file_path(part.file), found.position, found.reason)
            yield found
