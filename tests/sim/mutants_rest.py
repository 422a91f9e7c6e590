"""Mistakes of idle nodes, which only worlds with long pauses between messages show."""

from collections.abc import Callable

from rt.node.agree.duties import Duties
from rt.node.agree.idle_policy import IdlePolicy
from sequencer.raft import quiescence

from .mutation import Patch, mutant, rewritten

RESTING: set[str] = set()


def resting(make: Callable[[], list[Patch]]) -> Callable[[], list[Patch]]:
    """Register a mistake that is sought in worlds with nodes that rest."""
    RESTING.add(make.__name__.replace("_", "-"))
    return mutant(make)


@resting
def rests_with_a_lagging_follower() -> list[Patch]:
    """A leader becomes idle as soon as nothing happens, whatever the others have and report."""
    right, wrong = "return is_due and is_enough", "return is_due and (is_enough or engine.leads)"
    return [
        rewritten(IdlePolicy, "_may_rest", right, wrong),
        (quiescence, "_has_all", lambda core, leader, name: True),
    ]


@resting
def rests_without_an_idle_heartbeat() -> list[Patch]:
    """A follower becomes idle as soon as nothing happens, though its leader may be dead."""
    right, wrong = (
        "return is_due and is_enough",
        "return is_due and (is_enough or not engine.leads)",
    )
    return [rewritten(IdlePolicy, "_may_rest", right, wrong)]


@resting
def nothing_ends_a_rest() -> list[Patch]:
    """An idle node stays idle, whatever is proposed, and whichever node is silent."""
    right = IdlePolicy.decide

    def decide(self: IdlePolicy, now_s: float, *, is_loud: bool) -> bool:
        return self.is_resting or right(self, now_s, is_loud=is_loud)

    return [(IdlePolicy, "decide", decide)]


@resting
def a_return_ends_no_rest() -> list[Patch]:
    """A leader that is idle without a member stays idle, whatever that member sends."""
    return [rewritten(Duties, "_look_at_rest", "if rest.away and not is_loud:", "if False:")]


@resting
def a_proposal_wakes_nobody() -> list[Patch]:
    """An idle node reacts only to messages: what it proposes itself is not repeated."""
    right = "    member = self._member\n"
    wrong = f"{right}    if self.is_resting:\n        return self._place\n"
    return [
        rewritten(IdlePolicy, "_quiescent_place", right, wrong),
        (IdlePolicy, "_is_busy", property(lambda self: False)),
    ]
