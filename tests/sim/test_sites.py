"""Two sites in simulated worlds: a standby is promoted while the old cluster lives."""

import pytest

from .mutants import SITING
from .test_simulation import TESTED_BY_NAME, demand_no_violation
from .worlds import hunt


@pytest.mark.parametrize("seed", TESTED_BY_NAME["sites"])
def test_worlds_with_two_sites_break_no_promise(seed: int) -> None:
    """Every message is merged once at the new site, and the old one ends by its clients' word."""
    demand_no_violation([seed])


@pytest.mark.parametrize(
    "mutant",
    ["anyone-ends-a-log", "connections-outlive-the-news", "a-node-forgets-that-its-log-has-ended"],
)
def test_a_word_that_is_not_checked_or_not_heeded_is_noticed_at_once(mutant: str) -> None:
    """One would let any peer end a cluster, the other let the old one confirm on."""
    assert mutant in SITING
    assert hunt(mutant, 3), f"{mutant} lives"
