"""Mistakes with a sealed cluster, whose log and state must stay as they are."""

from collections.abc import Callable

from sequencer import proposals
from sequencer.planning import planner

from .mutation import Patch, mutant

SEALING: set[str] = set()


def sealing(make: Callable[[], list[Patch]]) -> Callable[[], list[Patch]]:
    """Register a mistake that is sought in worlds whose cluster is sealed."""
    SEALING.add(make.__name__.replace("_", "-"))
    return mutant(make)


@sealing
def merges_after_the_seal() -> list[Patch]:
    """A sealed cluster merges what publishers have sent."""
    return [(module, "SEALED_NOTE", "never") for module in (planner, proposals)]


@sealing
def orders_after_the_seal() -> list[Patch]:
    """A sealed cluster goes on to archive, to close sessions and to note what readers ask for."""
    return [(proposals, "may_follow", lambda *_: True)]
