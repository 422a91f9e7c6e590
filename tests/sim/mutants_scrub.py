"""Mistakes in repairing rolled files, which only worlds in which they rot show."""

from collections.abc import Callable

from replicator.repair import mend
from rt.log.files.damaged_files import DamagedFiles

from .mutation import Patch, mutant

SCRUBBING: set[str] = set()


def scrubbing(make: Callable[[], list[Patch]]) -> Callable[[], list[Patch]]:
    """Register a mistake that is sought in worlds with rotten files alone."""
    SCRUBBING.add(make.__name__.replace("_", "-"))
    return mutant(make)


@scrubbing
def repaired_without_check() -> list[Patch]:
    """A fetched file replaces the damaged one without being checked."""
    return [(mend, "_demand_agreed", lambda log, line, fresh: None)]


@scrubbing
def served_while_damaged() -> list[Patch]:
    """A file known to be damaged is sent like any other."""
    return [(DamagedFiles, "demand_whole", lambda self, file: None)]
