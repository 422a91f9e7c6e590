"""MemberChanges: a leader's conditions for changing its members, one at a time."""

from dataclasses import replace

from rt.errors import Refused
from sequencer.raft.consensus import (
    FOUNDER,
    LEARNERS_MAX,
    VOTERS_MAX,
    Configuration,
    Entry,
    Seat,
)
from sequencer.raft.core import Core
from sequencer.raft.leader import Leader
from sequencer.raft.progress import UNKNOWN
from sequencer.raft.quorum import LEARNING, majority_of, suspended


class MemberChanges:
    """MemberChanges: the changes that a leader can make to the configuration.

    Each change appends an entry that takes effect immediately, and is refused until the previous
    change is committed. A node is first added as a learner, which leaves the size of a majority
    unchanged, and is promoted once it holds every committed entry. A leader cannot remove itself
    and must hand over first, so no node ever leads a cluster that it is not a member of.
    """

    __slots__ = ("_core", "_leader")

    def __init__(self, core: Core, leader: Leader) -> None:
        self._core, self._leader = core, leader

    def add(self, name: str, address: str) -> Entry:
        """Add a node to the configuration as a learner.

        Raises:
            Refused: `changing`, `too-many`, or `is-member`.
        """
        now = self._settled()
        if name in now:
            raise Refused("is-member", f"{name} is a member already, at {now[name].address}")
        if sum(not seat.votes for seat in now.values()) >= LEARNERS_MAX:
            [learner] = [each for each, seat in now.items() if not seat.votes]
            raise Refused("too-many", f"{learner} is still a learner; promote or remove it first")
        self._demand_free(name, address)
        return self._leader.change({**now, name: Seat(LEARNING, False, address)})

    def promote(self, name: str) -> Entry:
        """Let a learner that has caught up vote.

        Raises:
            Refused: `changing`, `not-a-member`, `is-member` (it votes already), `too-many`,
                `not-caught-up`, or `no-quorum` (fewer voters would be live than a majority needs).
        """
        now = self._settled()
        seat, peer = self._seat(name), self._leader.peer(name)
        if seat.votes:
            raise Refused("is-member", f"{name} votes already")
        voters = self._core.roster.voters
        if len(voters) == VOTERS_MAX:
            raise Refused("too-many", f"{VOTERS_MAX} nodes vote already; remove one first")
        if peer is None or peer.incarnation == UNKNOWN or not self._leader.is_live(peer):
            raise Refused("not-caught-up", f"{name} was not heard lately; is it running?")
        if self._is_old(name, seat, peer.incarnation):
            words = "its directory is not a new member's; empty it and start it again"
            raise Refused("not-caught-up", f"{name} cannot count: {words}")
        if peer.match < self._core.commit:
            behind = self._core.commit - peer.match
            raise Refused("not-caught-up", f"{name} lacks {behind} committed entries")
        self._demand_quorum([*self._leader.heard_voters(), name], len(voters) + 1, f"with {name}")
        return self._leader.change(
            {**now, name: replace(seat, incarnation=peer.incarnation, votes=True)}
        )

    def remove(self, name: str) -> Entry:
        """Take a member, or a learner, out of the configuration.

        Raises:
            Refused: `changing`, `not-a-member`, `no-quorum`, or `leads` (this node cannot remove
                itself while it leads).
        """
        now = self._settled()
        seat = self._seat(name)
        if name == self._core.name:
            raise Refused("leads", f"{name} leads, and has to hand over before it is removed")
        if seat.votes:
            left = [each for each in self._leader.heard_voters() if each != name]
            self._demand_quorum(left, len(self._core.roster.voters) - 1, f"without {name}")
        return self._leader.change({each: now[each] for each in now if each != name})

    def move(self, name: str, address: str) -> Entry:
        """Give a member another address.

        Raises:
            Refused: `changing`, `not-a-member`, or `is-member` (another member has the address).
        """
        now = self._settled()
        seat = self._seat(name)
        self._demand_free(name, address)
        return self._leader.change({**now, name: replace(seat, address=address)})

    def _is_old(self, name: str, seat: Seat, incarnation: int) -> bool:
        """Whether a copy of a learner's state is known to be older than the learner's addition.

        It is if it founded the cluster, was suspended, or has counted as a voter.
        """
        roster = self._core.roster
        is_lost = seat.incarnation == suspended(incarnation)
        return incarnation == FOUNDER or is_lost or roster.has_counted(name, incarnation)

    def _settled(self) -> Configuration:
        """Return the configuration; `Refused` if its last change is not committed yet."""
        if not self._leader.is_settled:
            raise Refused("changing", "the last change of the members is not committed yet")
        return self._core.roster.now

    def _seat(self, name: str) -> Seat:
        seat = self._core.roster.now.get(name)
        if seat is None:
            members = ", ".join(self._core.roster.now)
            raise Refused("not-a-member", f"{name} is not a member; the members are {members}")
        return seat

    def _demand_free(self, name: str, address: str) -> None:
        for other, seat in self._core.roster.now.items():
            if address and seat.address == address and other != name:
                raise Refused("is-member", f"{address} is the address of {other}")

    def _demand_quorum(self, live: list[str], voters: int, words: str) -> None:
        needed = majority_of(voters)
        if len(live) < needed:
            raise Refused(
                "no-quorum",
                f"{words} {voters} nodes vote and {needed} have to be live, but only "
                f"{', '.join(live)} would be",
            )
        unheard = [name for name in live if self._is_unheard(name)]
        if len(live) - len(unheard) < needed:
            raise Refused(
                "changing", f"{', '.join(unheard)} was not heard yet since {self._core.name} leads"
            )

    def _is_unheard(self, name: str) -> bool:
        """Whether a peer counts as live only because this node has just begun to lead.

        Such a peer has not answered this leader yet. A leader hands over before it is removed, so
        its successor may be asked for the removal before any peer has answered.
        """
        peer = self._leader.peer(name)
        return peer is not None and peer.incarnation == UNKNOWN
