"""When a leader hands over because it cannot plan what a majority holds."""

from types import SimpleNamespace

from rt.errors import Refused
from rt.position import START, Position
from sequencer.hand_over import HandOver

PATIENCE = 10


class Leadership:
    """A leader that lacks sessions, and what becomes of its hand-overs."""

    def __init__(self):
        self.merged = {"jfk": START, "lga": START}
        self.short, self.epoch = ["jfk"], 0
        self.moved = []
        ends = {"n2": {"jfk": Position(64)}, "n3": {"jfk": Position(128), "lga": Position(64)}}
        holdings = SimpleNamespace(
            voters=["n1", "n2", "n3"], others=ends, of=lambda member: ends[member]
        )
        proposals = SimpleNamespace(
            short_sessions=lambda: list(self.short),
            place=lambda session: (self.merged[session], self.epoch),
        )
        self.transfer = self.moved.append
        engine = SimpleNamespace(transfer=lambda member: self.transfer(member))
        self.hand_over = HandOver(engine, holdings, proposals, PATIENCE)

    def ticks(self, count):
        """How often leadership has moved after some time as the leader."""
        for _ in range(count):
            self.hand_over.tick()
        return len(self.moved)


def test_leadership_moves_to_the_member_that_holds_most_of_what_the_leader_lacks():
    """It can plan the session, and the leader is not needed for that."""
    leads = Leadership()
    assert leads.ticks(PATIENCE - 1) == 0
    assert (leads.ticks(1), leads.moved) == (1, ["n3"])


def test_leadership_moves_less_and_less_for_a_session_that_no_leader_can_merge():
    """Where copies contradict each other it moved every two seconds, and interrupted all else."""
    leads = Leadership()
    assert leads.ticks(PATIENCE) == 1
    leads.short.clear()  # another one leads, and this node is not asked
    assert leads.ticks(3) == 1
    leads.short.append("jfk")
    assert leads.ticks(2 * PATIENCE - 1) == 1
    assert leads.ticks(1) == 2
    assert leads.ticks(4 * PATIENCE - 1) == 2
    assert leads.ticks(1) == 3
    assert leads.ticks(10_000) < 3 + 10_000 // (16 * PATIENCE)


def test_a_hand_over_that_is_refused_was_not_in_vain():
    """A member that does not count yet is refused, and counts a moment later."""
    leads, refusals = Leadership(), [Refused("not-a-member", "it is not one yet")] * 3

    def transfer(member):
        if refusals:
            raise refusals.pop()
        leads.moved.append(member)

    leads.transfer = transfer
    assert leads.ticks(3 * PATIENCE) == 0
    assert leads.ticks(PATIENCE) == 1


def test_a_session_that_was_merged_in_between_is_handed_over_for_as_before():
    """The last hand-over has helped."""
    leads = Leadership()
    assert leads.ticks(PATIENCE) == 1
    leads.merged["jfk"] = Position(64)
    assert leads.ticks(PATIENCE) == 2


def test_a_session_that_begins_again_is_handed_over_for_as_before():
    """Its next log has nothing to do with the last one, and neither of them was merged."""
    leads = Leadership()
    assert leads.ticks(PATIENCE) == 1
    leads.epoch = 7
    assert leads.ticks(PATIENCE) == 2


def test_a_hopeless_session_does_not_hold_up_another():
    """Each has a patience of its own."""
    leads = Leadership()
    assert leads.ticks(PATIENCE + 2 * PATIENCE) == 2
    leads.short.append("lga")
    assert leads.ticks(PATIENCE) == 3
