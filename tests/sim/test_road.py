"""The road of a lone message: how many functions it passes in the nodes, which may only fall."""

from .road import MESSAGES, Road, counted

# `python -m tests.sim.road` prints the figures of now; lower these when they fall.
LEADER = 150
FOLLOWER = 116


def test_a_lone_message_passes_no_more_functions_than_it_did():
    """At a few hundred messages a second nothing is warm: each function on its way costs."""
    road = Road()
    counted(road)
    assert len(road.leader.calls.touched(MESSAGES)) <= LEADER
    assert len(road.follower.calls.touched(MESSAGES)) <= FOLLOWER


def test_a_lone_message_is_never_read_back():
    """It stays in memory from its arrival until it is merged and served: ADR 29."""
    road = Road()
    before = {name: node.disk.reads for name, node in road.nodes.items()}
    road.messages(20)
    assert before == {name: node.disk.reads for name, node in road.nodes.items()}


def test_messages_that_come_one_at_a_time_are_merged_and_served():
    """The road that is measured has to be the one that brings a message to its end."""
    road = Road()
    before = road.leader.reader.bytes
    road.messages(10)
    assert road.leader.reader.bytes - before > 10 * 100
    ends = [node.member.executor.ledger.merged_to("jfk") for node in road.nodes.values()]
    assert road.leader.member.executor.ledger.merged_to("jfk") == road.publisher.log.end
    assert all(end > 0 for end in ends)
