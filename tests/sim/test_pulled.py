"""Readers and mirrors in simulated worlds: none ends early, and none is far behind."""

import pytest

from .mutants import PULLING
from .test_simulation import QUICK_SEEDS
from .worlds import hunt, replay_command, seeds_of, violated

QUICK_WORLDS = 2  # `make faults` has thousands


# The one before these is among those of test_simulation.py.
@pytest.mark.parametrize("seed", seeds_of("pulled", QUICK_SEEDS, QUICK_WORLDS))
def test_worlds_with_readers_and_mirrors_break_no_promise(seed: int) -> None:
    """Nodes lag, are cut off, run out of room and die; a reader that stops has what was merged."""
    violation = violated(seed)
    assert not violation, f"{violation}\nreplay: {replay_command(seed)}"


@pytest.mark.parametrize(
    "mutant", ["complete-once-a-node-has-answered", "end-answered-by-any-node"]
)
def test_a_reader_that_ends_early_is_noticed_at_once(mutant: str) -> None:
    """These two faults shipped, or could have."""
    assert mutant in PULLING
    assert hunt(mutant, 2), f"{mutant} lives"
