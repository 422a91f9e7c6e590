"""Life: the instruction that changes a session's state by decision, not by data.

Its event goes into the merged log, where every reader meets it at the same place.
"""

import struct
from dataclasses import dataclass
from typing import Final

from rt.errors import Misuse, PeerError
from rt.events import SessionChange
from rt.names import parse_peer, parse_session
from rt.position import START, Position

_FIXED: Final = struct.Struct("<BQQ16s")  # change, before, after, log; the name follows
_MORE: Final = struct.Struct("<QBB")  # since, begins again, length of the owner; both names follow
# Codes on disk; a number is never reused for another change.
_CODES: Final = {
    SessionChange.ADOPTED: 1,
    SessionChange.RESET: 2,
    SessionChange.FORGOTTEN: 3,
    SessionChange.OPENED: 4,
    SessionChange.CLOSED: 5,
    SessionChange.RESUMED: 6,
    SessionChange.EXPIRED: 7,
    SessionChange.TAKEN: 8,
}
_CHANGES: Final = {code: change for change, code in _CODES.items()}
_LOG_DIGITS: Final = 32
ANY_LOG: Final = "0" * _LOG_DIGITS  # encodes "any log" in an instruction; never a log's id
_HEXADECIMAL: Final = frozenset("0123456789abcdef")
_POSITION_END: Final = 1 << 63
# These drop a session's copies on every node; a new copy may follow.
DROPPING: Final = frozenset({SessionChange.RESET, SessionChange.FORGOTTEN, SessionChange.EXPIRED})
# These depend on the recorded owner of a session; see `Ownership`.
OWNED: Final = frozenset(
    change for change, code in _CODES.items() if code > _CODES[SessionChange.FORGOTTEN]
)


@dataclass(frozen=True, slots=True)
class Life:
    """Life: a change that the nodes decide for a session, such as a reset or a new owner.

    A node executes the change only if the session is still in the state it was decided on. A change
    of ownership compares `since`, and also `before` if it ends the log; any other change compares
    `before`. Only a change of ownership that ends the log may name a retired log.

    Attributes:
        time_ns: the deciding leader's clock.
        change: what happens to the session.
        session: its name.
        before: the session's merged end when this was decided.
        after: where the session continues, the start of a file; `START` if it is forgotten. A
            change of ownership that does not end the log ignores it: the session goes on where it
            is merged to.
        log: the id of a log, or "" for none in particular. If the session is opened or resumed,
            only this log may be pushed; a change that ends the log retires this one, which may then
            not be pushed again under the session's name.
        owner: the name in the new owner's certificate; "" if unknown, or if the name becomes free.
        since: the instruction that last changed the session's ownership; 0 if none did.
        begins_again: whether a session that a new owner takes over starts again with another log.
    """

    time_ns: int
    change: SessionChange
    session: str
    before: Position
    after: Position = START
    log: str = ""
    owner: str = ""
    since: int = 0
    begins_again: bool = False

    def __post_init__(self) -> None:
        """Raise an error for a change that no node could execute, before it is proposed."""
        parse_session(self.session)
        if self.owner:
            parse_peer(self.owner)
        if self.after.offset:
            raise Misuse(f"a session continues at the start of a file, not at {self.after}")
        if len(self.log) not in (0, _LOG_DIGITS) or set(self.log) - _HEXADECIMAL:
            raise Misuse(f"the id of a log is {_LOG_DIGITS} hexadecimal digits")
        if self.change is SessionChange.ADOPTED and self.after <= self.before:
            raise Misuse(f"session {self.session!r} is merged up to {self.before} already")

    @property
    def ends_log(self) -> bool:
        """Whether this drops all copies of the session, so that another log may follow."""
        return self.change in DROPPING or self.begins_again


def encode_life(life: Life) -> bytes:
    """Encode the change, without the head of the instruction."""
    log = bytes.fromhex(life.log or ANY_LOG)
    fixed = _FIXED.pack(_CODES[life.change], life.before, life.after, log)
    if life.change in OWNED:
        owner = life.owner.encode()
        fixed += _MORE.pack(life.since, life.begins_again, len(owner)) + owner
    return fixed + life.session.encode()


def decode_life(time_ns: int, data: bytes) -> Life:
    """Decode the bytes of `encode_life`; `PeerError` if they are anything else."""
    try:
        code, before, after, log = _FIXED.unpack_from(data)
        if code not in _CHANGES or max(before, after) >= _POSITION_END:
            raise PeerError(f"a change of a session of an unknown kind ({code})")
        change, log_id = _CHANGES[code], log.hex().replace(ANY_LOG, "")
        since, again, owner, rest = _owned(data) if change in OWNED else (0, False, "", _FIXED.size)
        name = data[rest:].decode("ascii")
        return Life(
            time_ns, change, name, Position(before), Position(after), log_id, owner, since, again
        )
    except (struct.error, UnicodeDecodeError, Misuse) as error:
        raise PeerError(f"unreadable change of a session: {error}") from None


def _owned(data: bytes) -> tuple[int, bool, str, int]:
    """Decode the fields of a change of owner: since, begins_again, owner, offset of the name."""
    since, again, length = _MORE.unpack_from(data, _FIXED.size)
    begin = _FIXED.size + _MORE.size
    if again > 1:
        raise PeerError("a change of a session that is neither new nor the same")
    return since, bool(again), data[begin : begin + length].decode("ascii"), begin + length
