"""Walk: checks that each frame of a log is at the position that it was written for."""

from rt.errors import FrameError
from rt.format.frame import FrameKind, Header, session_tag
from rt.format.ranges import Range, decode_range
from rt.position import Position

_RANGE = int(FrameKind.RANGE)  # looking up an enum member takes 0.1 us


class Walk:
    """Takes the frames of one log in order, and knows what must come next.

    In a session's log, every header states the frame's position. In a merged log, only a range
    frame's header does. The session frames after it keep their original headers, which state
    positions in the session's log, and the range frame says where those begin. A block that was
    moved, repeated or left over from earlier breaks these rules. The session
    tag in each header distinguishes blocks of two sessions with equal positions.
    """

    __slots__ = ("_expected", "_tag", "left", "merged", "position", "range")

    def __init__(self, position: Position, *, merged: bool, session: str = "") -> None:
        """Start at `position`; in a session's log, each frame must belong to `session`."""
        self.position = position
        self.merged = merged
        self.left = 0  # bytes left in the current range
        self.range: Range | None = None  # the current range, from its first frame to its last
        self._expected = 0  # session position of the range's next frame
        self._tag = session_tag(session) if session else None

    def copy(self) -> "Walk":
        """Return an independent walk at the same place, to check frames before they are written."""
        other = Walk.__new__(Walk)
        other.position, other.merged = self.position, self.merged
        other.left, other.range = self.left, self.range
        other._expected, other._tag = self._expected, self._tag
        return other

    def past(self, header: Header, new: Range) -> "Walk":
        """Return a walk at the end of a range that begins here and whose frames were checked.

        The result is the same as after a `step` for the range frame and for each session frame.

        Args:
            header: the header of the range frame.
            new: the range, whose frame was just encoded.

        Raises:
            FrameError: no range frame may come next here.
        """
        if self.left or not self.merged or header.position != self.position:
            raise FrameError("no range frame may follow here")
        other = Walk.__new__(Walk)
        other.position = Position(self.position + header.size + new.length)
        other.merged, other.left, other.range = True, 0, new
        other._expected, other._tag = new.first + new.length, session_tag(new.session)
        return other

    def skip_range(self) -> None:
        """Skip the rest of the current range."""
        self.position = Position(self.position + self.left)
        self.left = 0

    @property
    def at_boundary(self) -> bool:
        """Whether the log may roll here; a merged log rolls only between ranges."""
        return self.left == 0

    def step(self, header: Header, body: bytes | memoryview = b"") -> None:
        """Step over the next frame; `FrameError` if this frame may not come next.

        Args:
            header: the header of the frame at `position`, its own CRC already checked.
            body: a range frame's body, its CRC already checked; ignored for other frames.
        """
        if self.left:
            if header.kind == _RANGE or header.position != self._expected:
                raise FrameError("the frame is not of the range it is in")
            if header.session_tag != self._tag:
                raise FrameError("the frame is of another session")
            if header.size > self.left:
                raise FrameError("the frame is longer than the rest of its range")
            self.left -= header.size
            self._expected += header.size
        elif header.position != self.position:
            raise FrameError(f"the frame was written for {Position(header.position)}")
        elif self.merged:
            self._enter(decode_range(header, body))
        elif header.kind == _RANGE:
            raise FrameError("a session holds no range frames")
        elif self._tag not in (None, header.session_tag):
            raise FrameError("the frame is of another session")
        self.position = Position(self.position + header.size)

    def _enter(self, new: Range) -> None:
        self.range, self.left, self._expected = new, new.length, new.first
        self._tag = session_tag(new.session)
