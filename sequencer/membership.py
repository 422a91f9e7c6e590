"""Membership: which nodes this node dials and accepts as the configuration changes."""

import struct
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

from rt.errors import PeerError
from sequencer.peers.departed import Departed
from sequencer.peers.restart_check import RestartCheck
from sequencer.planning.holdings import Holdings
from sequencer.raft.consensus import (
    FOUNDER,
    Configuration,
    Place,
    Seat,
    UnheardError,
)
from sequencer.raft.engine import Raft
from sequencer.raft.entries import pack_configuration, unpack_configuration

Dial = Callable[[Mapping[str, str]], None]
ANNOUNCEMENTS: Final = 25  # 10 s: by then, a removed node that is up has heard of its removal
# 2 s. Voters send something every 0.4 s, so one that was not heard for this long is gone.
CUT_OFF_TICKS: Final = 100
_PLACE: Final = struct.Struct("<QQ")  # term and index of the configuration's entry


class Announced(NamedTuple):
    """Announced: a configuration that another node announced.

    Attributes:
        place: term and index of the configuration's entry.
        seats: the configuration.
        sender: the node that announced it.
        is_vouched: whether the sender is a voter by this node's log, or by a vouched announcement.
    """

    place: Place = (0, 0)
    seats: Configuration = MappingProxyType({})
    sender: str = ""
    is_vouched: bool = True


class Doors(NamedTuple):
    """Doors: which nodes a node admits, by the names in their certificates; any thread may read it.

    Attributes:
        members: the members by this node's log. While the last change of the members is undecided,
            the members before that change are included.
        voters: the members that vote.
        peers: nodes that may speak the protocol between nodes: the members, and the nodes in the
            configuration that another node announced.
        departed: removed nodes.
        leaving: removed nodes to which this node still sends news, over the connections they had.
        is_open: whether any node that was not removed may speak that protocol, to announce its
            configuration, because this node knows no leader and hears from too few known voters.
    """

    members: frozenset[str] = frozenset()
    voters: frozenset[str] = frozenset()
    peers: frozenset[str] = frozenset()
    departed: frozenset[str] = frozenset()
    leaving: frozenset[str] = frozenset()
    is_open: bool = False

    def admits(self, name: str) -> bool:
        """Whether a node may speak the protocol between nodes."""
        return name in self.peers or (self.is_open and name not in self.departed)


