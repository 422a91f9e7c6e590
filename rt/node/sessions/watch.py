"""SessionWatch: decides, on the leader, which sessions are opened, closed or expired."""

from collections.abc import Collection, Mapping
from typing import Final, NamedTuple

from rt.errors import Refused
from rt.events import SessionChange
from rt.node.ingest.inbox import NodeInbox
from rt.node.ingest.inboxes import Inboxes
from rt.node.retain.retention import Retention
from rt.node.sessions.policy import SessionPolicy, session_policy_of_notes
from sequencer.ledger.instruction import LIVES_MAX, Lives
from sequencer.ledger.life import Life
from sequencer.ledger.session_facts import Ownership
from sequencer.member import Member
from sequencer.planning.presence import Pushed

PRESENCE: Final = b"\x0a"  # the kind of message; see `Member.handlers`
_LOOK_S: Final = 2.0  # checking 10,000 sessions takes 25 ms
_LOOKS: Final = 4  # number of checks before a session is closed
_OPENED, _RESUMED = SessionChange.OPENED, SessionChange.RESUMED
_CLOSED, _EXPIRED = SessionChange.CLOSED, SessionChange.EXPIRED
_REPORT_S: Final = 5.0  # reports may be lost; changes are reported at once


class Due(NamedTuple):
    """Due: what must happen before a session expires.

    Attributes:
        settled: the instruction up to which a majority's merged logs must be durable.
        reported: the number of a round of reports; a majority must report in a later round.
    """

    settled: int
    reported: int


