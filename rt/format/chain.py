"""Chain: checks that each frame or range of a log continues the previous one, across files."""

from typing import Final

from rt.format.frame import FrameKind, Header, seal_header
from rt.format.ranges import EMPTY_DIGEST, Range
from rt.format.session_event import is_event
from rt.position import START, Position

_FAULTS_MAX: Final = 100  # faults listed; a longer list is of no use


class Chain:
    """Takes the frames of one log in order and lists the first 100 contradictions.

    In a session, sequence numbers must not decrease. In a merged log, message numbers must have no
    gaps, merge times and each session's positions must not decrease, and each range's running
    digest must follow from the previous one.
    """

    def __init__(self, *, merged: bool) -> None:
        self.faults: list[str] = []
        # Number of the next message (in a session: its minimum); None if unknown.
        self.number: int | None = 0
        self.digest: bytes | None = EMPTY_DIGEST  # digest of the merged log so far; None if unknown
        self.time_ns = 0
        self._merged = merged
        self._range: Range | None = None
        self._at = START
        self._headers: list[bytes] = []
        self._messages = 0
        self._sessions: dict[str, Position] = {}

    def add(self, header: Header, position: Position, current: Range | None) -> None:
        """Add the next whole frame; in a merged log, `current` is the range it belongs to."""
        if not self._merged:
            self._add_of_session(header, position)
        elif header.kind == FrameKind.RANGE:
            self.finish()
            self._begin(header, position, current)
        else:
            self._headers.append(seal_header(header))
            self._messages += header.messages if header.kind == FrameKind.MESSAGES else 0

    def finish(self) -> None:
        """End the current range and check it; call this at the end of a file."""
        done, self._range = self._range, None
        if done is None:
            return
        if self._messages != done.messages + done.skip:
            self._fault(f"the range has {self._messages} messages, not those it says it adds")
        if self.digest is not None:
            told = done.digested(self.digest, self._at, b"".join(self._headers))
            if told.digest != done.digest:
                self._fault("the running digest does not follow from the range before")
        self.digest = done.digest

    def skip(self, number: int | None) -> None:
        """Start over after an unreadable part; `number` is the next message's, None if unknown."""
        self._range, self.digest, self.number = None, None, number

    def drop(self) -> None:
        """Discard the current range, because the file ends within it."""
        self._range, self.digest = None, None

    def _add_of_session(self, header: Header, position: Position) -> None:
        self._at = position
        if header.kind != FrameKind.MESSAGES:
            return
        if self.number is not None and header.sequence < self.number:
            self._fault(f"sequence number {header.sequence} comes after {self.number - 1}")
        self.number = header.sequence + header.messages

    def _begin(self, header: Header, position: Position, current: Range | None) -> None:
        self._at, self._range = position, current
        self._headers, self._messages = [], 0
        if self.number not in (None, header.sequence):
            self._fault(f"message number {header.sequence} comes where {self.number} should")
        if header.time_ns < self.time_ns:
            self._fault("the merge time goes back")
        self.number, self.time_ns = header.sequence + header.messages, header.time_ns
        if current is not None:
            self._continue(current)

    def _continue(self, current: Range) -> None:
        if is_event(current):
            self._sessions[current.session] = current.first  # a reset may move it back
            return
        known = self._sessions.get(current.session, START)
        if current.first < known:
            self._fault(
                f"session {current.session} goes back from {known} to {Position(current.first)}"
            )
        self._sessions[current.session] = Position(current.first + current.length)

    def _fault(self, reason: str) -> None:
        if len(self.faults) < _FAULTS_MAX:
            self.faults.append(f"{self._at}: {reason}")
