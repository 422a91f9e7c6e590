"""One event loop, whatever comes between two of its calls; and its known mistakes."""

import pytest

from .test_simulation import demand_no_violation
from .worlds import hunt, live, seeds_of

QUICKEST = [
    "a-cleared-deadline-is-called",
    "a-slow-puller-is-sent-more",
    "ignored-and-not-forgotten",
    "the-bell-is-cleared-before-it-is-heard",
    "what-a-call-posts-is-done-at-once",
]


def test_a_loop_calls_no_party_early_or_late_and_bounds_its_turns() -> None:
    """A deadline that is lost leaves a peer without heartbeats for ever, and without an error."""
    demand_no_violation(seeds_of("loop", 0, 20))


@pytest.mark.parametrize("mutant", QUICKEST)
def test_an_obvious_mistake_of_a_loop_is_noticed_at_once(mutant: str) -> None:
    """Checkers that notice nothing would prove nothing."""
    assert hunt(mutant, 10), f"{mutant} lives"


def test_the_same_seed_twice_is_the_same_loop() -> None:
    """A failure that cannot be replayed is a rumour."""
    assert live(123) == live(123)
    assert live(123)[0] != live(187)[0]
