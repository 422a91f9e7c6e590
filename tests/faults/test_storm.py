"""Faults in real processes; what was published is read once and in order."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from .network import Network
from .storm import Storm

SECONDS = os.environ.get("STORM_S")


@pytest.fixture
def network(request: pytest.FixtureRequest) -> Iterator[Network | None]:
    """One host per node, where that is possible; otherwise nothing is cut."""
    if Network.missing():
        yield None
        return
    made = Network(request.getfixturevalue("nodes"))
    yield made
    made.close()


@pytest.mark.faults
@pytest.mark.process
@pytest.mark.parametrize(
    ("nodes", "seed", "seconds"), [(1, 1, 20), (3, 2, 120), (5, 3, 40)], ids=["1", "3", "5"]
)
def test_a_storm_of_kills_loses_doubles_and_reorders_nothing(
    tmp_path: Path, network: Network | None, nodes: int, seed: int, seconds: int
) -> None:
    """Publishers trusted us with these messages, whatever happens to the machines."""
    storm = Storm(tmp_path, nodes, seed, network)
    try:
        storm.rage(float(SECONDS or seconds))
        print(storm.demand_all())
    finally:
        storm.close()
