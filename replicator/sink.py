"""Sink: decides what becomes of the bytes and facts that a source sends of one log."""

from dataclasses import dataclass
from enum import Enum, auto

from rt.errors import FrameError, PeerError, Refused
from rt.format.frame import HEADER_BYTES, Header, body_matches, parse_header
from rt.format.manifest import Rolled
from rt.format.walk import Walk
from rt.position import Position


class Do(Enum):
    """What a message of the source asks for."""

    NOTHING = auto()  # it is known already
    APPEND = auto()
    BEGIN = auto()  # a file, and then append to it
    COMPARE = auto()  # with the bytes that are there, and append what goes beyond them
    ROLL = auto()
    BEGIN_AND_ROLL = auto()  # a file without a frame
    SKIP = auto()  # a file that was archived before all of it came


@dataclass(frozen=True, slots=True)
class Stand:
    """Where the sink's own log ends."""

    end: Position
    is_open: bool  # whether the file it ends in still takes frames


def place_data(position: Position, stand: Stand) -> Do:
    """Return what to do with frames for `position`.

    Raises:
        PeerError: there are bytes missing before them.

    >>> place_data(Position(64), Stand(Position(64), is_open=True)).name
    'APPEND'
    """
    if position == stand.end and stand.is_open:
        return Do.APPEND
    if position < stand.end:
        return Do.COMPARE
    if not stand.is_open and not position.offset:
        return Do.BEGIN
    raise PeerError(f"it sends bytes for {position}, and this log ends at {stand.end}")


def place_rolled(line: Rolled, stand: Stand, known: Rolled | None) -> Do:
    """Return what to do about a file that has ended at the source.

    Raises:
        Refused: it ends elsewhere here.
    """
    if known is not None:
        if known == line:
            return Do.NOTHING
        raise _diverged(line, Position(known.file + known.end))
    if stand.is_open and stand.end.file == line.file and stand.end.offset == line.end:
        return Do.ROLL
    if not stand.is_open and not line.end and line.file >= stand.end:
        return Do.BEGIN_AND_ROLL
    raise _diverged(line, stand.end)


def place_archived(line: Rolled, stand: Stand, known: Rolled | None) -> Do:
    """Return what to do about a file that has gone at the source, apart from the going.

    Raises:
        Refused: it ends elsewhere here, or files are missing before it.
    """
    if known == line:
        return Do.NOTHING
    if known is None and stand.is_open and stand.end == line.file + line.end:
        return Do.ROLL  # all of it is here, and may still be needed
    if known is None and stand.end.file == line.file and stand.end.offset <= line.end:
        return Do.SKIP
    if known is None and not stand.is_open and stand.end <= line.file:
        return Do.SKIP
    raise _diverged(line, stand.end if known is None else Position(known.file + known.end))


def check_frames(data: memoryview, walk: Walk) -> list[Header]:
    """Return the headers of the frames in `data`, each of them checked to the last byte.

    Args:
        data: whole frames for the place where `walk` stands.
        walk: is moved behind them.

    Raises:
        Refused: one of them is damaged, or of another place; names the position.
    """
    headers, offset, end = [], 0, len(data)
    try:
        while offset < end:
            header = parse_header(data, offset)
            body_end = offset + HEADER_BYTES + header.length
            body = data[offset + HEADER_BYTES : body_end]
            offset += header.size
            if offset > end or not body_matches(header, body):
                raise FrameError("the body is not the one that was written")
            if any(data[body_end:offset]):
                raise FrameError("the padding is not zero")
            walk.step(header, body)
            headers.append(header)
    except FrameError as error:
        words = f"a damaged frame came for {walk.position}: {error}; it was not taken"
        raise Refused("corrupt", words) from None
    return headers


def _diverged(line: Rolled, ours: Position) -> Refused:
    theirs = Position(line.file + line.end)
    return Refused("diverged", f"the source's file ends at {theirs}, this log at {ours}")
