"""Partitions between hosts: network namespaces whose cables are pulled."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from .network import CLIENT, Network
from .storm import Storm

ROUNDS = int(os.environ.get("RT_PARTITIONS", "6"))
NODES = ["n1", "n2", "n3"]


@pytest.fixture
def network() -> Iterator[Network]:
    """Three hosts and one for the clients."""
    if reason := Network.missing():
        pytest.skip(reason)
    made = Network(len(NODES))
    yield made
    made.close()


@pytest.mark.faults
@pytest.mark.process
def test_partitions_lose_double_and_reorder_nothing(tmp_path: Path, network: Network) -> None:
    """Each node in turn, two at once, then all lose their cable; then it is plugged in again."""
    storm = Storm(tmp_path, len(NODES), seed=4, network=network)
    try:
        for turn in range(ROUNDS):
            count = storm.chance.choice((1, 1, 1, 2, 3))
            storm.partition(storm.chance.sample(NODES, count), storm.chance.uniform(0.5, 3))
            if turn % 3 == 2:
                storm.kill(storm.chance.choice(NODES))
        print(storm.demand_all())
    finally:
        storm.close()


@pytest.mark.faults
@pytest.mark.process
@pytest.mark.parametrize("leader_is", ["not heard", "deaf"])
def test_a_one_way_partition_loses_doubles_and_reorders_nothing(
    tmp_path: Path, network: Network, leader_is: str
) -> None:
    """A leader that one node or all cannot hear, or that cannot hear them, stops no one."""
    storm = Storm(tmp_path, len(NODES), seed=5, network=network)
    try:
        for turn in range(min(ROUNDS, 4)):
            storm.await_whole()
            leader = storm.leader()
            others = [name for name in NODES if name != leader][: 1 + turn % 2]
            for other in others:
                ends = (leader, other) if leader_is == "not heard" else (other, leader)
                network.cut_way(*ends)
            before = max(each["messages"] for each in storm.answers())
            storm.await_messages(before + 500)
            for other in others:
                ends = (leader, other) if leader_is == "not heard" else (other, leader)
                network.heal_way(*ends)
        print(storm.demand_all())
    finally:
        storm.close()


@pytest.mark.faults
@pytest.mark.process
def test_clients_that_reach_one_node_lose_double_and_reorder_nothing(
    tmp_path: Path, network: Network
) -> None:
    """Every session is relayed by the node that is reached, and handed back to its publisher."""
    storm = Storm(tmp_path, len(NODES), seed=6, network=network)
    try:
        for turn in range(min(ROUNDS, 3)):
            reached = NODES[turn % len(NODES)]
            others = [name for name in NODES if name != reached]
            for other in others:
                network.cut_way(CLIENT, other)
            before = max(each["messages"] for each in storm.answers())
            storm.await_messages(before + 2_000, nodes=1)
            if turn % 2:
                storm.kill(storm.chance.choice(others))
                storm.await_messages(before + 4_000, nodes=1)
            for other in others:
                network.heal_way(CLIENT, other)
        print(storm.demand_all())
    finally:
        storm.close()
