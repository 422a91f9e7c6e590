"""Readers and mirrors in simulated worlds: none ends early, and none is far behind."""

import pytest

from .mutants import PULLING
from .test_simulation import TESTED_BY_NAME, demand_no_violation
from .worlds import hunt


# 107 lives below, with the mistakes; `make faults` has thousands.
@pytest.mark.parametrize("seed", TESTED_BY_NAME["pulled"])
def test_worlds_with_readers_and_mirrors_break_no_promise(seed: int) -> None:
    """Nodes lag, are cut off, run out of room and die; a reader that stops has what was merged."""
    demand_no_violation([seed])


@pytest.mark.parametrize(
    "mutant", ["complete-once-a-node-has-answered", "end-answered-by-any-node"]
)
def test_a_reader_that_ends_early_is_noticed_at_once(mutant: str) -> None:
    """These two faults shipped, or could have."""
    assert mutant in PULLING
    assert hunt(mutant, 2), f"{mutant} lives"
