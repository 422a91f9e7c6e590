"""Steps: how far a micro-batch may go, in messages or in bytes, found by headers alone."""

from collections.abc import Iterator
from typing import NamedTuple

from rt.errors import FrameError
from rt.format.frame import FrameKind
from rt.format.walk import Walk
from rt.log.disk import File
from rt.position import Position
from rt.spark.plan import LogView, headers


class _Step(NamedTuple):
    """A frame of messages: message `first` has the number `number`, those before are repeats."""

    position: Position
    messages: int
    first: int
    number: int


def after_messages(view: LogView, start: Position, count: int, end: Position) -> Position:
    """Return where the messages from `start` on number `count`, or `end` if that comes first.

    Counted by their numbers: where a session's numbers jump, the jump counts too.
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
    """Return where `size` bytes of frames from `start` on end, at least one frame, or `end`."""
    for file, file_end in view.files():
        offset = max(0, start - file)
        if file + file_end <= start:
            continue
        if file_end - offset <= size:
            size -= file_end - offset
            continue
        return min(end, _boundary(view, max(start, file), offset + size, file_end))
    return end


def place_of_number(view: LogView, number: int) -> Position:
    """Return the position of the first message whose number is `number` or higher."""
    for file, file_end in view.files():
        rolled = view.log.manifest.rolled.get(file)
        if rolled is None or rolled.next > number:
            return _place_of(view, file, file_end, number)
    return view.end()


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
    """The last place between frames up to `offset`, but one behind `start`."""
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


def _steps(view: LogView, file: File, walk: Walk, end: int) -> Iterator[_Step]:
    passed = 0
    try:
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
                yield _Step(at, header.messages, repeats, number)
    except FrameError:
        return  # the task that reads it says what is wrong