class Membership:
    """Membership: follows the configuration in a node's log and announces it to other nodes.

    A node whose log lags may not know its leader's address, and could not reply to the leader. So
    the node also dials and accepts the nodes of the newest configuration that a known voter
    announced. That configuration only decides which nodes to dial, greet and listen to. The node's
    own log decides whose votes, acknowledgements and holdings count.

    Attributes:
        doors: which nodes are admitted; the object is replaced whole and never changed.
        followed: the configuration that was adopted last; None before the first `follow`.
        is_settled: whether `follow` has nothing to do until the engine has another configuration.
    """

    def __init__(
        self,
        name: str,
        engine: Raft,
        holdings: Holdings,
        restart_check: RestartCheck,
        dial: Dial,
        *,
        departed: Departed,
    ) -> None:
        """Admit the members in the engine's log; the first `follow` dials them.

        Args:
            name: this node.
            engine: this node's engine, whose log has the configuration.
            holdings: what all members hold; its members are kept up to date.
            restart_check: this node's restart check; its voters are kept up to date.
            dial: called with the addresses of all other nodes, by name, whenever they change.
            departed: the nodes that were removed.
        """
        self._name = name
        self._engine, self._holdings, self._dial = engine, holdings, dial
        self.restart_check = restart_check
        self.followed: Configuration | None = None
        self.is_settled, self._is_undecided = False, False
        self._announced = Announced()  # the newest announcement that was believed
        self._dialled: dict[str, str] = {}
        self._leaving: dict[str, int] = {}  # by removed node, announcements yet to be sent
        self._departed = departed
        self._heard: dict[str, int] = {}  # by known voter, the tick at which it was last heard
        change = engine.last_change  # the engine has one before its first step
        self.doors = Doors()
        self._open_doors({**change.before, **change.now}, {})

    def follow(self) -> bool:
        """Adopt the log's configuration if it changed or was decided.

        If the last announcement is not believed any more, forget it, and adopt the log's
        configuration as well.

        Returns:
            Whether the log's configuration changed.
        """
        is_new = self._engine.members is not self.followed
        is_decided = self._is_undecided and not self._engine.last_change.before
        if is_new or is_decided or not self._believes(self._announced):
            self.followed = self._engine.members
            if not self._believes(self._announced):
                self._announced = Announced()
            self._apply()
        return is_new

    def tick(self) -> None:
        """Let a unit of time pass, which may open or close `doors`."""
        is_open = self._is_open
        if is_open != self.doors.is_open:
            self.doors = self.doors._replace(is_open=is_open)

    @property
    def _is_open(self) -> bool:
        """Whether this node knows no leader, and hears from too few known voters to elect one.

        This happens to nodes that were away while all others were replaced: they hear only each
        other.
        """
        since = self.restart_check.ticks - CUT_OFF_TICKS
        if since < 0 or self._engine.leader:
            return False
        heard = sum(ticks > since for ticks in self._heard.values())
        return heard + 1 < len(self.doors.voters) // 2 + 1 or not heard

    def announcement(self) -> bytes:
        """Return the message that announces this node's configuration to other nodes.

        Call this once for each announcement: after `ANNOUNCEMENTS` calls, this node gives up its
        connection to a removed node.

        While the log has no configuration, the announcement lists only this node. The list in the
        node's configuration file was never agreed on, and a joining node's file wrongly lists the
        node itself.
        """
        self._leaving = {name: left - 1 for name, left in self._leaving.items()}
        for name in [name for name, left in self._leaving.items() if not left]:
            del self._leaving[name], self._dialled[name]
            self._dial(self._dialled.copy())
            self.doors = self.doors._replace(leaving=frozenset(self._leaving))
        change = self._engine.last_change
        seats = change.now if change.index else {self._name: Seat(FOUNDER)}
        return _PLACE.pack(change.term, change.index) + pack_configuration(seats)

    def receive(self, sender: str, body: bytes) -> None:
        """Handle another node's announcement.

        Raises:
            UnheardError: the sender is not a known voter, and its announcement is not believed.
            PeerError: the announcement is malformed.
        """
        try:
            place = _PLACE.unpack_from(body)
            seats, end = unpack_configuration(body, _PLACE.size)
        except (struct.error, ValueError) as error:
            raise PeerError(f"malformed list of members: {error}") from None
        if end != len(body):
            raise PeerError("malformed list of members: a tail")
        announced = Announced((place[0], place[1]), seats, sender, self._is_known(sender))
        if announced.place == Announced().place:
            return  # the sender's log has no configuration: it waits to be added
        if not self._believes(announced):
            raise UnheardError(f"{sender!r} is not a member, as far as this node knows")
        if announced.place > self._announced.place:
            self._announced = announced
            self._apply()

    def _is_known(self, name: str) -> bool:
        """Whether a node is a voter by this node's log, or by a newer vouched announcement.

        An older announcement may list a node that the log has removed since.
        """
        change, known = self._engine.last_change, self._announced
        is_newer = known.is_vouched and known.place > (change.term, change.index)
        lists = [change.now, change.before, known.seats if is_newer else {}]
        return any(seats[name].votes for seats in lists if name in seats)

    def _believes(self, announced: Announced) -> bool:
        """Whether to act on an announcement; true if its sender was a known voter on arrival.

        An unknown sender is believed only under three conditions: its announcement lists itself and
        this node; it was never removed; and this node knows no leader and hears from too few known
        voters to elect one. Once an unknown sender is believed, it stays believed until another
        node, a known voter, leads.
        """
        sender, leader = announced.sender, self._engine.leader
        if not sender or announced.is_vouched:
            return True
        if sender in self._departed.names or not {sender, self._name} <= announced.seats.keys():
            return False
        if sender == self._announced.sender:
            return leader in {"", sender} or not self._is_known(leader)
        return self.doors.is_open and not leader

    def record_heard(self, sender: str) -> None:
        """Record that a node was heard from, if it is a known voter."""
        if sender in self.doors.voters or self._is_known(sender):
            self._heard[sender] = self.restart_check.ticks

    def demand(self, sender: str) -> None:
        """Raise `UnheardError` unless this node's log or an announcement lists the sender."""
        if sender not in self._holdings.others:
            raise UnheardError(f"{sender!r} is not a member, as far as this node knows")

    def _apply(self) -> None:
        """Dial and accept the log's members and, if the log lags, the announced ones."""
        change, announced = self._engine.last_change, self._announced
        is_behind = announced.place > (change.term, change.index)
        newest = announced.seats if is_behind else change.now
        listed = {**change.before, **change.now}
        others = {**listed, **newest}
        others.pop(self._name, None)
        self._is_undecided = bool(change.before)
        self.is_settled = announced.is_vouched and not self._is_undecided
        self._engine.announce(announced.place, announced.seats)
        self._holdings.follow(_voters(change.now), others)
        lists = [newest, change.before] if change.before and not is_behind else [newest]
        self.restart_check.follow(*({*_voters(each)} - {self._name} for each in lists))
        self._departed.follow(change)
        self._redial({name: seat.address for name, seat in others.items()})
        self._open_doors(listed, others)

    def _open_doors(self, listed: Configuration, others: Configuration) -> None:
        self.doors = Doors(
            frozenset(listed), frozenset(_voters(listed)), frozenset({*listed, *others}),
            self._departed.names, frozenset(self._leaving), self.doors.is_open,
        )  # fmt: skip

    def _redial(self, addresses: Mapping[str, str]) -> None:
        """Dial these nodes; for a while, also dial removed nodes, so that they hear of it."""
        gone = self._dialled.keys() - addresses.keys()
        self._leaving = {name: self._leaving.get(name, ANNOUNCEMENTS) for name in gone}
        self._dialled = {**{name: self._dialled[name] for name in gone}, **addresses}
        self._dial(self._dialled.copy())


def _voters(seats: Configuration) -> list[str]:
    return [name for name, seat in seats.items() if seat.votes]
