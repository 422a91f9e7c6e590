"""Pieces: reads one part of a log file, and picks the wanted messages out of its frames."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from rt.errors import FrameError
from rt.format.frame import HEADER_BYTES, FrameKind, Header, parse_header
from rt.format.recovery import later_headers
from rt.format.scan import next_header
from rt.format.walk import Walk
from rt.limits import KIB
from rt.log.files.disk import File
from rt.position import Position
from rt.spark.reading.bodies import INCOMPLETE, NO_BODY, Block, Body, BodyReader
from rt.spark.reading.log_paths import LogPlace
from rt.spark.reading.storage import Ahead

# One read brings the headers of many small frames; after a large frame, another read is needed.
_HEADERS_BYTES: Final = 4 * KIB
_HEADER_ROW_BYTES: Final = 32  # bytes of a row without a body: three numbers, or one and a name


@dataclass(slots=True)
class Piece:
    """Consecutive wanted messages of one frame, without messages that were merged before."""

    header: Header
    body: Body
    position: Position  # the frame's position
    session: str
    merge_time_ns: int | None
    first: int  # the messages from `first` up to `last`, exclusive, are wanted
    last: int
    number: int  # number of message `first`
    log: LogPlace | None = None

    def __len__(self) -> int:
        return self.last - self.first

    @property
    def start(self) -> Position:
        """Return the position of the first wanted message."""
        return Position(self.position + self.first)

    @property
    def end(self) -> Position:
        """Return the position after the last wanted message."""
        return Position(self.position + self.last)

    @property
    def next_number(self) -> int:
        """Return the number of the message after the last wanted one."""
        return self.number + len(self)

    @property
    def time_ns(self) -> int:
        """When the piece was merged; in a session, when the frame's first message was published."""
        return self.header.time_ns if self.merge_time_ns is None else self.merge_time_ns

    @property
    def size(self) -> int:
        """Return approximately how many bytes the piece takes in a record batch."""
        if not self.body.block:
            return len(self) * _HEADER_ROW_BYTES
        return self.header.raw_length


class Damage(NamedTuple):
    """Damaged bytes, from `position` up to `end`."""

    position: Position
    end: Position
    session: str | None
    reason: str


@dataclass(frozen=True, slots=True)
class Part:
    """Whole frames of one log file; in a merged log, the first one is a range frame."""

    file: Position  # position of the file
    begin: int  # offset of the first frame
    end: int  # offset after the last one
    start: Position  # messages before this position are not wanted
    stop: Position  # messages from this position on are not wanted
    log: int = 0  # index of the log among those of the load


@dataclass(slots=True)
class PartReader:
    """Yields the pieces and the damage of one part; after damage, continues at a whole frame."""

    file: File
    part: Part
    merged: bool
    session: str
    wanted: Callable[[str], bool]
    block: Block | None  # where payloads are read to; None to read headers only
    columns_suffice: bool = False  # whether no payload is wanted or checked
    _walk: Walk = field(init=False)
    _ahead: Ahead = field(init=False)
    _bodies: BodyReader | None = field(init=False)
    _passed: int = 0  # messages of the current range so far
    _passes_by: bool = False  # whether the current range's session is not wanted

    def __post_init__(self) -> None:
        self._ahead = Ahead(self.file.pread)
        self._bodies = None if self.block is None else BodyReader(
            self.file, self._ahead, self.block, columns_suffice=self.columns_suffice
        )  # fmt: skip
        self._begin(self.part.begin)

    def __iter__(self) -> Iterator[Piece | Damage]:
        end = self.part.end
        while self._walk.position.offset < end:
            at = self._walk.position
            if at >= self.part.stop:
                return
            try:
                header, body = self._next(end)
            except FrameError as error:
                yield self._step_over(str(error))
                continue
            piece = self._take(header, body, at)
            if piece is not None:
                yield piece

    def _next(self, end: int) -> tuple[Header, Body]:
        """Read the next frame; `FrameError` if it is not valid, or incomplete.

        Returns its header, and its body; `NO_BODY` if the body is not needed.
        """
        walk, bodies = self._walk, self._bodies
        if bodies is None:
            found = next_header(self._header, walk, end)
            if found is None:
                raise FrameError(INCOMPLETE)
            return found, NO_BODY
        offset = walk.position.offset
        header = parse_header(self._header(HEADER_BYTES, offset))
        if end - offset < header.size:
            raise FrameError(INCOMPLETE)
        if header.kind == FrameKind.MESSAGES:
            # another part reads and checks the frame
            if walk.position + header.messages <= self.part.start:
                walk.step(header)
                return header, NO_BODY
            body = bodies.read(header, offset)
            walk.step(header)
            return header, body
        walk.step(header, bodies.stored(header, offset))
        return header, NO_BODY

    def _header(self, length: int, offset: int) -> memoryview:
        return self._ahead.read(length, offset, _HEADERS_BYTES)

    def _begin(self, offset: int) -> None:
        position = Position(self.part.file + offset)
        self._walk = Walk(position, merged=self.merged, session=self.session)

    def _take(self, header: Header, body: Body, at: Position) -> Piece | None:
        current = self._walk.range
        if header.kind == FrameKind.RANGE:
            self._enter_range()
            return None
        if current is None:
            number, repeats, session, time_ns = header.sequence, 0, self.session, None
        else:
            passed, session, time_ns = self._passed, current.session, current.time_ns
            self._passed += header.messages
            repeats = min(max(0, current.skip - passed), header.messages)
            number = current.number + max(0, passed - current.skip)
        if header.kind != FrameKind.MESSAGES or self._passes_by:
            return None
        first = max(repeats, self.part.start - at)
        last = min(header.messages, self.part.stop - at)
        if first >= last:
            return None
        return Piece(
            header, body, at, session, time_ns, first, last,
            number + first - repeats,
        )  # fmt: skip

    def _enter_range(self) -> None:
        walk = self._walk
        self._passed = 0
        self._passes_by = walk.range is not None and not self.wanted(walk.range.session)
        if self._passes_by and walk.position.offset + walk.left <= self.part.end:
            walk.skip_range()

    def _step_over(self, reason: str) -> Damage:
        """Step over a damaged frame, by its header if that is valid, and return the damage.

        Otherwise skip the rest of the range, or search for the next valid frame.
        """
        walk, at = self._walk, self._walk.position
        session = walk.range.session if walk.left and walk.range else self.session or None
        left = walk.left
        if not self._step_by_header(at):
            # a range frame says where its range ends
            self._begin(min(at.offset + left, self.part.end) if left else self._search(at))
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

    def _search(self, at: Position) -> int:
        """Return where the next whole frame begins after `at`; in a merged log, the next range."""
        for found in later_headers(self.file.pread, at, self.part.end):
            if (found.kind == FrameKind.RANGE) == self.merged:
                return Position(found.position).offset
        return self.part.end
