"""What the ledger knows of a session or a group besides how far it is merged."""

from hashlib import blake2b
from typing import Final, NamedTuple

from rt.position import Position

_TAIL_DIGEST_BYTES: Final = 8  # against accidents; a hostile publisher harms only its own session


class Tail(NamedTuple):
    """The last frame of a session that was merged; a copy with another one is another copy."""

    position: Position
    digest: bytes

    def is_of(self, header: bytes | None) -> bool:
        """Whether a raw header, if there is one, is that of this frame."""
        return header is not None and tail_digest(header) == self.digest


class Sample(NamedTuple):
    """One message that a group has merged: its number, and a digest of its key and payload."""

    number: int
    digest: bytes


class Ownership(NamedTuple):
    """Whose a session is.

    Attributes:
        owner: the name in the certificate of its publisher; "" until one is known.
        log: the id of the log that may be pushed; "" until one is.
        since: the instruction that last changed this.
        closed_ns: merge time of the instruction since which nothing pushes it; 0 while it is
            pushed.
    """

    owner: str
    log: str
    since: int
    closed_ns: int = 0

    def admits(self, peer: str, log: str) -> bool:
        """Whether this publisher may push this log."""
        return self.owner in ("", peer) and self.log in ("", log)


def tail_digest(header: bytes) -> bytes:
    """Return the digest of a raw header, as `Tail` has it."""
    return blake2b(header, digest_size=_TAIL_DIGEST_BYTES).digest()
