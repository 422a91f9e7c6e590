"""IdlePolicy: when a node stops the clock of an idle stream, and when it goes on."""

from collections.abc import Mapping, Set
from typing import Final, Protocol

from rt.node.sessions.watch import SessionWatch
from sequencer.member import Member
from sequencer.planning.wants import is_even
from sequencer.raft.consensus import Quiescence

_QUIET_S: Final = 0.5  # a stream in which this long nothing happened needs fewer steps


class IdleHeartbeat(Protocol):
    """What processes tell each other of the streams that rest there; see `idle_heartbeat`."""

    def show(self, calm: Quiescence | None) -> None:
        """Tell the other members that this node rests there; None takes it back."""

    def heard(self) -> Mapping[str, Quiescence]:
        """Return where other members say that they rest, of those heard lately."""


class IdlePolicy:
    """Decides when the consensus of a stream needs no ticks.

    A node is calm while it has nothing to do and nothing to agree on. A leader that has been calm
    for a while says so, in the heartbeat that its process sends for all its streams; a follower
    that has been calm at the same place answers in that of its own, and stops its timers. Once all
    have answered, the leader stops too. Each goes on as soon as it is not calm, or does not hear
    that the other is: a follower that its leader is, a leader that everyone is. So what ends the
    rest needs no message of its own, and a message that was lost ends it.

    A member that is away does not keep the others awake: it answers no heartbeat, and says nothing
    itself. One that is up does, until a leader has brought it up to date, so whatever it says ends
    the rest of the leader.

    Only the thread that steps the duties calls it.
    """

    def __init__(
        self,
        member: Member,
        pulse: IdleHeartbeat,
        watch: SessionWatch,
        *,
        calm_s: float,
        easy_ticks: int,
    ) -> None:
        """Be awake.

        Args:
            member: of this node.
            pulse: to and from the other members.
            watch: decides over sessions.
            calm_s: for how long a leader is calm before it says so, and a follower half of it.
            easy_ticks: how many ticks at once are enough while nothing happens: no more than
                between two heartbeats.
        """
        self._member, self._pulse, self._watch = member, pulse, watch
        self._calm_s, self._easy_ticks = calm_s, easy_ticks
        self._place: Quiescence | None = None
        self._since_s = float("inf")  # since when it is calm there
        self._quiet_s = float("inf")  # since when nothing has happened
        self.is_quiet = True  # nothing was under way at the last look; else noise changes nothing
        self.is_resting = False
        self.away: Set[str] = frozenset()  # members that a leader does not wait for
        self.ticks = 1  # of the consensus, in each step that is due by time; none at rest

    def look(self, now_s: float, *, is_loud: bool) -> bool:
        """Look whether to rest now, after a step, and say so; return whether it does.

        Args:
            now_s: by a clock that only goes forward.
            is_loud: whether something came that a node at rest does not expect.
        """
        self.is_quiet = is_quiet = not (is_loud or self._is_busy)
        self._quiet_s = min(self._quiet_s, now_s) if is_quiet else float("inf")
        place = self._calm_place() if is_quiet else None
        if place is None or place != self._place:
            self._place, self._since_s = place, now_s
        self.away = frozenset() if place is None else self._member.engine.away
        self.is_resting = self._may_rest(now_s)
        self.ticks = self._easy_ticks if now_s - self._quiet_s >= _QUIET_S else 1
        if self.is_resting:
            self.ticks = 0
        return self.is_resting

    def _may_rest(self, now_s: float) -> bool:
        """Tell the others where this node is calm, if it is due; return whether that is enough.

        If it is, count those that answered as heard: no heartbeat asks them.
        """
        place, engine = self._place, self._member.engine
        others = set(self._member.holdings.others)
        if not others:
            return place is not None
        is_due = self._is_due(now_s)
        heard = self._pulse.heard() if is_due else {}
        there = {name for name in others & heard.keys() if heard[name] == place}
        if engine.leads:
            is_shown, is_enough = is_due, others - (self.away - heard.keys()) <= there
        else:
            is_shown = is_enough = engine.leader in there
        self._pulse.show(place if is_shown else None)
        if is_due and is_enough:
            engine.vouch(there)
        return is_due and is_enough

    def _is_due(self, now_s: float) -> bool:
        """Whether it has been calm for long enough, with every copy as far as the others."""
        if self._place is None:
            return False
        calm_s = self._calm_s if self._member.engine.leads else self._calm_s / 2
        if now_s - self._since_s < calm_s:
            return False
        if not is_even(self._member.holdings, self._member.executor.ledger):
            self._since_s = now_s  # with many sessions, a look at them takes a while
            return False
        return True

    @property
    def _is_busy(self) -> bool:
        """Whether something is under way."""
        member = self._member
        return (
            member.is_executing
            or member.proposals.has_orders
            or member.execution.can_continue
            or member.execution.suspended
            or member.execution.missing is not None
            or member.executor.lacks_log
        )

    def _calm_place(self) -> Quiescence | None:
        """Where nothing is left to do here that needs time to pass; None if something is.

        Until all that was executed is in a snapshot, a node goes on as ever.
        """
        member = self._member
        is_waiting = (
            member.execution.saved_index < member.executor.ledger.index
            or member.greeting.waits_for
            or member.proposals.stuck
            or self._watch.is_deciding
        )
        return None if is_waiting else member.engine.calm
