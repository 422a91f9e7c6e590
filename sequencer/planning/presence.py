"""Presence: which sessions are pushed, to which node, and by whom."""

import struct
from collections.abc import Collection, Mapping
from itertools import islice
from typing import Final, NamedTuple

from rt.errors import Misuse, PeerError
from rt.names import decode_session, parse_peer

_HEAD: Final = struct.Struct("<BII")  # whether first part, sessions in it, sessions after it
_ITEM: Final = struct.Struct("<BB16s")  # lengths of session and peer, log id; the names follow
# Larger reports are split: a heartbeat must not wait until they are sent.
_PART_SESSIONS: Final = 10_000  # 1.5 MB at most, and 0.5 MB with usual names
PUSHED_MAX: Final = 1_000_000  # per node: 150 MB at most in a report
# Reports come every 5 s or more often; a node that misses two of them may be gone.
HEARD_S: Final = 15.0


class Pushed(NamedTuple):
    """Pushed: who pushes a session.

    Attributes:
        peer: the name in the publisher's certificate.
        log: the id of the log that it pushes.
    """

    peer: str
    log: str


class PresencePart(NamedTuple):
    """PresencePart: a part of a node's report of the sessions that are pushed to it.

    Attributes:
        is_first: whether this is the first part of the report.
        pushed: the sessions in it.
        left: the number of sessions in the parts that follow.
    """

    is_first: bool
    pushed: dict[str, Pushed]
    left: int


class Presence:
    """Presence: what each node reports about the sessions that publishers push to it.

    The thread that steps the duties sets `now_s` from a monotonic clock.

    >>> presence, other = Presence(), Presence()
    >>> other.own = {"jfk": Pushed("alice", "0f" * 16)}
    >>> for part in other.report():
    ...     presence.receive("n2", part)
    True
    >>> presence.find("jfk")
    {'n2': Pushed(peer='alice', log='0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f')}
    """

    def __init__(self) -> None:
        self.own: Mapping[str, Pushed] = {}
        self.now_s = 0.0
        self._told: dict[str, tuple[float, Mapping[str, Pushed]]] = {}  # time and report by node
        self._parts: dict[
            str, PresencePart
        ] = {}  # by node, the parts received of an incomplete report

    def receive(self, sender: str, data: bytes) -> bool:
        """Record a part of another node's report, which takes effect once it is complete.

        Returns:
            Whether this completes a report that differs from the one before.

        Raises:
            PeerError: the part is malformed; nothing was recorded.
        """
        part, before = decode_part(data), self._parts.pop(sender, None)
        if not part.is_first:
            if before is None or before.left != len(part.pushed) + part.left:
                return False  # a part was lost; the whole report will be repeated
            part = PresencePart(True, {**before.pushed, **part.pushed}, part.left)
        if part.left:
            self._parts[sender] = part
            return False
        _, told = self._told.get(sender, (0.0, None))
        self._told[sender] = (self.now_s, part.pushed)
        return part.pushed != told

    def report(self) -> list[bytes]:
        """Return this node's report, in parts."""
        items, left, parts = iter(self.own.items()), len(self.own), list[bytes]()
        while (part := dict(islice(items, _PART_SESSIONS))) or not parts:
            left -= len(part)
            parts.append(encode_part(PresencePart(not parts, part, left)))
        return parts

    def forget(self) -> None:
        """Forget other nodes' reports, which may be old, because this node begins to lead."""
        self._told, self._parts = {}, {}

    def reports(self, members: Collection[str]) -> list[Mapping[str, Pushed]]:
        """Return the reports of this node and of each node heard from in the last `HEARD_S`.

        A session may have different publishers in two reports, because a lagging node does not know
        the owner yet and may admit another publisher.

        Args:
            members: the other nodes; reports of any other node are forgotten.
        """
        self._told = {name: told for name, told in self._told.items() if name in members}
        return [self.own, *(self._told[node][1] for node in self.heard())]

    def find(self, session: str) -> dict[str, Pushed]:
        """For each other node that reports a publisher of the session, return that publisher.

        Reports older than `HEARD_S` are ignored.
        """
        return {
            node: by
            for node in self.heard()
            if (by := self._told[node][1].get(session)) is not None
        }

    def heard(self) -> list[str]:
        """Return the nodes whose last complete report is less than `HEARD_S` old."""
        return [name for name, (at_s, _) in self._told.items() if self.now_s - at_s < HEARD_S]


def encode_part(part: PresencePart) -> bytes:
    """Encode a part of a report."""
    parts = [_HEAD.pack(part.is_first, len(part.pushed), part.left)]
    for session, (peer, log) in part.pushed.items():
        name, by = session.encode(), peer.encode()
        parts += (_ITEM.pack(len(name), len(by), bytes.fromhex(log)), name, by)
    return b"".join(parts)


def decode_part(data: bytes) -> PresencePart:
    """Decode the bytes of `encode_part`; `PeerError` if they are anything else."""
    try:
        first, count, left = _HEAD.unpack_from(data)
        if first > 1:
            raise PeerError("a report whose first byte is neither 0 nor 1")
        if count > _PART_SESSIONS or count + left > PUSHED_MAX:
            raise PeerError(
                f"a report of {count + left} sessions that are pushed to it; {PUSHED_MAX} is the "
                "maximum, and beyond it no session is opened or closed on account of that node"
            )
        found, offset = dict[str, Pushed](), _HEAD.size
        for _ in range(count):
            name_length, peer_length, log = _ITEM.unpack_from(data, offset)
            middle = offset + _ITEM.size + name_length
            name = decode_session(data[offset + _ITEM.size : middle])
            peer = data[middle : middle + peer_length].decode("ascii")
            found[name] = Pushed(parse_peer(peer), log.hex())
            offset = middle + peer_length
    except (struct.error, UnicodeDecodeError, Misuse) as error:
        raise PeerError(f"unreadable report of what is pushed: {error}") from None
    if len(found) != count:
        raise PeerError("a report names a session twice")
    if offset != len(data):
        raise PeerError("a report is followed by bytes that do not belong to it")
    return PresencePart(bool(first), found, left)
