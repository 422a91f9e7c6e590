"""RegisteredCursor: how far the readers of a named cursor have come, agreed by all nodes."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Final

from archiver.lease import UNREADABLE, whole_position
from rt.errors import Misuse
from rt.format.where import Where
from rt.names import parse_cursor, parse_peer, shown
from rt.net.authority.identity import CertificateRole, PeerIdentity
from rt.node.notes.readable_notes import readable
from rt.position import START, Position

CURSOR_NOTE: Final = "cursor "  # followed by the name
CURSORS_MAX: Final = 48  # of the 128 notes of a stream; 64 are for leases
CURSORS_PER_OWNER_MAX: Final = 24  # one owner may use half
HOLDER_LENGTH_MAX: Final = 100
_PARSED: Final = 256  # notes, of less than 1 KiB each
SILENCE_S_MIN, SILENCE_S_MAX = 0.2, 3600.0
PIN_BYTES_MAX: Final = 1 << 40


@dataclass(frozen=True, slots=True)
class RegisteredCursor:
    """RegisteredCursor: the agreed state of a cursor: its position, and which reader holds it.

    This note changes when the cursor is opened, acknowledged, moved or released.

    Attributes:
        name: the cursor's name.
        owner: name in the certificate of its readers; others can only view it.
        role: role in that certificate; "" in a cursor of an earlier version, which allows any role.
        position: everything before it is acknowledged.
        epoch: starts as the time of registration in ms and grows with each opening or move;
            acknowledgements with an older epoch are refused.
        holder: the present reader, for display; "" if the cursor was released.
        silence_s: how long its holder must be silent before another reader may take it over.
        pin_bytes: bytes of unacknowledged messages kept from the archiving rules `time` and
            `limit`; 0 keeps nothing.
        stored_ns: when this was stored, ns since the epoch.
        share: the share of the keys that is read with it; "" for all keys, None while unset.
    """

    name: str
    owner: str
    position: Position = START
    epoch: int = 0
    holder: str = ""
    silence_s: float = 0.75
    pin_bytes: int = 0
    stored_ns: int = 0
    role: str = ""
    share: str | None = None

    def __post_init__(self) -> None:
        parse_cursor(self.name)
        parse_peer(self.owner)
        numbers = self.epoch, self.pin_bytes, self.stored_ns
        if not all(type(each) is int and 0 <= each < 1 << 63 for each in numbers):
            raise Misuse("a cursor has whole numbers, none of them negative")
        if not (0 <= self.position < 1 << 63 and self.epoch < 1 << 62):
            raise Misuse("a cursor has a position and an epoch")
        if len(self.holder) > HOLDER_LENGTH_MAX or not self.holder.isprintable():
            raise Misuse(f"not a holder: {shown(self.holder)}; use up to 100 printable characters")
        if not SILENCE_S_MIN <= self.silence_s <= SILENCE_S_MAX:
            raise Misuse(f"silence_s is {self.silence_s}; use 0.2 to 3600 seconds")
        Where.parse(None, share=self.share or "")
        if self.role not in ("", *CertificateRole):
            raise Misuse(f"not a role: {shown(self.role)}")
        if not 0 <= self.pin_bytes <= PIN_BYTES_MAX:
            raise Misuse(f"pin_bytes is {self.pin_bytes}; use 0 to {PIN_BYTES_MAX}")

    def belongs_to(self, identity: PeerIdentity) -> bool:
        """Whether this peer may read with the cursor."""
        return self.owner == identity.name and self.role in ("", identity.role)

    def text(self) -> str:
        """Return the cursor as JSON; equal cursors give equal texts."""
        return json.dumps(asdict(self), separators=(",", ":"))


@lru_cache(_PARSED)
def parse_registered(text: str) -> RegisteredCursor:
    """Parse the output of `RegisteredCursor.text`; `Misuse` if `text` is anything else."""
    try:
        fields = json.loads(text)
        return RegisteredCursor(**{**fields, "position": whole_position(fields["position"])})
    except UNREADABLE as error:
        raise Misuse(f"not a cursor: {error}") from None


def cursors_of_notes(notes: Mapping[str, str]) -> list[RegisteredCursor]:
    """Return the registered cursors of a stream that this version can read, sorted by name."""
    return readable(notes, CURSOR_NOTE, parse_registered)[0]
