"""Invariants of consensus, checked after every event."""

from collections.abc import Sequence

from sequencer.raft.consensus import FOUNDER, Ballot, Entry, EntryKind, Ready
from sequencer.raft.engine import Raft
from sequencer.raft.entries import unpack_member
from sequencer.raft.quorum import is_suspended


class Violation(AssertionError):  # noqa: N818 - the word of the field
    """An invariant was violated; the message says which."""


class Checker:
    """Watches a cluster from outside and remembers what nodes may forget.

    Checks: one leader per term; one vote per node and term; a leader commits by an entry of its
    own term, and credits others only with what their disks hold; entries with the same index and
    term are the same and follow the same; a new leader has everything committed before; what is
    committed stays and is the same everywhere; a commit was durable on a majority; a node that
    knows of a commit does not forget it while it lives; states are equal at equal indexes; a
    command is committed at most once; a read sees what was acknowledged before it was asked.
    """

    def __init__(self, majority: int) -> None:
        self._majority = majority
        self._leaders: dict[int, str] = {}
        self._entries: dict[tuple[int, int], tuple[bytes, EntryKind, int]] = {}
        self._durable: dict[tuple[int, int], set[str]] = {}
        self.decided: list[Entry] = []
        self._decided_by: list[int] = []
        self._commands: set[bytes] = set()
        self._digests: dict[int, str] = {}
        self._votes: dict[tuple[str, int, int], str] = {}
        self._covered: dict[str, int] = {}
        self._floors: dict[tuple[str, int], int] = {}
        self._matches: dict[tuple[str, int, str], int] = {}
        self._known: dict[tuple[str, int], int] = {}
        self.acknowledged = 0
        self.commands_are_unique = True

    def begins_after(self, index: int) -> None:
        """Let the nodes begin with what another cluster has decided up to an entry."""
        self.decided = [Entry(each, 0, b"%d before" % each) for each in range(1, index + 1)]
        self._decided_by = [0] * index

    def leads(self, name: str, raft: Raft) -> bool:
        """Check that a leader is the only one of its term and lacks nothing; True if it is new."""
        term = raft.core.term
        other = self._leaders.get(term)
        if other == name:
            return False
        if other is not None:
            raise Violation(f"{name} and {other} both lead term {term}")
        self._leaders[term] = name
        self._floors[name, term] = raft.core.commit
        log = raft.core.log
        for entry, by in zip(self.decided[log.base :], self._decided_by[log.base :], strict=True):
            if by < term and log.term_at(entry.index) != entry.term:
                raise Violation(f"{name} leads term {term} without decided entry {entry.index}")
        return True

    def reigns(self, name: str, raft: Raft) -> None:
        """Check that a leader commits by its own entries and overstates no follower."""
        core = raft.core
        if not raft.leads:
            return
        own = core.log.term_at(core.commit) == core.term
        if core.commit > self._floors.get((name, core.term), core.commit) and not own:
            raise Violation(f"{name} decides up to {core.commit}, an entry of an older term")
        for peer in raft.status().peers:
            place = (name, core.term, peer.name)
            if peer.match > self._matches.get(place, 0):
                self._matches[place] = peer.match
                self.demand_durable(peer.name, peer.match, core.log.term_at(peer.match))

    def demand_durable(self, name: str, index: int, term: int | None) -> None:
        """Raise `Violation` if a node is wrongly believed to have an entry durably."""
        holders = self._durable.get((index, term or 0), ())
        if term is not None and index > self._covered.get(name, 0) and name not in holders:
            raise Violation(f"{name} is believed to have entry {index} of term {term} durably")

    def knows(self, name: str, life: int, commit: int) -> None:
        """Check that a node may consider everything up to an entry as committed."""
        known = self._known.get((name, life), 0)
        if commit < known:
            raise Violation(f"{name} knew {known} entries to be decided, and now {commit}")
        self._known[name, life] = commit

    def voted(self, name: str, incarnation: int, ballot: Ballot) -> None:
        """Record that a ballot is on a node's disk."""
        if ballot.voted_for:
            place = (name, incarnation, ballot.term)
            if self._votes.setdefault(place, ballot.voted_for) != ballot.voted_for:
                raise Violation(f"{name} votes twice in term {ballot.term}")

    def covered(self, name: str, index: int) -> None:
        """Record that a snapshot up to an entry is on a node's disk."""
        self._covered[name] = max(self._covered.get(name, 0), index)

    def logged(self, ready: Ready, previous: int | None) -> None:
        """Check entries that enter a log after one of the term `previous`."""
        before = previous
        for entry in ready.entries:
            place = (entry.index, entry.term)
            what = (entry.command, entry.kind, -1 if before is None else before)
            known = self._entries.setdefault(place, what)
            if known[:2] != what[:2] or (known[2] != what[2] and -1 not in (known[2], what[2])):
                raise Violation(f"two different entries {entry.index} of term {entry.term}")
            before = entry.term

    def admits(self, name: str, ready: Ready) -> None:
        """Check a change of the roster: a new copy counts only after the old one was removed.

        In one step, a majority with the old copy and one with the new might not meet.
        """
        for entry in ready.entries:
            if entry.kind is EntryKind.MEMBER:
                member, incarnation = unpack_member(entry.command)
                decided = [e for e in (*self.decided, *ready.committed) if e.kind is entry.kind]
                last = dict(unpack_member(e.command) for e in decided).get(member, FOUNDER)
                if not (is_suspended(incarnation) or is_suspended(last) or last == incarnation):
                    raise Violation(f"{name} admits {member}, whose old copy is not suspended")

    def durable(self, name: str, entries: Sequence[Entry]) -> None:
        """Record that entries are on a node's disk."""
        for entry in entries:
            self._durable.setdefault((entry.index, entry.term), set()).add(name)

    def decides(self, name: str, entry: Entry, term: int) -> None:
        """Check an entry that a node considers committed, in this term or an earlier one."""
        if entry.index <= len(self.decided):
            if self.decided[entry.index - 1] != entry:
                raise Violation(f"{name} decides another entry {entry.index} than before")
            return
        if entry.index != len(self.decided) + 1:
            raise Violation(f"{name} decides entry {entry.index}, past an undecided one")
        holders = self._durable.get((entry.index, entry.term), set())
        if len(holders) < self._majority:
            raise Violation(f"{name} decides entry {entry.index}, durable on {sorted(holders)}")
        if self._once(entry) and entry.command in self._commands:
            raise Violation(f"{name} decides the command of entry {entry.index} twice")
        self._commands.add(entry.command)
        self.decided.append(entry)
        self._decided_by.append(term)

    def _once(self, entry: Entry) -> bool:
        return self.commands_are_unique and entry.kind is EntryKind.COMMAND

    def applied(self, name: str, index: int, expected: int, digest: str) -> None:
        """Check that a node's state is that of the entry `index`."""
        if index != expected:
            raise Violation(f"{name} applies entry {index} where {expected} is due")
        if self._digests.setdefault(index, digest) != digest:
            raise Violation(f"{name} has another state than others after entry {index}")

    def read(self, name: str, index: int, floor: int) -> None:
        """Check that a node may answer a read from the state after `index`."""
        if index < floor:
            raise Violation(f"{name} reads entry {index}, after {floor} was acknowledged")
