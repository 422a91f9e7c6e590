"""A simulated cluster whose members change during the faults."""

from collections.abc import Callable, Sequence, Set
from random import Random
from typing import Final

from rt.errors import Refused
from sequencer.journal.journal import Opened, found
from sequencer.journal.starts import Listed
from sequencer.membership import ANNOUNCEMENTS, Membership
from sequencer.peers.departed import Departed, RemovalVerdicts
from sequencer.peers.restart_check import RestartCheck
from sequencer.planning.holdings import Holdings
from sequencer.raft.consensus import EntryKind, Ready, UnheardError
from sequencer.raft.core import Core
from sequencer.raft.engine import Raft
from sequencer.raft.entries import unpack_configuration
from sequencer.raft.quorum import majority_of
from sequencer.raft.starts import Claim, Reach, StartChain

from .admission import Admission
from .checkers import Checker, Violation
from .cluster import Cluster
from .nemesis import Nemesis
from .node import PATH, SimNode
from .seats import configuration_before, voters_of

FOUNDED = (1, 3, 3, 5)  # members at the start
ANNOUNCEMENT = b"\xff"  # prefix of an announcement; no message of the engine begins like this
# ticks between two announcements; elections are as much faster than a real node's
ANNOUNCE_TICKS = 3
QUIET_TIMEOUTS = 12  # election timeouts after the recovery in which the leader must not change


class MemberChecker(Checker):
    """Also checks: what a leader commits is durable on a majority of its own log's members.

    It reads the members from the entries, not from the engine's own list.
    """

    def __init__(self, founders: tuple[str, ...]) -> None:
        super().__init__(0)  # the majority depends on the log
        self._founders = founders
        self._committed: dict[tuple[str, int], int] = {}
        self._first_listed = dict.fromkeys(founders, 0)  # the first entry that lists each name
        self._reborn: set[str] = set()
        self._committed_to = 0
        self._members: Set[str] = set(founders)

    def reigns(self, name: str, raft: Raft) -> None:
        """Check that a leader commits only what a majority of its newest voters holds."""
        super().reigns(name, raft)
        core = raft.core
        known = self._committed.get((name, core.term), core.commit)
        if core.commit > known:
            self._demand_majority(name, core)
        self._committed[name, core.term] = core.commit

    def demand_durable(self, name: str, index: int, term: int | None) -> None:
        """Raise `Violation` if a node is wrongly believed to have an entry durably."""
        if name not in self._reborn:  # otherwise the old machine may have said so, long ago
            super().demand_durable(name, index, term)

    def _demand_majority(self, name: str, core: Core) -> None:
        index, voters = core.commit, voters_of(core, self._founders, core.log.last)
        # entries appended since the commit index moved are not written yet
        before = voters_of(core, self._founders, core.log.durable)
        if not (self._is_held(core, voters) or self._is_held(core, before)):
            raise Violation(f"{name} decides entry {index}, too few of {sorted(voters)} hold it")

    def _is_held(self, core: Core, voters: set[str]) -> bool:
        term = core.log.term_at(core.commit) or 0
        holders = voters & self._durable.get((core.commit, term), set())
        holders |= {each for each in voters if self._covered.get(each, 0) >= core.commit}
        return len(holders) >= majority_of(len(voters))

    def forgets(self, name: str) -> None:
        """Forget a node whose machine is gone; another may get its name."""
        self._reborn.add(name)
        self._covered.pop(name, None)
        for holders in self._durable.values():
            holders.discard(name)
        for known in [each for each in self._known if each[0] == name]:
            del self._known[known]

    def changes(self, name: str, raft: Raft, ready: Ready) -> None:
        """Check that a leader changes one member at a time, from a committed configuration."""
        core = raft.core
        for entry in ready.entries:
            if entry.kind is not EntryKind.CONFIGURATION:
                continue
            before, at = configuration_before(core, entry.index, self._founders)
            after = unpack_configuration(entry.command)[0]
            for each in after:
                first = self._first_listed.get(each, entry.index)
                self._first_listed[each] = min(first, entry.index)
            differing = [each for each in {*before, *after} if before.get(each) != after.get(each)]
            if len(differing) > 1:  # none differ if a node moves to its own address
                raise Violation(f"{name} changes {sorted(differing)} in one entry")
            if core.log.term_at(core.commit) != core.term:
                raise Violation(f"{name} changes the members before an entry of its own is decided")
            if at > core.commit:
                raise Violation(f"{name} changes the members of an undecided configuration")

    def commits(self, core: Core) -> None:
        """Remember the members by the newest committed entry."""
        if core.commit > self._committed_to:
            self._committed_to = core.commit
            self._members = configuration_before(core, core.commit + 1, self._founders)[0].keys()

    def demand_removed(self, name: str) -> None:
        """Check that a node which ends as removed is no member by any newest committed entry."""
        if name in self._members:
            raise Violation(f"{name} ends as removed, and is a member at {self._committed_to}")

    def departs(self, name: str, departed: Sequence[str], commit: int) -> None:
        """Check that a node considers only names removed that its committed log has listed."""
        strange = [each for each in departed if self._first_listed.get(each, commit) >= commit]
        if strange:
            raise Violation(f"{name} takes {strange} for removed, which its log has not listed yet")


