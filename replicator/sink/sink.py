"""Sink: decides what to do with the messages that a source sends about one log."""

from enum import Enum, auto
from typing import Final, NamedTuple

from rt.errors import FrameError, Refused
from rt.format.checksum import crc32
from rt.format.frame import HEADER_BYTES, FrameKind, Header, parse_header
from rt.format.manifest import Manifest, Rolled
from rt.format.walk import Walk
from rt.position import Position

# A publisher killed between opening a file and writing its first frame leaves an empty file. This
# many in a row are no accident, and each of them costs the sink two files and two syncs.
EMPTY_FILES_MAX: Final = 64
_MESSAGES: Final = int(FrameKind.MESSAGES)  # looking up a member takes 0.1 us


class Do(Enum):
    """Do: what the sink does with a message."""

    NOTHING = auto()  # already known
    APPEND = auto()
    BEGIN = auto()  # begin a file, and append to it
    COMPARE = auto()  # compare with the bytes here, and append any further ones
    ROLL = auto()
    BEGIN_AND_ROLL = auto()  # record a file without a frame
    SKIP = auto()  # skip a file that was archived before all of it came


class SinkEnd(NamedTuple):
    """SinkEnd: where the sink's log ends."""

    end: Position
    is_open: bool  # whether its last file still accepts frames


def place_data(position: Position, ours: SinkEnd) -> Do:
    """Return what to do with frames for `position`.

    Raises:
        Refused: this log has ended the file, or lacks bytes before `position`; or `position` is in
            the last possible run, which is never used.

    >>> place_data(Position(64), SinkEnd(Position(64), is_open=True)).name
    'APPEND'
    """
    if position == ours.end and ours.is_open:
        return Do.APPEND
    if position < ours.end:
        return Do.COMPARE
    if not ours.is_open and not position.offset:
        _demand_more_runs(position)
        return Do.BEGIN
    if not ours.is_open and position.file == ours.end.file:
        words = f"frames came for {position}, and that file has ended here at {ours.end}"
        raise Refused("diverged", f"{words}; both are kept")
    raise Refused("protocol", f"frames came for {position}, and this log ends at {ours.end}")


def place_rolled(line: Rolled, ours: SinkEnd, known: Rolled | None) -> Do:
    """Return what to do when a file has ended at the source.

    Raises:
        Refused: in this log, the file ends at another position, or holds other messages.
    """
    if known is not None:
        if known.describes(line):
            return Do.NOTHING
        raise _diverged(line, Position(known.file + known.end))
    if ours.is_open and ours.end.file == line.file and ours.end.offset == line.end:
        return Do.ROLL
    if not ours.is_open and not line.end and line.file >= ours.end:
        _demand_more_runs(line.file)
        return Do.BEGIN_AND_ROLL
    raise _diverged(line, ours.end)


def place_archived(line: Rolled, ours: SinkEnd, known: Rolled | None) -> Do:
    """Return what to do before this log archives a file that the source has archived.

    Raises:
        Refused: in this log, the file ends at another position, or files before it are missing.
    """
    if known is not None and known.describes(line):
        return Do.NOTHING
    _demand_more_runs(line.file)
    if known is None and ours.is_open and ours.end == line.file + line.end:
        return Do.ROLL  # all of it is here, and may still be needed
    if known is None and ours.end.file == line.file and ours.end.offset <= line.end:
        return Do.SKIP
    if known is None and not ours.is_open and ours.end <= line.file:
        return Do.SKIP
    raise _diverged(line, ours.end if known is None else Position(known.file + known.end))


def _demand_more_runs(file: Position) -> None:
    """Refuse a file of the last run that positions can express; logs never use that run."""
    if file.is_last_run:
        raise Refused("protocol", f"{file.file_name} is of the last run, which is never used")


def demand_frames(known: Manifest) -> None:
    """Refuse a file without a frame if the log already ends in `EMPTY_FILES_MAX` such files."""
    last = known.order[-EMPTY_FILES_MAX:]
    if len(last) == EMPTY_FILES_MAX and not any(known.rolled[file].end for file in last):
        raise Refused("protocol", f"more than {EMPTY_FILES_MAX} files without a frame in a row")


def check_frames(data: memoryview, walk: Walk) -> tuple[list[Header], int, int]:
    """Check every byte of the frames in `data`.

    Args:
        data: complete frames, the first of which belongs at the position of `walk`.
        walk: the state before the frames; this function moves it past them.

    Returns:
        The frames' headers; how many messages the frames hold, not counting those that range frames
        announce; and the flags of all columns that any of the frames has.

    Raises:
        Refused: a frame is damaged, or belongs at another position; the message names the position.
    """
    headers, offset, end, messages, columns = list[Header](), 0, len(data), 0, 0
    try:
        while offset < end:
            header = parse_header(data, offset)
            body_end = offset + HEADER_BYTES + header.length
            body = data[offset + HEADER_BYTES : body_end]
            offset += header.size
            if offset > end or crc32(body) != header.body_crc:
                raise FrameError("the body is not the one that was written")
            if any(data[body_end:offset]):
                raise FrameError("the padding is not zero")
            walk.step(header, body)
            headers.append(header)
            columns |= header.columns
            if header.kind == _MESSAGES:
                messages += header.messages
    except FrameError as error:
        words = f"a damaged frame came for {walk.position}: {error}; it was not taken"
        raise Refused("corrupt", words) from None
    return headers, messages, columns


def _diverged(line: Rolled, ours: Position) -> Refused:
    theirs = Position(line.file + line.end)
    words = f"the source's file ends at {theirs}, this log at {ours}"
    if theirs == ours:
        words = f"the source's {line.file.file_name} holds other messages than the one here"
    return Refused("diverged", f"{words}; both are kept")
