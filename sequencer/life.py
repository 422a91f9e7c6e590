"""Life: the instruction that changes what the nodes know of a session, by decision and not by data.

Its event goes into the merged log, where every reader meets it at the same place.
"""

import struct
from dataclasses import dataclass
from typing import Final

from rt.errors import Misuse, PeerError
from rt.events import SessionChange
from rt.names import parse_session
from rt.position import START, Position

_FIXED: Final = struct.Struct("<BQQ16s")  # change, before, after, log; the name follows
# As they are on disk; a number is never used for another change.
_CODES: Final = {
    SessionChange.ADOPTED: 1,
    SessionChange.RESET: 2,
    SessionChange.FORGOTTEN: 3,
}
_CHANGES: Final = {code: change for change, code in _CODES.items()}
_LOG_DIGITS: Final = 32
_NO_LOG: Final = bytes(_LOG_DIGITS // 2)
_HEXADECIMAL: Final = frozenset("0123456789abcdef")
_POSITION_END: Final = 1 << 63


@dataclass(frozen=True, slots=True)
class Life:
    """Change a session, if it is still merged up to `before`; otherwise every node leaves it out.

    Attributes:
        time_ns: the leader's clock, which decided it.
        change: what becomes of the session.
        session: its name.
        before: up to where it was merged when this was decided.
        after: where it continues, the start of a file; the start of the log for what is forgotten.
        log: the id of the log that may not be pushed under this name again; "" if any may.
    """

    time_ns: int
    change: SessionChange
    session: str
    before: Position
    after: Position = START
    log: str = ""

    def __post_init__(self) -> None:
        """Refuse here, to the caller, what no node could execute."""
        parse_session(self.session)
        if self.after.offset:
            raise Misuse(f"a session continues at the start of a file, not at {self.after}")
        if len(self.log) not in (0, _LOG_DIGITS) or set(self.log) - _HEXADECIMAL:
            raise Misuse(f"the id of a log is {_LOG_DIGITS} hexadecimal digits")
        if self.change is SessionChange.ADOPTED and self.after <= self.before:
            raise Misuse(f"session {self.session!r} is merged up to {self.before} already")


# These end the copies of a session on every node; another copy may be begun after them.
DROPPING: Final = frozenset({SessionChange.RESET, SessionChange.FORGOTTEN})


def encode_life(life: Life) -> bytes:
    """Return what follows the head of the instruction."""
    log = bytes.fromhex(life.log) if life.log else _NO_LOG
    return _FIXED.pack(_CODES[life.change], life.before, life.after, log) + life.session.encode()


def decode_life(time_ns: int, data: bytes) -> Life:
    """Read the bytes of `encode_life`; `PeerError` if they are something else."""
    try:
        code, before, after, log = _FIXED.unpack_from(data)
        if code not in _CHANGES or max(before, after) >= _POSITION_END:
            raise PeerError(f"a change of a session of an unknown kind ({code})")
        name = data[_FIXED.size :].decode("ascii")
        change, retired = _CHANGES[code], "" if log == _NO_LOG else log.hex()
        return Life(time_ns, change, name, Position(before), Position(after), retired)
    except (struct.error, UnicodeDecodeError, Misuse) as error:
        raise PeerError(f"unreadable change of a session: {error}") from None