class MemberNode(SimNode):
    """A node that may join a running cluster, and ends when it is removed.

    It follows announcements, as nodes do; its greetings are not simulated here.
    """

    cluster: "MemberCluster"
    departed: Sequence[str] = ()  # names of removed nodes, as saved
    listed = Listed()  # the members by the last decided configuration, as saved

    def _found(self, directory: int) -> None:
        if self.name in self.cluster.founders and self.name not in self.cluster.retired:
            members = dict.fromkeys(self.cluster.founders, "")
            found(self.disk, PATH, cluster="sim", node=self.name, directory=directory,
                  members=members)  # fmt: skip
        else:
            self.lacks_state = True  # a start that creates the state may be interrupted

    def start(self) -> None:
        """Start, unless it was removed."""
        try:
            super().start()
        except Refused as error:
            if error.code != "removed":
                raise
            self.cluster.retire(self)

    def make_engine(self, opened: Opened) -> None:
        super().make_engine(opened)
        self.lost = False  # an empty disk is no loss in a node that never had a state
        claim = Claim(0, StartChain(1, (1,)), Reach(), Reach())
        self.membership = Membership(
            self.name, self.raft, Holdings(self.name, self.cluster.names),
            RestartCheck((), claim, {}, lambda _memories: None), lambda _addresses: None,
            departed=Departed(
                self.departed, self._keep_departed, founders=opened.state.founders,
                members=self.listed,
            ),
        )  # fmt: skip
        self.verdicts = RemovalVerdicts()

    def _keep_departed(self, names: Sequence[str], listed: Listed) -> None:
        self.cluster.checker.departs(self.name, names, self.raft.status().commit)
        self.departed, self.listed = names, listed

    def advance(self) -> None:
        """Advance a tick, and announce the configuration from time to time."""
        super().advance()
        membership = self.membership
        membership.follow()
        membership.restart_check.tick()
        membership.tick()
        if membership.restart_check.ticks % ANNOUNCE_TICKS == 0:
            announcement = ANNOUNCEMENT + membership.announcement()
            for other in sorted(membership.doors.peers - {self.name}):  # it would hear itself
                self.cluster.wire.send(self.name, other, announcement)

    def receive(self, source: str, data: bytes) -> None:
        """Handle a message, or an announcement."""
        self.membership.follow()
        self.membership.record_heard(source)
        if data[:1] != ANNOUNCEMENT:
            super().receive(source, data)
            return
        try:
            self.membership.receive(source, data[1:])
        except UnheardError as error:
            self.cluster.unheard(self, source, str(error))

    def told(self, member: str, is_removed: bool) -> None:
        """Handle a member's answer to a connection: whether it refuses this node as removed."""
        if self.verdicts.convict({member: is_removed}, self.raft, self.name):
            self.journal.persist(Ready(removed=True))


class MemberNemesis(Nemesis):
    """Also an operator who adds, promotes, moves and removes members, whatever else happens."""

    cluster: "MemberCluster"

    def __init__(self, cluster: "MemberCluster", chance: Random) -> None:
        super().__init__(cluster, chance)
        self._changing_us = chance.choice([1, 3, 10]) * cluster.tick_us
        cluster.clock.after(self._changing_us, self._change_members)

    def _lose_state(self) -> None:
        """Do nothing: how many copies may be lost at once depends on the members at that moment."""

    def _change_members(self) -> None:
        if not self.active:
            return
        self.cluster.clock.after(
            self._chance.randint(1, 2 * self._changing_us), self._change_members
        )
        leader = self.find_leader()
        if leader is not None:
            leader.guarded(self._change, leader)

    def _change(self, leader: SimNode) -> None:
        raft, cluster, chance = leader.raft, self.cluster, self._chance
        name = chance.choice(cluster.everyone)
        seat = raft.members.get(name)
        try:
            if seat is None:
                if cluster.may_join(name):
                    raft.changes.add(name, f"{name}:{chance.randrange(9)}")
                    cluster.join(name)
            elif not seat.votes and chance.random() < 0.9:
                raft.changes.promote(name)
            elif chance.random() < 0.2:
                raft.changes.move(name, f"{name}:{chance.randrange(9)}")
            elif name == leader.name and chance.random() < 0.5:
                raft.transfer(chance.choice(cluster.names))
            else:
                raft.changes.remove(name)
        except Refused:
            return
        cluster.trace(f"{leader.name} changes {name}")


