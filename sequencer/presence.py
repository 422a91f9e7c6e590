"""Presence: which sessions are being pushed, to which node, and by whom."""

import struct
from collections.abc import Collection, Mapping
from typing import Final, NamedTuple

from rt.errors import Misuse, PeerError
from rt.names import parse_peer, parse_session

_COUNT: Final = struct.Struct("<I")
_ITEM: Final = struct.Struct("<BB16s")  # lengths of session and peer, id of the log; both follow
_PUSHED_MAX: Final = 100_000  # in one report: 15 MB at most, and 0.5 MB with 10,000 usual names
# Reports come every 5 s or more often; a node that misses two of them may be gone.
HEARD_S: Final = 15.0


class Pushed(NamedTuple):
    """Who pushes a session.

    Attributes:
        peer: the name in its certificate.
        log: the id of the log that it pushes.
    """

    peer: str
    log: str


class Presence:
    """What each node has said about the sessions that publishers push to it; time is an argument.

    >>> presence, other = Presence(), Presence()
    >>> other.own = {"jfk": Pushed("alice", "0f" * 16)}
    >>> presence.take("n2", other.report(), 3.0)
    >>> presence.pushed(4.0, ["n2"])["jfk"].peer, presence.pushed(60.0, ["n2"])
    ('alice', {})
    """

    def __init__(self) -> None:
        self.own: Mapping[str, Pushed] = {}
        self._told: dict[str, tuple[float, Mapping[str, Pushed]]] = {}  # by node, and when

    def take(self, sender: str, data: bytes, now_s: float) -> None:
        """Take another node's report; `PeerError` if it is malformed, and nothing was taken."""
        self._told[sender] = (now_s, decode_pushed(data))

    def report(self) -> bytes:
        """Return what this node has to say."""
        return encode_pushed(self.own)

    def pushed(self, now_s: float, members: Collection[str]) -> dict[str, Pushed]:
        """Return who pushes each session, here or to another node that was heard lately.

        Args:
            now_s: by the clock that `take` was called with.
            members: the other nodes; what any other has said is forgotten.
        """
        self._told = {name: told for name, told in self._told.items() if name in members}
        found: dict[str, Pushed] = {}
        for heard_s, told in self._told.values():
            if now_s - heard_s < HEARD_S:
                found.update(told)
        return {**found, **self.own}

    def find(self, session: str, now_s: float) -> Pushed | None:
        """Return who pushes a session to another node that was heard lately."""
        for heard_s, told in self._told.values():
            if session in told and now_s - heard_s < HEARD_S:
                return told[session]
        return None

    def heard(self, now_s: float) -> set[str]:
        """Return the nodes that were heard lately."""
        return {name for name, (at_s, _) in self._told.items() if now_s - at_s < HEARD_S}


def encode_pushed(pushed: Mapping[str, Pushed]) -> bytes:
    """Lay out a report."""
    parts = [_COUNT.pack(len(pushed))]
    for session, (peer, log) in pushed.items():
        name, by = session.encode(), peer.encode()
        parts += (_ITEM.pack(len(name), len(by), bytes.fromhex(log)), name, by)
    return b"".join(parts)


def decode_pushed(data: bytes) -> dict[str, Pushed]:
    """Read the bytes of `encode_pushed`; `PeerError` if they are something else."""
    try:
        [count] = _COUNT.unpack_from(data)
        if count > _PUSHED_MAX:
            raise PeerError("a report of more sessions than there can be")
        found, offset = dict[str, Pushed](), _COUNT.size
        for _ in range(count):
            name_length, peer_length, log = _ITEM.unpack_from(data, offset)
            middle = offset + _ITEM.size + name_length
            name = data[offset + _ITEM.size : middle].decode("ascii")
            peer = data[middle : middle + peer_length].decode("ascii")
            found[parse_session(name)] = Pushed(parse_peer(peer), log.hex())
            offset = middle + peer_length
    except (struct.error, UnicodeDecodeError, Misuse) as error:
        raise PeerError(f"unreadable report of what is pushed: {error}") from None
    if offset != len(data):
        raise PeerError("a report is followed by bytes that do not belong to it")
    return found
