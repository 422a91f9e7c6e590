"""Session facts: what the ledger records of a session or group besides its merged end."""

from hashlib import blake2b
from typing import Final, NamedTuple

from rt.position import Position

_TAIL_DIGEST_BYTES: Final = 8  # against accidents; a hostile publisher harms only its own session


class Tail(NamedTuple):
    """Tail: position and digest of a session's last merged frame, by which copies are checked."""

    position: Position
    digest: bytes

    def is_of(self, header: bytes | None) -> bool:
        """Whether a raw header belongs to this frame; False for None."""
        return header is not None and tail_digest(header) == self.digest


class Sample(NamedTuple):
    """Sample: a merged message of a group, with which a session that joins the group is compared.

    Attributes:
        number: the sequence number of the message.
        digest: a digest of its key and payload.
    """

    number: int
    digest: bytes


class Ownership(NamedTuple):
    """Ownership: who owns a session.

    Attributes:
        owner: the name in the publisher's certificate; "" until known.
        log: the id of the log that may be pushed; "" until known.
        since: the instruction that last changed the ownership.
        closed_ns: merge time of the instruction since which the session is not open: it closed the
            session, reset it, gave it to another owner, or opened it without an owner. 0 while it
            is open.
    """

    owner: str
    log: str
    since: int
    closed_ns: int = 0

    def admits(self, peer: str, log: str) -> bool:
        """Whether this publisher may push this log."""
        return self.owner in ("", peer) and self.log in ("", log)


def tail_digest(header: bytes) -> bytes:
    """Return the digest of a raw header, as in `Tail`."""
    return blake2b(header, digest_size=_TAIL_DIGEST_BYTES).digest()