class SessionWatch:
    """SessionWatch: reports which sessions are pushed here; a leader opens and ends sessions.

    The leader measures silence with its monotonic clock, beginning once a majority has reported.
    How long a session has been closed is measured from the agreed time of the instruction that
    closed it. Executing an instruction reads no clock. Only the thread that steps the duties calls
    this class.

    Attributes:
        fresh: sessions that may not be open yet. A session is opened before its first message is
            merged. So a turn is due before anything is merged while there are such sessions, and
            after this node has begun or ceased to lead.
        led: whether this node led at the last turn.
        next_look_s: when all sessions are checked again.
    """

    def __init__(self, member: Member, sessions: Inboxes, clock: Retention) -> None:
        """Prepare, and subscribe to the other nodes' reports.

        Args:
            member: this node's member.
            sessions: the copies on this node.
            clock: provides the agreed time of day.
        """
        self._member, self._presence = member, member.holdings.presence
        self._sessions = sessions
        self._clock = clock
        self._now_s = float("-inf")
        self.next_look_s = float("-inf")
        self._reported: tuple[str, Mapping[str, Pushed]] = ("", {})  # leader, and last report
        self._reported_s = float("-inf")
        self.led = False
        self._has_news = False  # whether anything changed since the last check
        self.fresh: dict[str, None] = {}
        self._silent_s: dict[str, float] = {}  # since when nothing pushes a session
        self._due: dict[str, Due] = {}  # sessions to expire
        self._ordered: Lives | None = None  # the last order; the next one follows its execution
        member.handlers[PRESENCE] = self._hear
        member.proposals.may_begin = self._may_be_merged

    @property
    def policy(self) -> SessionPolicy:
        """The stream's policy, the same on every node."""
        return session_policy_of_notes(self._member.executor.ledger.notes)

    @property
    def is_deciding(self) -> bool:
        """Whether a session may soon be opened, closed or expired, while this node leads.

        Also true if publishers came or went, here or at another node, since the last check.
        """
        return bool(self._has_news or self.fresh or self._silent_s or self._due)

    def turn(self, now_s: float, changed: Collection[str], *, is_stirred: bool = False) -> None:
        """Open new sessions; if it is time, check all sessions.

        Args:
            now_s: a monotonic clock, in seconds.
            changed: sessions whose copy here has grown or is new.
            is_stirred: whether a publisher may have come or gone.
        """
        self._now_s, member = now_s, self._member
        self._has_news = self._has_news or is_stirred
        self._presence.now_s = now_s
        led, self.led = self.led, member.engine.leads
        if self.led and not led:
            self._presence.forget()
        is_time = now_s >= self.next_look_s or (self.led and not led)
        if is_time:
            self.next_look_s = now_s + min(_LOOK_S, self.policy.close_s / _LOOKS)
            self._has_news = False
            self._see_own()
            self._report()
        if not self.led:
            if is_time or led:
                self.fresh, self._silent_s, self._due = {}, {}, {}
            return
        if changed:
            opened = self._opened
            new = [each for each in changed if not _is_bound(opened.get(each))]
            self.fresh.update(dict.fromkeys(new))
        if (is_time or self.fresh) and not (
            member.proposals.is_under_way(self._ordered) or member.execution.suspended
        ):
            self._order(self._look() + self._openings() if is_time else self._openings())

    def _may_be_merged(self, session: str) -> bool:
        """Whether the first message of a session may be merged: the merged log names its owner."""
        return _is_bound(self._opened.get(session))

    @property
    def _opened(self) -> dict[str, Ownership]:
        return self._member.executor.ledger.opened

    def _see_own(self) -> None:
        """Record what is pushed here, and which copies are of sessions not opened yet."""
        own, opened = dict[str, Pushed](), self._opened
        for copy in self._sessions.every():
            session = copy.session
            if (by := _pusher(copy)) is not None:
                own[session] = by
            if not _is_bound(opened.get(session)):
                self.fresh[session] = None
        self._presence.own = own

    def _hear(self, sender: str, body: bytes) -> None:
        if self._presence.receive(sender, body):
            self._has_news = True

    def _report(self) -> None:
        leader, own = self._member.engine.leader, self._presence.own
        if not leader or leader == self._member.name:
            return
        if (leader, own) != self._reported or self._now_s - self._reported_s >= _REPORT_S:
            for part in self._presence.report():
                self._member.send(leader, PRESENCE, part)
            self._reported, self._reported_s = (leader, own), self._now_s

    def _order(self, lives: list[Life]) -> None:
        if lives:
            self._ordered = Lives(self._clock.now_ns, tuple(lives[:LIVES_MAX]))
            try:
                self._member.order(self._ordered, first=True)  # messages wait for it
            except Refused:
                return  # another node leads now

    def _openings(self) -> list[Life]:
        """Return changes that open each session that is pushed or held but is not open yet.

        A session that was open before, and was reset, is resumed instead.
        """
        found = dict[str, Pushed]()
        for session in self.fresh:
            may_begin = (by for by in self._candidates(session) if self._may_begin(session, by))
            if (by := next(may_begin, None)) is not None:
                found[session] = by
        opened = self._opened
        self.fresh = dict.fromkeys(found)  # until they are open: an order may get lost
        return [
            self._life(_RESUMED if each in opened else _OPENED, each, by)
            for each, by in [*found.items()][:LIVES_MAX]
        ]

    def _candidates(self, session: str) -> list[Pushed]:
        """Return the logs that could get a session's free name, each with its publisher.

        These are the logs pushed to any node; if this node has a copy, only the copy's log.
        """
        copy, elsewhere = self._sessions.get(session), [*self._presence.find(session).values()]
        if copy is None:
            return elsewhere
        log = copy.appender.identity.id  # it may be partly merged, so it excludes other logs
        here, same = _pusher(copy), [by for by in elsewhere if by.log == log]
        return [here, *same] if here is not None else same or [Pushed("", log)]

    def _may_begin(self, session: str, by: Pushed) -> bool:
        """Whether a session's name may be bound to this log."""
        known = self._opened.get(session)
        # a report may precede the retirement of its log
        is_late = self._member.executor.ledger.is_retired(session, by.log)
        is_free = known is None or (not known.log and known.owner in {"", by.peer or known.owner})
        return is_free and bool(by.log) and not is_late

    def _look(self) -> list[Life]:
        """Check all sessions; return changes for those that returned, fell silent or expired."""
        member, opened = self._member, self._opened
        reports = self._presence.reports(member.holdings.others)
        unbound = (each for report in reports for each in report if not _is_bound(opened.get(each)))
        self.fresh.update(dict.fromkeys(unbound))
        if not member.holdings.hears_publishers:
            self._silent_s, self._due = {}, {}
            return []
        silent, due, found, policy = dict[str, float](), dict[str, Due](), list[Life](), self.policy
        for session, known in opened.items():
            if (by := _admitted(reports, session, known)) is not None:
                if known.log and (known.closed_ns or not known.owner):
                    found.append(self._life(_RESUMED, session, by))
            elif not known.closed_ns:
                silent[session] = self._silent_s.get(session, self._now_s)
                if self._now_s - silent[session] >= policy.close_s:
                    found.append(self._life(_CLOSED, session, Pushed("", "")))
            elif policy.expire_s and self._is_over(session, known, policy):
                first = Due(member.executor.ledger.index, member.holdings.round)
                due[session] = self._due.get(session, first)
                if self._may_expire(session, due[session]):
                    found.append(self._life(_EXPIRED, session, Pushed("", known.log)))
        self._silent_s, self._due = silent, due
        return found

    def _is_over(self, session: str, known: Ownership, policy: SessionPolicy) -> bool:
        """Whether a session was closed long enough, and all of it that a majority has is merged."""
        if self._clock.now_ns - known.closed_ns < policy.expire_s * 1e9:
            return False
        merged_to = self._member.executor.ledger.merged_to(session)
        return self._member.holdings.agreed(session) <= merged_to

    def _may_expire(self, session: str, due: Due) -> bool:
        """Whether all of a session that a majority may hold is merged, and durably so.

        Until then, a power cut may leave merged messages only in the copies, which expiry removes.
        """
        merged_to = self._member.executor.ledger.merged_to(session)
        may_hold_more = self._member.holdings.may_reach(session, merged_to, due.reported)
        return self._clock.settled_index >= due.settled and not may_hold_more

    def _life(self, change: SessionChange, session: str, by: Pushed) -> Life:
        known = self._opened.get(session)
        return Life(
            self._clock.now_ns, change, session, self._member.executor.ledger.merged_to(session),
            log=by.log, owner=by.peer, since=0 if known is None else known.since,
        )  # fmt: skip


def _is_bound(known: Ownership | None) -> bool:
    """Whether the nodes have agreed which log may be pushed under the session's name."""
    return known is not None and bool(known.log)


def _admitted(
    reports: Collection[Mapping[str, Pushed]], session: str, known: Ownership
) -> Pushed | None:
    """Return the publisher that pushes a session and is allowed to; None if no node reports one.

    Nodes that lag may have admitted other publishers.
    """
    for report in reports:
        if (by := report.get(session)) is not None and known.admits(*by):
            return by
    return None


def _pusher(copy: NodeInbox) -> Pushed | None:
    """Return the publisher that pushes a session to its copy here, if any."""
    peer = copy.peer  # read once: it may leave at any moment
    return Pushed(peer, copy.appender.identity.id) if peer and copy.is_fed else None
