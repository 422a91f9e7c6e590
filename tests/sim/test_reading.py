"""Worlds with members of a group and holders of a cursor, and the seeds that found something."""

import os

import pytest

from .sweep import sweep
from .worlds import live, replay_command, seeds_of

WORLDS = int(os.environ.get("READING_WORLDS", "100"))


# 19 and 83 are among the hundred of test_simulation.py, which `make test` runs.
@pytest.mark.faults
@pytest.mark.parametrize("seed", [463, 2319])
def test_seeds_that_found_something_find_it_no_more(seed: int) -> None:
    """463: an order was dropped while leadership moved, and stayed. 2319: a rejection."""
    _, violation, _ = live(seed)
    assert not violation, f"{violation}: {replay_command(seed)}"


@pytest.mark.faults
def test_worlds_with_readers_break_no_promise() -> None:
    """Leaders that lag, kills of all nodes, paused members: no one ends early, nor is fenced."""
    swept = sweep(seeds_of("reading", 0, WORLDS), os.cpu_count() or 1)
    print(swept)
    assert not swept.failed
