"""PeerAddresses: the present addresses of a cluster's other nodes."""

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from rt.errors import Misuse
from rt.net.addresses import Address, parse_address
from rt.node.settings.node import NodeSettings

_log: Final = logging.getLogger("rt.node")


class PeerAddresses:
    """PeerAddresses: where the log and the configuration file say that other nodes are.

    The log's address of a node is tried first, then the file's, which helps when all nodes of a
    cluster have moved at the same time. Trying a wrong address does no harm, since the node that
    answers must prove its name by a certificate.

    Threads: the thread that calls `follow` replaces the mapping `now`, which is never modified, so
        any thread may read it. `listener` is set once, before any thread starts.
    """

    def __init__(self, settings: NodeSettings) -> None:
        """Start with the configuration file's addresses."""
        self._files = settings.addresses
        self._name = settings.name
        self.now: Mapping[str, Sequence[Address]] = {
            name: (address,) for name, address in self._files.items() if name != self._name
        }
        self.listener: Callable[[Mapping[str, Sequence[Address]]], None] = lambda _places: None

    def follow(self, addresses: Mapping[str, str]) -> None:
        """Adopt the addresses of all other nodes, by name, from the log."""
        found = {name: self._of(name, text) for name, text in addresses.items()}
        self.now = {name: places for name, places in found.items() if places}
        self.listener(self.now)

    def _of(self, name: str, text: str) -> Sequence[Address]:
        places = [self._files[name]] if name in self._files else []
        if text:
            try:
                places = [parse_address(text), *places]
            except Misuse as error:
                _log.error("the address of node %s: %s", name, error)
        return tuple(dict.fromkeys(places))
