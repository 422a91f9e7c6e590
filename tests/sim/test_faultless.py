"""A publisher that reaches too few nodes must not delay the others, in worlds without faults."""

from rt.position import START

from .faultless import FaultlessCluster
from .merge_node import MergeNode
from .publisher import SESSIONS

MESSAGES = 20
SOON_US = 15_000  # a few rounds between nodes


def is_merged(world: FaultlessCluster, session: str) -> bool:
    """Whether everything published in a session is merged."""
    publisher = world.publishers[session]
    return world.stream.merged.get(session, START) >= publisher.last_byte(publisher.end)


def cut_off(world: FaultlessCluster, session: str, *names: str) -> None:
    """Cut a publisher off from these nodes."""
    for name in names:
        world.links[session, name] = 0.0
        world.nodes[name].lose_publisher(session)


def lose_copy(node: MergeNode, session: str) -> None:
    """Damage a node's copy of a session, after its publisher is gone for good."""
    node.rotted = True
    node.hang_up(session)
    node.inboxes.give_up(session)
    node.member.lose(session)


def test_a_message_that_all_nodes_get_is_merged_within_two_rounds() -> None:
    """The time that the other tests compare with."""
    world = FaultlessCluster(1)
    assert max(world.merged_within_us(*SESSIONS) for _ in range(MESSAGES)) < SOON_US


def test_crossed_partitions_hold_no_session_back() -> None:
    """Each session is on a majority, though no majority has both."""
    world = FaultlessCluster(1, {"jfk": ["n1", "n3"], "lga": ["n1", "n2"]})
    world.merged_within_us("jfk", "lga", "red")
    for _ in range(MESSAGES):
        assert world.merged_within_us("jfk", "lga", "red") < SOON_US


def test_a_session_that_only_the_leader_gets_is_passed_on_and_delays_no_other() -> None:
    """The others would wait for it if the next instruction had it before they do."""
    world = FaultlessCluster(1, {"jfk": ["n1"]})
    world.publishers["jfk"].publish()
    for _ in range(MESSAGES):
        assert world.merged_within_us("lga", "red") < SOON_US
    assert world.until(500, lambda: is_merged(world, "jfk"))


def test_a_session_that_the_leader_does_not_get_is_merged_and_delays_no_other() -> None:
    """The leader plans what it has, and lets others relay the rest or lead."""
    world = FaultlessCluster(1, {"jfk": ["n2", "n3"]})
    world.publishers["jfk"].publish()
    for _ in range(MESSAGES):
        assert world.merged_within_us("lga", "red") < SOON_US
    assert world.until(500, lambda: is_merged(world, "jfk"))


def test_a_publisher_that_is_cut_off_from_two_nodes_delays_no_other() -> None:
    """Its last messages reached only the leader."""
    world = FaultlessCluster(1)
    for _ in range(MESSAGES):
        world.merged_within_us(*SESSIONS)
    cut_off(world, "jfk", "n2", "n3")
    world.publishers["jfk"].publish()
    for _ in range(MESSAGES):
        assert world.merged_within_us("lga", "red") < SOON_US
    assert world.until(500, lambda: is_merged(world, "jfk"))


def test_what_only_the_leader_had_and_lost_is_awaited_by_no_other_session() -> None:
    """No node agreed on it, so none needs it."""
    world = FaultlessCluster(1, {"jfk": ["n1"]})
    world.publishers["jfk"].publish()
    assert world.until(5, lambda: bool(world.nodes["n1"].member.holdings.own.get("jfk")))
    cut_off(world, "jfk", "n1")
    lose_copy(world.nodes["n1"], "jfk")
    for _ in range(MESSAGES):
        assert world.merged_within_us("lga", "red") < SOON_US
    assert world.nodes["n1"].raft.leads


def test_a_node_that_is_away_returns_to_what_a_majority_of_the_others_had() -> None:
    """After a restart no leader knows what is committed; the nodes that agree find out."""
    world = FaultlessCluster(1)
    cut_off(world, "jfk", "n3")
    cut_off(world, "lga", "n3")
    world.wire.isolate(["n3"], ["n1", "n2"], hears=False, speaks=False)
    world.merged_within_us("jfk", "lga")
    first, second, third = (world.nodes[name] for name in world.names)
    merged = first.raft.status().commit
    second.die("for good", power=True)
    first.die("before its snapshot", power=False)
    world.wire.heal()
    first.start()
    assert world.until(500, lambda: third.raft.status().commit > merged)
