"""Steps: how far a micro-batch may go, in messages or in bytes, found from headers alone."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

from rt.errors import FrameError
from rt.format.frame import FrameKind
from rt.format.walk import Walk
from rt.log.files.disk import File
from rt.position import Position
from rt.spark.options import Selection
from rt.spark.plan import LogView, headers


class Step(NamedTuple):
    """A frame of messages: message `first` has number `number`, the earlier ones are repeats."""

    position: Position
    messages: int
    first: int
    number: int
    time_ns: int  # when it was merged; in a session, when its first message was published


def after_records(
    view: LogView, start: Position, count: int, end: Position, selection: Selection
) -> Position:
    """Return the position after the next `count` selected messages, or `end` if earlier."""
    if selection.sessions is None or not view.log.merged:
        return after_messages(view, start, count, end)
    return after_selected(view, start, count, end, selection.has_session)


def after_selected(
    view: LogView, start: Position, count: int, end: Position, has_session: Callable[[str], bool]
) -> Position:
    """Return the position after the next `count` messages of some sessions, or `end` if earlier.

    Reads the range headers from `start` on, since numbers count the messages of all sessions.
    """
    for file, file_end in view.files():
        if file + file_end <= start:
            continue
        opened = view.log.open_file(file)
        try:
            walk = _walk_from(view, opened, file, start)
            for step, session in _steps_of(view, opened, walk, file_end):
                first = max(step.first, start - step.position)
                if step.position >= end or not has_session(session) or first >= step.messages:
                    continue
                if count < step.messages - first:
                    return min(end, Position(step.position + first + count))
                count -= step.messages - first
        finally:
            opened.close()
    return end


def _walk_from(view: LogView, file: File, first: Position, start: Position) -> Walk:
    offset = max(0, start - first)
    return view.walk_to(file, first, lambda entry: entry.offset > offset)


def after_messages(view: LogView, start: Position, count: int, end: Position) -> Position:
    """Return the position after the next `count` messages, or `end` if that is earlier.

    They are counted by number: where the numbers of a session jump, the jump counts too.
    """
    wanted: int | None = None
    for file, file_end in view.files():
        if file + file_end <= start:
            continue
        if wanted is None:
            first = _number_at(view, max(start, file), file_end)
            if first is None:
                continue
            wanted = first + count
        rolled = view.log.manifest.rolled.get(file)
        if rolled is None or rolled.next > wanted:
            return min(end, _place_of(view, file, file_end, wanted))
    return end


def after_bytes(view: LogView, start: Position, size: int, end: Position) -> Position:
    """Return the end of the next `size` bytes, at least one frame, or `end` if that is earlier."""
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
    """The bytes of the log between two positions."""
    total = 0
    for file, file_end in view.files():
        total += max(0, min(end, file + file_end) - max(start, file))
    return total


def unread(view: LogView, start: Position, end: Position) -> tuple[int, int | None]:
    """How many messages there are from `start` to `end`, and the time of the first; or 0, None.

    They are counted by number. The time is when the first was merged; in a session, when the first
    of its frame was published.
    """
    first: Step | None = None
    after = 0
    for file, file_end in view.files():
        if file + file_end <= start or file >= end:
            continue
        opened = view.log.open_file(file)
        try:
            if first is None:
                first = _first_from(view, opened, max(start, file), file_end)
            number = _number_after(view, opened, file, file_end)
            after = after if number is None else number
        finally:
            opened.close()
    if first is None:
        return 0, None
    skipped = max(0, start - first.position - first.first)
    return max(0, after - first.number - skipped), first.time_ns


def _number_after(view: LogView, file: File, start: Position, end: int) -> int | None:
    """The number of the message that follows a file's; None if it does not say."""
    walk = view.walk_to(file, start, lambda entry: entry.offset >= end)
    last = max(_steps(view, file, walk, end), default=None)
    if last is not None:
        return last.number + last.messages - last.first
    return None if walk.range is None else walk.range.number  # of an event, which adds none


def _first_from(view: LogView, file: File, start: Position, end: int) -> Step | None:
    """The first frame that has messages from `start` on, which are no repeats."""
    walk = view.walk_to(file, start.file, lambda entry: entry.offset > start.offset)
    for step in _steps(view, file, walk, end):
        if max(step.first, start - step.position) < step.messages:
            return step
    return None


def _number_at(view: LogView, position: Position, end: int) -> int | None:
    """The number of the first message of this file from `position` on."""
    file = view.log.open_file(position.file)
    try:
        walk = view.walk_to(file, position.file, lambda entry: entry.offset > position.offset)
        for step in _steps(view, file, walk, end):
            index = max(step.first, position - step.position)
            if index < step.messages:
                return step.number + index - step.first
    finally:
        file.close()
    return None


def _place_of(view: LogView, start: Position, end: int, number: int) -> Position:
    """The position of a message, or of the end of the file if it is not in there."""
    file = view.log.open_file(start)
    try:
        walk = view.walk_to(file, start, lambda entry: entry.number > number)
        for step in _steps(view, file, walk, end):
            if number < step.number + step.messages - step.first:
                return Position(step.position + step.first + max(0, number - step.number))
    finally:
        file.close()
    return Position(start + end)


def _boundary(view: LogView, start: Position, offset: int, end: int) -> Position:
    """The last boundary of frames up to `offset`, but one after `start`."""
    file = view.log.open_file(start.file)
    try:
        walk = view.walk_to(file, start.file, lambda entry: entry.offset > offset)
        found = walk.position
        for at, header in headers(file, walk, end):
            if found > start and at.offset + header.size > offset:
                break
            found = Position(at + header.size)
    except FrameError:
        found = start  # the task that reads it says what is wrong
    finally:
        file.close()
    return found if found > start else Position(start.file + end)


def _steps(view: LogView, file: File, walk: Walk, end: int) -> Iterator[Step]:
    return (step for step, _ in _steps_of(view, file, walk, end))


def _steps_of(view: LogView, file: File, walk: Walk, end: int) -> Iterator[tuple[Step, str]]:
    """The frames of messages from `walk` on up to one that is damaged, each with its session."""
    try:
        yield from message_frames(view, file, walk, end)
    except FrameError:
        return  # the task that reads it says what is wrong


def message_frames(view: LogView, file: File, walk: Walk, end: int) -> Iterator[tuple[Step, str]]:
    """The frames of messages from `walk` on, with the session of each; `FrameError` if damaged."""
    passed = 0
    for at, header in headers(file, walk, end):
        current = walk.range
        if header.kind == FrameKind.RANGE:
            passed = 0
            continue
        number, repeats = header.sequence, 0
        if view.log.merged and current is not None:
            number = current.number + max(0, passed - current.skip)
            repeats = min(max(0, current.skip - passed), header.messages)
            passed += header.messages
        if header.kind == FrameKind.MESSAGES:
            session = current.session if current is not None else view.log.session
            time_ns = header.time_ns if current is None else current.time_ns
            yield Step(at, header.messages, repeats, number, time_ns), session
