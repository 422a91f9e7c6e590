"""Holdings: how much of each session each node, and a majority, holds durably."""

import struct
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from enum import IntEnum
from itertools import islice
from typing import Final, NamedTuple

from rt.errors import Misuse, PeerError
from rt.names import decode_session
from rt.position import START, Position
from sequencer.planning.presence import Presence
from sequencer.raft.quorum import majority_of, reached

_HEAD: Final = struct.Struct("<BII")  # kind, sessions in this part, sessions in later parts
_ITEM: Final = struct.Struct("<QB")
SESSIONS_MAX: Final = 100_000  # in one part: 7 MB at most
# Larger reports are split: a heartbeat must not wait until 7 MB are sent, and there may be more
# sessions than a receiver accepts in one part.
_PART_SESSIONS: Final = 10_000
_LATE_ROUNDS: Final = 5  # of reports, at 0.4 s each
_END_MAX: Final = 1 << 63


class ReportKind(IntEnum):
    """ReportKind: how a report relates to earlier ones."""

    CHANGES = 0  # updates earlier reports
    FIRST = 1  # replaces earlier reports: the first part of a full report
    FURTHER = 2  # continues a full report


class Report(NamedTuple):
    """Report: what a node says it holds.

    Attributes:
        kind: whether it replaces or updates earlier reports.
        items: the durable end of each session.
        left: the number of sessions in the parts that follow.
    """

    kind: ReportKind
    items: dict[str, Position]
    left: int = 0


class Holdings:
    """Holdings: how much of each session every member holds, as the members report it.

    The reports are up to date on the leader, and slightly late on other nodes.
    """

    def __init__(self, name: str, members: Iterable[str]) -> None:
        self._name = name
        self._held: dict[str, dict[str, Position]] = {}
        self.voters: tuple[str, ...] = ()
        self._left: dict[str, int] = {}  # by member, sessions yet to come of its full report
        self._heard: dict[str, int] = {}  # by member, the round of its last full report
        self._executed: dict[str, int] = {}  # by member, as of its last report
        self.round = 1  # how many full reports have been due
        self.follow(list(members))
        self.unreported: dict[str, None] = {}  # for its order
        self.own: Mapping[str, Position] = self._held[name]  # durable here, by session
        self.presence = Presence()

    def follow(self, voters: Sequence[str], more: Iterable[str] = ()) -> None:
        """Use the members of a changed configuration from now on.

        Args:
            voters: the members that vote.
            more: other nodes that report what they hold, such as learners.
        """
        names = dict.fromkeys([self._name, *voters, *more])
        self._executed = {name: at for name, at in self._executed.items() if name in names}
        self._held = {name: self._held.get(name, {}) for name in names}
        self.others = tuple(name for name in names if name != self._name)
        self.voters = tuple(voters)
        self._majority = majority_of(len(self.voters))
        # `agreed` reads these for each session; without voters it finds nothing agreed.
        self._voted = [self._held[voter] for voter in voters] or [{}]

    def copied(self, session: str = "") -> "Holdings":
        """Return a copy for another thread: the members, and the ends of all sessions or of one.

        What else is known of the members, such as when they reported, is not copied.
        """
        copy = Holdings(self._name, ())
        for name, ends in self._held.items():
            one = {session: ends[session]} if session in ends else {}
            copy._held[name] = one if session else dict(ends)
        copy.follow(self.voters, self.others)
        copy.own = copy._held[self._name]
        return copy

    def record_durable(self, session: str, end: Position) -> None:
        """Record that this node holds `session` durably up to `end`."""
        self._held[self._name][session] = end
        self.unreported[session] = None

    def agreed(self, session: str) -> Position:
        """The end up to which a majority holds `session` durably."""
        held = list[Position]()
        for ends in self._voted:
            held.append(ends.get(session, START))
        held.sort()
        return held[-self._majority]  # like `reached`, with a third of the calls

    def short(self, sessions: Iterable[str]) -> Iterator[str]:
        """Yield the sessions of which a majority holds more durably than this node."""
        others = [ends for ends in self._voted if ends is not self.own]
        for session in sessions:  # every waiting session, 50 times a second
            here, ahead = self.own.get(session, START), 0
            for ends in others:
                if ends.get(session, START) > here:
                    ahead += 1
            if ahead >= self._majority:
                yield session

    def reached_by_majority(self, values: Mapping[str, int]) -> int:
        """Return the largest number that a majority of the voters has reached.

        Args:
            values: a number per voter; one without a number has reached 0.
        """
        return reached([values.get(voter, 0) for voter in self.voters], self._majority)

    def of(self, member: str) -> Mapping[str, Position]:
        """The durable end of each session, as a member reported it."""
        return self._held[member]

    def may_reach(self, session: str, beyond: Position, since: int) -> bool:
        """Whether, as far as this node knows, a majority may hold more of `session` than `beyond`.

        Args:
            session: its name.
            beyond: the end to compare with.
            since: an earlier `round`. A member without a full report since then may hold anything:
                its earlier reports may be from before the last election.
        """
        heard = {self._name, *(name for name, at in self._heard.items() if at > since)}
        able = [
            voter not in heard or self._held[voter].get(session, START) > beyond
            for voter in self.voters
        ]
        return sum(able) >= self._majority

    def executes(self, member: str, index: int) -> None:
        """Record the last instruction that a member reports as executed."""
        self._executed[member] = index

    def executed_by(self, member: str) -> int:
        """Return the last instruction that a member reported as executed; 0 if it never did."""
        return self._executed.get(member, 0)

    @property
    def heard_lately(self) -> list[str]:
        """The other members whose full reports arrive on time."""
        last = self.round - _LATE_ROUNDS
        return [name for name in self.others if self._heard.get(name, 0) > last]

    @property
    def hears_publishers(self) -> bool:
        """Whether a majority of the voters, including this node, report who pushes to them.

        If so, a publisher that pushes to a majority is in at least one of these reports, since any
        two majorities overlap.
        """
        heard = {self._name, *self.presence.heard()}
        return len(heard.intersection(self.voters)) >= self._majority

    def drop(self, session: str) -> None:
        """Record that every node's copy of `session` was dropped."""
        for ends in self._held.values():
            ends.pop(session, None)
        self.record_durable(session, START)

    def take_report(self, sender: str, data: bytes, outdated: Collection[str] = ()) -> list[str]:
        """Record a member's report; return the sessions in it, without the outdated ones.

        Args:
            sender: the member.
            data: the report.
            outdated: sessions to ignore: an instruction dropped their copies, and the member had
                not executed it when it sent this report.

        Raises:
            PeerError: the report is malformed, or the sender is not a member; nothing was recorded.
        """
        report = decode_report(data)
        held = self._held.get(sender)
        if held is None:
            raise PeerError(f"{sender!r} is not a member, yet reports what it holds")
        if report.kind is ReportKind.FIRST:
            held.clear()  # a member that lost its disk holds less than it did
        self._note_part(sender, report)
        for session in outdated:
            report.items.pop(session, None)
        held.update(report.items)
        return list(report.items)

    def _note_part(self, sender: str, report: Report) -> None:
        """Record whether a member's full report is complete; a part may have been lost."""
        if report.kind is ReportKind.CHANGES:
            return
        expected = self._left.pop(sender, -1)
        if report.kind is ReportKind.FIRST:
            self._heard.pop(sender, None)
        elif expected != len(report.items) + report.left:
            return
        if report.left:
            self._left[sender] = report.left
        else:
            self._heard[sender] = self.round

    def changes(self) -> list[bytes]:
        """Return reports of the changes since the last ones; none if nothing has changed."""
        if not self.unreported:
            return []
        items = {session: self.own[session] for session in self.unreported}
        self.unreported.clear()
        return encode_reports(items, whole=False)

    def whole(self) -> list[bytes]:
        """Return full reports of what this node holds, which replace any that were lost.

        Sessions of which this node holds nothing are left out: a full report replaces earlier ones,
        so it need not list them, and there may be any number of them.
        """
        self.unreported.clear()
        return encode_reports({each: end for each, end in self.own.items() if end}, whole=True)


