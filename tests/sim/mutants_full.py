"""Mistakes of nodes with full disks, which only worlds with a long-full minority can show."""

from collections.abc import Callable, Sequence

from rt.node.agree.keep_up import KeepUp

from .mutation import Patch, mutant

FILLING: set[str] = set()


def filling(make: Callable[[], list[Patch]]) -> Callable[[], list[Patch]]:
    """Register a mistake that is sought in worlds where a minority is full for long."""
    FILLING.add(make.__name__.replace("_", "-"))
    return mutant(make)


@filling
def full_leader_leads_on() -> list[Patch]:
    """A leader without room for its merged log waits for room, while other nodes have some."""

    def _further(self: KeepUp) -> Sequence[str]:
        return []

    return [(KeepUp, "_further", _further)]
