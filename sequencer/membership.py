"""Membership: which nodes this one talks to, as the configuration changes."""

import struct
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

from rt.errors import PeerError
from sequencer.greeting import Greeting
from sequencer.holdings import Holdings
from sequencer.raft.consensus import FOUNDER, Configuration, Consensus, Seat
from sequencer.raft.entries import pack_configuration, unpack_configuration

Dial = Callable[[Mapping[str, str]], None]
ANNOUNCEMENTS: Final = 25  # 10 s: a removed node that lives has been sent its removal by then
_PLACE: Final = struct.Struct("<QQ")  # term and index of the entry that made the configuration


class Announced(NamedTuple):
    """A configuration that another node has announced."""

    place: tuple[int, int] = (0, 0)  # term and index, as logs are compared in an election
    seats: Configuration = MappingProxyType({})
    sender: str = ""


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
        self._is_undecided = False
        self._announced = Announced()  # the newest, by others
        self._dialled: dict[str, str] = {}
        self._leaving: dict[str, int] = {}  # removed nodes, and how often to announce before a cut
        self._strangers: set[str] = set()

    def follow(self) -> bool:
        """Take up the configuration of the log, if it has changed or was decided.

        Returns:
            Whether it has changed.
        """
        is_new = self._engine.members is not self._followed
        if not (is_new or self._is_undecided or self._announced.sender):
            return False  # the usual case, several times in every step
        if is_new or self._is_decided_now or not self._believes(self._announced):
            self._followed = self._engine.members
            if not self._believes(self._announced):
                self._announced = Announced()
            self._apply()
        return is_new

    @property
    def _is_decided_now(self) -> bool:
        return self._is_undecided and not self._engine.last_change.before

    def announcement(self) -> bytes:
        """What to tell the other nodes, now and then.

        What this node has only from its configuration file was decided by none, and is not told:
        that of a node which joins seven others lists one more than may vote.
        """
        self._leaving = {name: left - 1 for name, left in self._leaving.items()}
        for name in [name for name, left in self._leaving.items() if not left]:
            del self._leaving[name], self._dialled[name]
            self._dial(self._dialled.copy())
        change = self._engine.last_change
        decided = change.now if change.index else {self._name: Seat(FOUNDER)}
        return _PLACE.pack(change.term, change.index) + pack_configuration(decided)

    def take(self, sender: str, body: bytes) -> None:
        """Take another node's announcement; `PeerError` if it is malformed."""
        try:
            place = _PLACE.unpack_from(body)
            seats, end = unpack_configuration(body, _PLACE.size)
        except (struct.error, ValueError) as error:
            raise PeerError(f"malformed list of members: {error}") from None
        if end != len(body):
            raise PeerError("malformed list of members: a tail")
        announced = Announced((place[0], place[1]), seats, sender)
        if announced.place > self._announced.place and self._believes(announced):
            self._announced = announced
            self._apply()

    def _believes(self, announced: Announced) -> bool:
        """Whether to act on an announcement.

        That of a node which this log does not list is needed only while there is no leader, or if
        it is the leader: with another leader, the log will soon say who the members are. A removed
        node that still runs is not believed by anyone who knows better: its log is older.
        """
        sender, leader = announced.sender, self._engine.leader
        if not sender or sender in self._engine.members or sender == leader:
            return True
        return not leader and {sender, self._name} <= announced.seats.keys()

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
        change, announced = self._engine.last_change, self._announced
        is_behind = announced.place > (change.term, change.index)
        newest = announced.seats if is_behind else change.now
        others = {**change.before, **change.now, **newest}
        others.pop(self._name, None)
        self._is_undecided = bool(change.before)
        self._strangers.clear()
        self._holdings.follow(_voters(change.now), others)
        lists = [newest, change.before] if change.before and not is_behind else [newest]
        self.greeting.follow(*({*_voters(each)} - {self._name} for each in lists))
        self._redial({name: seat.address for name, seat in others.items()})

    def _redial(self, addresses: Mapping[str, str]) -> None:
        """Dial these nodes, and for a while those that were removed, which have to learn of it."""
        gone = self._dialled.keys() - addresses.keys()
        self._leaving = {name: self._leaving.get(name, ANNOUNCEMENTS) for name in gone}
        self._dialled = {**{name: self._dialled[name] for name in gone}, **addresses}
        self._dial(self._dialled.copy())


def _voters(seats: Configuration) -> list[str]:
    return [name for name, seat in seats.items() if seat.votes]
