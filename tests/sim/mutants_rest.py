"""Mistakes of idle nodes, which only worlds with long pauses between messages show."""

from collections.abc import Callable

from rt.node.agree.duties import Duties, Mail
from rt.node.agree.idle_policy import IdlePolicy
from sequencer.raft import quiescence as calm
from sequencer.raft.consensus import Quiescence

from .mutation import Patch, mutant

RESTING: set[str] = set()


def resting(make: Callable[[], list[Patch]]) -> Callable[[], list[Patch]]:
    """Register a mistake that is sought in worlds with nodes that rest."""
    RESTING.add(make.__name__.replace("_", "-"))
    return mutant(make)


@resting
def rests_with_a_lagging_follower() -> list[Patch]:
    """A leader becomes idle as soon as nothing happens, whatever the others have and report."""
    right = IdlePolicy._may_rest

    def _may_rest(self: IdlePolicy, now_s: float) -> bool:
        leads = self._member.engine.leads
        return right(self, now_s) or (leads and self._is_due(now_s))

    return [
        (IdlePolicy, "_may_rest", _may_rest),
        (calm, "_has_all", lambda core, leader, name: True),
    ]


@resting
def rests_without_a_pulse() -> list[Patch]:
    """A follower becomes idle as soon as nothing happens, though its leader may be dead."""
    right = IdlePolicy._may_rest

    def _may_rest(self: IdlePolicy, now_s: float) -> bool:
        leads = self._member.engine.leads
        return right(self, now_s) or (not leads and self._is_due(now_s))

    return [(IdlePolicy, "_may_rest", _may_rest)]


@resting
def nothing_ends_a_rest() -> list[Patch]:
    """An idle node stays idle, whatever is proposed, and whichever node is silent."""
    right = IdlePolicy.look

    def look(self: IdlePolicy, now_s: float, *, is_loud: bool) -> bool:
        return self.is_resting or right(self, now_s, is_loud=is_loud)

    return [(IdlePolicy, "look", look)]


@resting
def a_return_ends_no_rest() -> list[Patch]:
    """A leader that is idle without a member stays idle, whatever that member sends."""
    right = Duties._is_loud

    def _is_loud(self: Duties, mail: Mail) -> bool:
        away, self._rest.away = self._rest.away, frozenset()
        try:
            return right(self, mail)
        finally:
            self._rest.away = away

    return [(Duties, "_is_loud", _is_loud)]


@resting
def a_proposal_wakes_nobody() -> list[Patch]:
    """An idle node reacts only to messages: what it proposes itself is not repeated."""
    right = IdlePolicy._calm_place

    def _calm_place(self: IdlePolicy) -> Quiescence | None:
        return self._place if self.is_resting else right(self)

    def _is_busy(self: IdlePolicy) -> bool:
        return False

    return [(IdlePolicy, "_calm_place", _calm_place), (IdlePolicy, "_is_busy", property(_is_busy))]
