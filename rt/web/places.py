"""HttpPlaces: limits the connections that the HTTP port serves at once, and who makes room."""

from collections import Counter
from typing import Protocol

from replicator.limits.admission import network_of


class Holder(Protocol):
    """A connection that has a place."""

    @property
    def is_waiting(self) -> bool:
        """Whether no request on it is being answered."""

    def end(self) -> None:
        """End it at once."""


class HttpPlaces:
    """Gives every new connection a place.

    If all are taken, the network with the most connections loses one: its oldest without a request,
    or else its oldest. So a flood pushes out its own connections, and a health probe or an open
    page keeps its place unless it comes from the same network as the flood.
    """

    def __init__(self, places_max: int) -> None:
        """Begin with all places free."""
        self._places_max = places_max
        self._taken: dict[Holder, str] = {}  # the network of each, oldest first

    def take(self, holder: Holder, host: str) -> None:
        """Give a connection from `host` a place, ending another one if need be."""
        victim = self._victim() if len(self._taken) >= self._places_max else None
        self._taken[holder] = network_of(host)
        if victim is not None:
            self.leave(victim)
            victim.end()

    def leave(self, holder: Holder) -> None:
        """Release a connection's place; does nothing if it has none."""
        self._taken.pop(holder, None)

    def _victim(self) -> Holder:
        counts = Counter(self._taken.values())
        largest = max(counts, key=counts.__getitem__)
        there = [holder for holder, network in self._taken.items() if network == largest]
        return next((holder for holder in there if holder.is_waiting), there[0])
