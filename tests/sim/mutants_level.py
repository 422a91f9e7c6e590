"""Mistakes with the level of a cluster's formats."""

from collections.abc import Callable

from sequencer.ledger.ledger import Ledger

from . import levelled
from .mutation import Patch, mutant

LEVELLING: set[str] = set()


def levelling(make: Callable[[], list[Patch]]) -> Callable[[], list[Patch]]:
    """Register a mistake that is sought in worlds whose cluster has a level."""
    LEVELLING.add(make.__name__.replace("_", "-"))
    return mutant(make)


@levelling
def merges_before_the_level() -> list[Patch]:
    """A new cluster merges, and agrees on its level some time."""
    return [(Ledger, "is_new", property(lambda _self: False))]


@levelling
def carries_at_any_level() -> list[Patch]:
    """Small updates are carried though an earlier version may have to read them."""
    return [(levelled, "may_carry", lambda _notes: True)]
