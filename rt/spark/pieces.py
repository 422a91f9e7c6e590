"""Pieces: the frames of one part of a log file, each cut to the messages that are wanted."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from rt.disk import File
from rt.errors import FrameError
from rt.frame import HEADER_BYTES, MAGIC, Header, Kind, parse_header, unpack_body
from rt.limits import KIB, MIB
from rt.position import Position
from rt.scan import Frame, Scan, next_header
from rt.walk import Walk

# One read of a part: 8 frames as they usually are; twice as much was no faster.
_CHUNK_BYTES: Final = 2 * MIB
_OVERLAP: Final = 63  # a header that begins in one chunk may end in the next
# Headers of small frames come many to a read; behind a large one the next read begins.
_AHEAD_BYTES: Final = 4 * KIB
_NO_BODY: Final = memoryview(b"")


@dataclass(slots=True)
class Piece:
    """Consecutive messages of one frame."""

    header: Header
    body: bytes | memoryview  # as on disk; its CRC was checked
    position: Position  # of the frame
    session: str
    merge_time_ns: int | None
    first: int  # the messages from `first` up to `last` are wanted
    last: int
    number: int  # of message `first`
    _raw: bytes | memoryview | None = None

    def __len__(self) -> int:
        return self.last - self.first

    @property
    def raw(self) -> bytes | memoryview:
        """The body, decompressed; `FrameError` if that cannot be done."""
        if self._raw is None:
            self._raw = unpack_body(self.header, self.body)
        return self._raw


class Damage(NamedTuple):
    """Frames that are not what was written, from `position` up to `end`."""

    position: Position
    end: Position
    session: str | None
    reason: str


@dataclass(frozen=True, slots=True)
class Part:
    """Whole frames of one log file; its first is a range frame in a merged log.

    Attributes:
        file: position of the file.
        begin: offset of the first frame.
        end: offset behind the last one.
        start: messages before this position are not wanted.
        stop: nor those from this one on.
    """

    file: Position
    begin: int
    end: int
    start: Position
    stop: Position


@dataclass(slots=True)
class PartReader:
    """Reads one part, and goes on behind damage where there is a frame to go on with."""

    file: File
    part: Part
    merged: bool
    session: str
    wanted: Callable[[str], bool]
    bodies: bool = True  # whether bodies are read and checked, or headers alone
    _walk: Walk = field(init=False)
    _scan: Scan = field(init=False)
    _ahead: "_Ahead" = field(init=False)
    _passed: int = 0  # messages of the current range that were met
    _passes_by: bool = False  # whether the current range is of a session that is not wanted

    def __post_init__(self) -> None:
        self._ahead = _Ahead(self.file)
        self._begin(self.part.begin)

    def __iter__(self) -> Iterator[Piece | Damage]:
        end = self.part.end
        while self._walk.position.offset < end:
            try:
                frame = self._scan.next(end) if self.bodies else self._next_header(end)
                if frame is None:
                    raise FrameError("the frame is incomplete")
            except FrameError as error:
                yield self._step_over(str(error))
                continue
            piece = self._take(frame)
            if piece is not None:
                yield piece

    def _next_header(self, end: int) -> Frame | None:
        at = self._walk.position
        header = next_header(self._ahead.read, self._walk, end)
        return None if header is None else Frame(header, _NO_BODY, at)

    def _begin(self, offset: int) -> None:
        position = Position(self.part.file + offset)
        self._walk = Walk(position, merged=self.merged, session=self.session)
        self._scan = Scan(self._read, self._walk)

    def _read(self, length: int, offset: int) -> bytes:
        left = self.part.end - offset
        return self.file.pread(min(max(length, _CHUNK_BYTES), left), offset)

    def _take(self, frame: Frame) -> Piece | None:
        header, current = frame.header, self._walk.range
        if header.kind == Kind.RANGE:
            self._enter_range()
            return None
        if current is None:
            number, repeats, session, time_ns = header.sequence, 0, self.session, None
        else:
            passed, session, time_ns = self._passed, current.session, current.time_ns
            self._passed += header.messages
            repeats = min(max(0, current.skip - passed), header.messages)
            number = current.number + max(0, passed - current.skip)
        if header.kind != Kind.MESSAGES or self._passes_by:
            return None
        first = max(repeats, self.part.start - frame.position)
        last = min(header.messages, self.part.stop - frame.position)
        if first >= last:
            return None
        return Piece(
            header, frame.body, frame.position, session, time_ns, first, last,
            number + first - repeats,
        )  # fmt: skip

    def _enter_range(self) -> None:
        walk = self._walk
        self._passed = 0
        self._passes_by = walk.range is not None and not self.wanted(walk.range.session)
        if self._passes_by and walk.position.offset + walk.left <= self.part.end:
            walk.skip_range()

    def _step_over(self, reason: str) -> Damage:
        """Go on with the next frame if the header is whole; else with the next that is found."""
        walk, at = self._walk, self._walk.position
        session = walk.range.session if walk.left and walk.range else self.session or None
        left = walk.left
        if not self._step_by_header(at):
            # a range frame says where its range ends
            self._begin(min(at.offset + left, self.part.end) if left else self._search(at.offset))
        return Damage(at, self._walk.position, session, reason)

    def _step_by_header(self, at: Position) -> bool:
        if self.merged and not self._walk.left:
            return False
        try:
            header = parse_header(self.file.pread(HEADER_BYTES, at.offset))
            if at.offset + header.size > self.part.end:
                return False
            self._walk.step(header)
        except FrameError:
            return False
        self._passed += header.messages
        return True

    def _search(self, offset: int) -> int:
        """Return where the next intact frame behind `offset` is that was written for its place."""
        offset, end = offset + 8, self.part.end
        while offset < end:
            data = self.file.pread(min(_CHUNK_BYTES + _OVERLAP, end - offset), offset)
            if not data:
                break
            found = data.find(MAGIC)
            while 0 <= found < _CHUNK_BYTES:
                if self._fits(data, found, Position(self.part.file + offset + found)):
                    return offset + found
                found = data.find(MAGIC, found + 1)
            offset += _CHUNK_BYTES
        return end

    def _fits(self, data: bytes, place: int, position: Position) -> bool:
        try:
            header = parse_header(data, place)
        except FrameError:
            return False
        return header.position == position and (header.kind == Kind.RANGE) == self.merged


class _Ahead:
    """Reads a page at a time of a file whose headers are wanted."""

    def __init__(self, file: File) -> None:
        self._file = file
        self._data = b""
        self._base = 0

    def read(self, length: int, offset: int) -> bytes:
        """Read up to `length` bytes at `offset`."""
        at = offset - self._base
        if at < 0 or at + length > len(self._data):
            self._data, at = self._file.pread(max(length, _AHEAD_BYTES), offset), 0
            self._base = offset
        return self._data[at : at + length]