class MemberCluster(Cluster):
    """A cluster of founders that others join and replace.

    After the faults it also checks that no node which left, or was left out, unseats a leader.
    """

    may_bury = has_fixed_members = False
    heal_timeouts = 80  # a node that was away may first have to find out that it is alone
    checker: MemberChecker

    def __init__(self, seed: int, log: Callable[[str], None] | None = None) -> None:
        self.retired: set[str] = set()
        self.admission = Admission(self, seed)
        super().__init__(seed, log=log)

    def draw_names(self, chance: Random) -> tuple[str, ...]:
        self.founders = tuple(f"n{number}" for number in range(1, chance.choice(FOUNDED) + 1))
        self.everyone: Final = (*self.founders, "n6", "n7", "n8")
        return self.founders

    def _make_checker(self) -> Checker:
        return MemberChecker(self.founders)

    def make_nemesis(self, chance: Random) -> Nemesis:
        return MemberNemesis(self, chance)

    def _make_node(self, name: str, chance: Random) -> SimNode:
        return MemberNode(name, self, chance)

    def is_open(self, node: SimNode) -> bool:
        """Whether a node accepts messages from non-members."""
        assert isinstance(node, MemberNode)
        return node.membership.doors.is_open

    def shown(self, node: SimNode, data: bytes) -> object:
        """Return what a trace shows of a message."""
        return data if data[:1] == ANNOUNCEMENT else super().shown(node, data)

    def removed(self) -> Set[str]:
        """Return the names of nodes that were removed and have ended."""
        return self.retired - self.nodes.keys()

    def may_join(self, name: str) -> bool:
        """Whether a new machine may get this name: the old one, if any, has ended for good."""
        return name not in self.nodes

    def join(self, name: str) -> None:
        """Start a node on an empty disk, now or later."""
        wait = self._chance.randrange(20) * self.tick_us
        self.clock.after(wait, self._join, name)

    def _join(self, name: str) -> None:
        if name not in self.nodes:
            self.names = (*self.names, name)
            self.nodes[name] = self._make_node(name, Random(self._chance.getrandbits(32)))

    def retire(self, node: SimNode) -> None:
        """Note that a node has ended for good, so that a new machine may get its name."""
        if self.nodes.get(node.name) is node:
            self.checker.demand_removed(node.name)
            del self.nodes[node.name]
            self.retired.add(node.name)
            self.checker.forgets(node.name)
            self.names = tuple(name for name in self.names if name != node.name)

    def deliver(self, source: str, target: str, data: bytes) -> None:
        """Deliver a message to a node that admits its sender.

        What an ended process has sent was admitted before it ended.
        """
        here, there = self.nodes.get(target), self.nodes.get(source)
        if not isinstance(here, MemberNode):
            return
        is_new = isinstance(there, MemberNode) and there.alive and here.alive
        if not is_new or self.admission.admits(there, here):
            super().deliver(source, target, data)

    def ready(self, node: SimNode, ready: Ready) -> None:
        """Observe that a node has taken its duties."""
        super().ready(node, ready)
        self.checker.commits(node.raft.core)
        if node.raft.leads:
            self.checker.changes(node.name, node.raft, ready)

    # The end

    def end_faults(self) -> None:
        super().end_faults()
        leader = self.nemesis.find_leader()
        members = leader.raft.members if leader else {}
        for name in members:
            self._join(name)

    def recovered(self) -> bool:
        leader = next((n for n in self.nodes.values() if n.alive and n.raft.leads), None)
        if leader is None or self._proposed < self._proposals_max or not self.checker.acknowledged:
            return False
        members = leader.raft.members
        states = [
            (node.machine.index, node.settled() or not members[name].votes)
            for name in members
            if (node := self.nodes.get(name)) is not None
            and node.alive
            and not self._is_misled(node, leader)
        ]
        voters = [name for name, seat in members.items() if seat.votes]
        whole = all(name in self.nodes and self.nodes[name].alive for name in voters)
        return whole and all(state == (len(self.checker.decided), True) for state in states)

    def _is_misled(self, node: SimNode, leader: SimNode) -> bool:
        """Whether a learner cannot find the leader; the operator has to act (limits in SAFETY.md).

        It knows the leader's name as a removed node's, or it hears a voter of its own log that was
        removed and still runs.
        """
        assert isinstance(node, MemberNode)
        doors, members = node.membership.doors, leader.raft.members
        removed = [self.nodes[each] for each in doors.voters if each in self.nodes.keys() - members]
        is_held = leader.name in doors.departed or any(each.alive for each in removed)
        return is_held and not node.raft.core.is_voter

    def run(self) -> str:
        """Run the faults, demand progress, and then that the leader stays."""
        hashed = super().run()
        self._proposals_max = 0
        quiet = QUIET_TIMEOUTS * self.settings.election_ticks
        self.until(quiet, lambda: False)  # messages sent during the faults may still arrive
        term = max(node.raft.status().term for node in self.nodes.values() if node.raft.leads)
        self.until(quiet, lambda: False)
        leading = [n.raft.status().term for n in self.nodes.values() if n.alive and n.raft.leads]
        if leading != [term]:
            raise Violation(f"the leader of term {term} fell without a fault: {self.states()}")
        leader = next(node for node in self.nodes.values() if node.alive and node.raft.leads)
        members = leader.raft.members.keys()
        # removed nodes that are connected may stay so for all announcements
        ticks = 2 * ANNOUNCEMENTS * ANNOUNCE_TICKS + quiet
        if not self.until(ticks, lambda: not self.admission.surviving(members)):
            raise Violation(f"{self.admission.surviving(members)} were removed, and do not end")
        return hashed
