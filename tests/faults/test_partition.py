"""Partitions between real hosts: namespaces of our own, whose cables are pulled."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from .network import Network
from .storm import Storm

ROUNDS = int(os.environ.get("RT_PARTITIONS", "6"))


@pytest.fixture
def network() -> Iterator[Network]:
    """Three hosts and one for the clients."""
    if reason := Network.missing():
        pytest.skip(reason)
    made = Network(3)
    yield made
    made.close()


@pytest.mark.faults
@pytest.mark.process
def test_partitions_lose_double_and_reorder_nothing(tmp_path: Path, network: Network) -> None:
    """Each node in turn, two at once and all at once lose their cable; then it is put back."""
    storm = Storm(tmp_path, 3, seed=4, network=network)
    try:
        for turn in range(ROUNDS):
            count = storm.chance.choice((1, 1, 1, 2, 3))
            names = storm.chance.sample(["n1", "n2", "n3"], count)
            storm.partition(names, storm.chance.uniform(0.5, 3))
            if turn % 3 == 2:
                storm.kill(storm.chance.choice(["n1", "n2", "n3"]))
        published = storm.settle()
        total = sum(published.values())
        expected = {name: list(range(count)) for name, count in published.items()}
        for copy in (1, 2):
            assert storm.read(copy, total) == expected
        print(f"{total} messages, faults: {storm.kills}")
    finally:
        storm.close()
    logs = storm.logs()
    longest = max(logs.values(), key=len)
    assert all(longest.startswith(log) for log in logs.values())
