"""Holdings: up to where each node holds each session durably, and what a majority holds."""

import struct
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import islice
from typing import Final, NamedTuple

from rt.errors import Misuse, PeerError
from rt.names import parse_session
from rt.position import START, Position
from sequencer.presence import Presence
from sequencer.raft.quorum import majority_of, reached

_HEAD: Final = struct.Struct("<BI")
_ITEM: Final = struct.Struct("<QB")
SESSIONS_MAX: Final = 100_000  # in one report: 7 MB at most
# Larger reports are split: a heartbeat must not wait until 7 MB are sent, and there may be more
# sessions than a receiver accepts in one.
_PART_SESSIONS: Final = 10_000
# Whole reports that may fail to come, at 0.4 s each: 16 s, a little longer than presence waits.
SILENT_MAX: Final = 40
_END_MASK: Final = (1 << 63) - 1
_FED: Final = 1 << 63  # beside an end: the session's publisher is connected


class Report(NamedTuple):
    """What a node says it holds.

    Attributes:
        is_whole: whether it retracts what was reported earlier.
        items: up to where each session is held durably.
        fed: those of them whose publisher is connected, if it is whole.
    """

    is_whole: bool
    items: dict[str, Position]
    fed: Collection[str]


class Holdings:
    """What every member has reported: current on the leader, a little late on the others."""

    def __init__(self, name: str, members: Iterable[str]) -> None:
        self._name = name
        self._held: dict[str, dict[str, Position]] = {}
        self._voters: tuple[str, ...] = ()
        self._fed: dict[str, set[str]] = {}  # by member, the sessions whose publisher it serves
        self._silent: dict[str, int] = {}  # by member, whole reports that were due since its last
        self.fed: Callable[[], Collection[str]] = lambda: ()  # those of this node
        self.follow(list(members))
        self._unreported: dict[str, None] = {}  # for its order
        self.own: Mapping[str, Position] = self._held[name]  # durable here, by session
        self.presence = Presence()

    @property
    def others(self) -> tuple[str, ...]:
        """All members but this node, learners included."""
        return self._others

    @property
    def voters(self) -> tuple[str, ...]:
        """The members of which a majority decides."""
        return self._voters

    def follow(self, voters: Sequence[str], more: Iterable[str] = ()) -> None:
        """Take up another configuration.

        Args:
            voters: the members that vote.
            more: other nodes that report what they hold, such as learners.
        """
        names = dict.fromkeys([self._name, *voters, *more])
        self._held = {name: self._held.get(name, {}) for name in names}
        self._others = tuple(name for name in names if name != self._name)
        self._voters = tuple(voters)
        self._majority = majority_of(len(self._voters))

    def hold(self, session: str, end: Position) -> None:
        """This node now holds `session` durably up to `end`."""
        self._held[self._name][session] = end
        self._unreported[session] = None

    def agreed(self, session: str) -> Position:
        """Up to where a majority holds `session` durably."""
        held = [self._held[voter].get(session, START) for voter in self._voters]
        return Position(reached(held, self._majority))

    def reached_by_majority(self, values: Mapping[str, int]) -> int:
        """Return the largest number that a majority of the members has reached.

        Args:
            values: a number per voter; one without a number has reached 0.
        """
        return reached([values.get(voter, 0) for voter in self._voters], self._majority)

    def of(self, member: str) -> Mapping[str, Position]:
        """What a member said it holds."""
        return self._held[member]

    def fed_by(self, session: str) -> list[str]:
        """The other members that lately had a session's publisher connected."""
        return [name for name, fed in self._fed.items() if session in fed and name in self._held]

    def await_reports(self) -> None:
        """Take note that every member's whole report is due.

        What one that is silent for long has said of its publishers is forgotten: it may be gone
        for good, and its publishers with it.
        """
        for name in list(self._fed):
            self._silent[name] = self._silent.get(name, 0) + 1
            if self._silent[name] >= SILENT_MAX:
                del self._fed[name], self._silent[name]

    def drop(self, session: str) -> None:
        """No node holds anything of `session` any more: the copies of all were dropped."""
        for ends in self._held.values():
            ends.pop(session, None)
        self.hold(session, START)

    def take_report(self, sender: str, data: bytes, outdated: Collection[str] = ()) -> list[str]:
        """Take a member's report; return the sessions in it.

        Args:
            sender: the member.
            data: the report.
            outdated: sessions whose copies were dropped by an instruction that the member had not
                executed: what it holds of them is gone, or about to be.

        Raises:
            PeerError: the report is malformed; nothing of it was taken.
        """
        is_whole, items, fed = decode_report(data)
        for session in outdated:
            items.pop(session, None)
        held = self._held.get(sender)
        if held is None:
            raise PeerError(f"{sender!r} is not a member, yet reports what it holds")
        if is_whole:
            held.clear()  # a member that lost its disk holds less than it did
            self._fed[sender] = set()
            self._silent.pop(sender, None)
        self._fed.setdefault(sender, set()).update(fed)
        held.update(items)
        return list(items)

    def changes(self) -> list[bytes]:
        """Return reports of what changed since the last ones; none if nothing did."""
        if not self._unreported:
            return []
        items = {session: self.own[session] for session in self._unreported}
        self._unreported.clear()
        return encode_reports(items, whole=False)

    def whole(self) -> list[bytes]:
        """Return reports of everything: earlier ones may have been lost.

        They retract what they do not name, so sessions of which nothing is held are left out: there
        may be any number of them that were forgotten.
        """
        self._unreported.clear()
        fed = frozenset(self.fed())
        items = {each: end for each, end in self.own.items() if end or each in fed}
        return encode_reports(items, fed, whole=True)


def encode_reports(
    items: Mapping[str, Position], fed: Collection[str] = (), *, whole: bool
) -> list[bytes]:
    """Lay out reports of any number of sessions; only the first of them retracts what was said."""
    left, reports = iter(items.items()), list[bytes]()
    while (part := dict(islice(left, _PART_SESSIONS))) or not reports:
        reports.append(encode_report(part, fed, whole=whole and not reports))
    return reports


def encode_report(
    items: Mapping[str, Position], fed: Collection[str] = (), *, whole: bool
) -> bytes:
    """Lay out a report: whether it is whole, the number of sessions, then end and name of each."""
    parts = [_HEAD.pack(whole, len(items))]
    for session, end in items.items():
        name = session.encode()
        parts += (_ITEM.pack(end | (_FED if session in fed else 0), len(name)), name)
    return b"".join(parts)


def decode_report(data: bytes) -> Report:
    """Read a report; after a `PeerError` nothing of it was taken."""
    try:
        whole, count = _HEAD.unpack_from(data)
        if whole > 1 or count > SESSIONS_MAX:
            raise PeerError("a report of more sessions than there can be")
        items, fed, offset = dict[str, Position](), set[str](), _HEAD.size
        for _ in range(count):
            end, length = _ITEM.unpack_from(data, offset)
            name = data[offset + _ITEM.size : offset + _ITEM.size + length].decode("ascii")
            items[str(parse_session(name))] = Position(end & _END_MASK)
            if end & _FED:
                fed.add(name)
            offset += _ITEM.size + length
    except (struct.error, UnicodeDecodeError, Misuse) as error:
        raise PeerError(f"unreadable report: {error}") from None
    if offset != len(data):
        raise PeerError("a report is followed by bytes that do not belong to it")
    return Report(bool(whole), items, fed)