def encode_reports(items: Mapping[str, Position], *, whole: bool) -> list[bytes]:
    """Encode any number of sessions as reports; if `whole`, the first replaces earlier reports."""
    rest, left, reports = iter(items.items()), len(items), list[bytes]()
    further = ReportKind.FURTHER if whole else ReportKind.CHANGES
    while (part := dict(islice(rest, _PART_SESSIONS))) or not reports:
        kind, left = further if reports or not whole else ReportKind.FIRST, left - len(part)
        reports.append(encode_report(Report(kind, part, left if whole else 0)))
    return reports


def encode_report(report: Report) -> bytes:
    """Encode a report: kind, numbers of sessions in it and after it, then each end and name."""
    parts = [_HEAD.pack(report.kind, len(report.items), report.left)]
    for session, end in report.items.items():
        name = session.encode()
        parts += (_ITEM.pack(end, len(name)), name)
    return b"".join(parts)


def decode_report(data: bytes) -> Report:
    """Decode a report; `PeerError` if it is malformed."""
    try:
        kind, count, left = _HEAD.unpack_from(data)
        if kind > ReportKind.FURTHER or count > SESSIONS_MAX:
            raise PeerError("a report of more sessions than there can be")
        items, offset = dict[str, Position](), _HEAD.size
        for _ in range(count):
            end, length = _ITEM.unpack_from(data, offset)
            if end >= _END_MAX:
                raise PeerError("a report of a position that no log has")
            begin = offset + _ITEM.size
            offset = begin + length
            items[decode_session(data[begin:offset])] = Position(end)
    except (struct.error, UnicodeDecodeError, Misuse) as error:
        raise PeerError(f"unreadable report: {error}") from None
    if len(items) != count:
        raise PeerError("a report names a session twice")
    if offset != len(data):
        raise PeerError("a report is followed by bytes that do not belong to it")
    return Report(ReportKind(kind), items, left)
