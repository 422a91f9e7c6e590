"""Kills and pauses of real processes; what was published is read, once and in order."""

import os
from pathlib import Path

import pytest

from .storm import Storm

SECONDS = float(os.environ.get("RT_STORM_S", "20"))


@pytest.mark.faults
@pytest.mark.process
@pytest.mark.parametrize(("nodes", "seed"), [(1, 1), (3, 2), (5, 3)])
def test_a_storm_of_kills_loses_doubles_and_reorders_nothing(
    tmp_path: Path, nodes: int, seed: int
) -> None:
    """Publishers trusted us with these messages, and the operator kills what he likes."""
    storm = Storm(tmp_path, nodes, seed)
    try:
        storm.rage(SECONDS)
        published = storm.settle()
        total = sum(published.values())
        expected = {name: list(range(count)) for name, count in published.items()}
        for number in (1, 2):
            assert storm.read(number, total) == expected
        print(f"{nodes} nodes, {total} messages, kills: {storm.kills}")
    finally:
        storm.close()
    logs = storm.logs()
    longest = max(logs.values(), key=len)
    assert len(longest) > 64 * total
    for name, log in logs.items():
        assert longest.startswith(log), f"{name} differs from the others"
    assert logs["sub1"] == logs["sub2"] == longest
