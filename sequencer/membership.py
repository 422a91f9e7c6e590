"""Membership: which nodes this one talks to, as the configuration changes."""

import struct
from collections.abc import Callable, Mapping
from typing import Final

from rt.errors import PeerError
from sequencer.greeting import Greeting
from sequencer.holdings import Holdings
from sequencer.raft.consensus import Configuration, Consensus
from sequencer.raft.entries import pack_configuration, unpack_configuration

Dial = Callable[[Mapping[str, str]], None]
ANNOUNCEMENTS: Final = 25  # 10 s: a removed node that lives has been sent its removal by then
_INDEX: Final = struct.Struct("<Q")


class Membership:
    """Follows the configuration of a node's log, and announces it to the other nodes.

    A node whose log is behind may not know where its leader is, and could not reply to it. So it
    also talks to the nodes of the newest configuration that it was told of. That one says only whom
    to dial and to greet: votes, acknowledgements and holdings count by this node's own log.
    """

    def __init__(
        self, name: str, engine: Consensus, holdings: Holdings, greeting: Greeting, dial: Dial
    ) -> None:
        """Follow nothing yet.

        Args:
            name: this node.
            engine: whose log holds the configuration.
            holdings: of all members.
            greeting: of all voters.
            dial: takes the addresses of all other nodes, by name, whenever they change.
        """
        self._name = name
        self._engine, self._holdings, self._dial = engine, holdings, dial
        self.greeting = greeting
        self._followed: Configuration | None = None
        self._announced: tuple[int, Configuration] = (0, {})  # the newest, by others
        self._dialled: dict[str, str] = {}
        self._leaving: dict[str, int] = {}  # removed nodes, and how often to announce before a cut
        self._strangers: set[str] = set()

    def follow(self) -> None:
        """Take up the configuration of the log, if it has changed."""
        if self._engine.members is not self._followed:
            self._followed = self._engine.members
            self._apply()

    def announcement(self) -> bytes:
        """What to tell the other nodes, now and then."""
        self._leaving = {name: left - 1 for name, left in self._leaving.items()}
        for name in [name for name, left in self._leaving.items() if not left]:
            del self._leaving[name], self._dialled[name]
            self._dial(self._dialled.copy())
        status = self._engine.status()
        return _INDEX.pack(status.members_index) + pack_configuration(status.members)

    def take(self, body: bytes) -> None:
        """Take another node's announcement; `PeerError` if it is malformed."""
        try:
            [index] = _INDEX.unpack_from(body)
            seats, end = unpack_configuration(body, _INDEX.size)
        except (struct.error, ValueError) as error:
            raise PeerError(f"malformed list of members: {error}") from None
        if end != len(body):
            raise PeerError("malformed list of members: a tail")
        if index > self._announced[0]:
            self._announced = index, seats
            self._apply()

    def admits(self, sender: str) -> bool:
        """Whether a node is a member, as far as is known; a stranger is reported once.

        Raises:
            PeerError: it is not, for the first time.
        """
        if sender in self._holdings.others:
            return True
        if sender not in self._strangers:
            self._strangers.add(sender)
            raise PeerError(f"{sender!r} is not a member, as far as this node knows")
        return False

    def _apply(self) -> None:
        """Talk to the members by the log and, if it is behind, to those of the announcement."""
        own = self._engine.members
        index, announced = self._announced
        is_behind = index > self._engine.status().members_index
        newest = announced if is_behind else own
        others = {**own, **newest}
        others.pop(self._name, None)
        self._strangers.clear()
        self._holdings.follow([name for name, seat in own.items() if seat.votes], others)
        self.greeting.follow([name for name in others if name in newest and newest[name].votes])
        self._redial({name: seat.address for name, seat in others.items()})

    def _redial(self, addresses: Mapping[str, str]) -> None:
        """Dial these nodes, and for a while those that were removed, which have to learn of it."""
        gone = self._dialled.keys() - addresses.keys()
        self._leaving = {name: self._leaving.get(name, ANNOUNCEMENTS) for name in gone}
        self._dialled = {**{name: self._dialled[name] for name in gone}, **addresses}
        self._dial(self._dialled.copy())
