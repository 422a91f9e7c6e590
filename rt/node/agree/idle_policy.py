"""IdlePolicy: when a node stops ticking an idle stream, and when it resumes."""

from collections.abc import Mapping, Set
from typing import Final, Protocol

from rt.node.sessions.watch import SessionWatch
from sequencer.member import Member
from sequencer.planning.wants import is_even
from sequencer.raft.consensus import Quiescence

_QUIET_S: Final = 0.5  # after so long without events, one step may advance several ticks


class IdleHeartbeat(Protocol):
    """The methods of a stream's idle heartbeat that `IdlePolicy` uses; see `idle_heartbeat`."""

    def show(self, quiescence: Quiescence | None) -> None:
        """Announce this node's idle position; None withdraws it."""

    def heard(self) -> Mapping[str, Quiescence]:
        """Return the idle positions that other members have announced recently, by name."""


class IdlePolicy:
    """IdlePolicy: decides when the consensus of a stream needs no ticks.

    A node is quiescent while it has nothing to do and nothing to agree on. A leader that has been
    quiescent for a while announces its position in the heartbeat that its process sends for all its
    streams. A follower that hears this, and has been quiescent at the same position, announces the
    position too and stops ticking. The leader stops ticking once all followers have announced it.

    A node resumes when its own quiescence ends. A follower also resumes when its leader's
    announcement is missing, and a leader resumes when any follower's announcement is. So a node
    that withdraws its announcement ends the others' rest. A lost announcement can end a rest early,
    but cannot prolong it.

    The leader does not wait for followers that are away. A follower is away if it has not answered
    the leader for an election timeout and announces nothing. Any message from such a follower ends
    the leader's rest, and the others stay awake until the leader has brought the follower up to
    date.

    Only the thread that steps the duties calls this class.
    """

    def __init__(
        self,
        member: Member,
        idle_heartbeat: IdleHeartbeat,
        watch: SessionWatch,
        *,
        quiescent_s: float,
        easy_ticks: int,
    ) -> None:
        """Start awake.

        Args:
            member: this node's member.
            idle_heartbeat: the stream's idle heartbeat.
            watch: opens and closes sessions.
            quiescent_s: seconds that a leader must be quiescent before it announces this; a
                follower waits half as long.
            easy_ticks: how many ticks one step may advance while nothing happens: at most a
                heartbeat interval.
        """
        self._member, self._idle_heartbeat, self._watch = member, idle_heartbeat, watch
        self._quiescent_s, self._easy_ticks = quiescent_s, easy_ticks
        self._place: Quiescence | None = None
        self._since_s = float("inf")  # since when this node has been quiescent at `_place`
        self._quiet_s = float("inf")  # since when nothing has happened; inf if something just did
        self._is_shown = False  # whether `_place` is announced
        self.is_quiet = True  # whether nothing was under way at the last decision
        self.is_resting = False
        self.away: Set[str] = frozenset()  # members that a leader does not wait for
        self.ticks = 1  # ticks of the consensus per timed step; 0 at rest

    def decide(self, now_s: float, *, is_loud: bool) -> bool:
        """Decide after a step whether to rest; announce or withdraw the idle position.

        Args:
            now_s: a monotonic clock, in seconds.
            is_loud: whether something arrived that a node at rest does not expect.

        Returns:
            Whether to rest.
        """
        self.is_quiet = is_quiet = not (is_loud or self._is_busy)
        self._quiet_s = min(self._quiet_s, now_s) if is_quiet else float("inf")
        place = self._quiescent_place() if is_quiet else None
        if place is None or place != self._place:
            self._place, self._since_s = place, now_s
        if place is not None:
            self.away = self._member.engine.away
            self.is_resting = self._may_rest(now_s)
        else:
            self.away, self.is_resting = frozenset(), False
            if self._is_shown:
                self._show(None)
        self.ticks = self._easy_ticks if now_s - self._quiet_s >= _QUIET_S else 1
        if self.is_resting:
            self.ticks = 0
        return self.is_resting

    def _may_rest(self, now_s: float) -> bool:
        """Announce the idle position when due; return whether this node may rest.

        If this node may rest, the members that announce the same position count as heard from,
        because no Raft heartbeat asks them for a reply meanwhile.
        """
        place, engine = self._place, self._member.engine
        others = set(self._member.holdings.others)
        if not others:
            return True
        is_due = self._is_due(now_s)
        heard = self._idle_heartbeat.heard() if is_due else {}
        there = {name for name in others & heard.keys() if heard[name] == place}
        if engine.leads:
            is_shown, is_enough = is_due, others - (self.away - heard.keys()) <= there
        else:
            is_shown = is_enough = engine.leader in there
        self._show(place if is_shown else None)
        if is_due and is_enough:
            engine.vouch(there)
        return is_due and is_enough

    def _show(self, place: Quiescence | None) -> None:
        self._idle_heartbeat.show(place)
        self._is_shown = place is not None

    def _is_due(self, now_s: float) -> bool:
        """Whether this node has been quiescent for long enough, with all copies up to date."""
        quiescent_s = self._quiescent_s if self._member.engine.leads else self._quiescent_s / 2
        if now_s - self._since_s < quiescent_s:
            return False
        if not is_even(self._member.holdings, self._member.executor.ledger):
            self._since_s = now_s  # checking many sessions takes a while, so do not repeat it soon
            return False
        return True

    @property
    def _is_busy(self) -> bool:
        """Whether something is in progress."""
        member = self._member
        return bool(
            member.execution.queue
            or member.proposals.undecided
            or member.proposals.orders
            or member.execution.suspended
            or member.executor.lacks_log
        )

    def _quiescent_place(self) -> Quiescence | None:
        """The end of the log if this node is quiescent; None while the node waits for anything.

        A node keeps ticking until a snapshot covers everything it has executed.
        """
        member = self._member
        is_waiting = (
            member.execution.saved_index < member.executor.ledger.index
            or member.restart_check.waits_for
            or member.proposals.stuck
            or member.membership.doors.leaving  # ticks limit how long removed nodes stay connected
            or self._watch.is_deciding
        )
        return None if is_waiting else member.engine.quiescence
