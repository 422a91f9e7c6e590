"""Mistakes in what a node keeps on disk and in snapshots, and in what it answers from them."""

from dataclasses import replace
from typing import Any

from rt.errors import WriterFailed
from rt.format.ranges import Range
from sequencer.journal import ballot as ballots
from sequencer.journal import entry_log as entry_logs
from sequencer.journal import journal as journals
from sequencer.journal import recovery as recoveries
from sequencer.journal.ballot import Ballots
from sequencer.journal.entry_log import EntryLog
from sequencer.journal.journal import Journal, Opened
from sequencer.journal.records import RecordScan, scan
from sequencer.ledger.instruction import Slice
from sequencer.ledger.ledger import Ledger, decode_ledger
from sequencer.raft.consensus import FOUNDER, EngineState, Snapshot
from sequencer.raft.core import Core, Outgoing
from sequencer.raft.entries import Log
from sequencer.raft.follower import Election
from sequencer.raft.leader import Leader, Reads
from sequencer.raft.messages import VoteReply
from sequencer.raft.snapshots import Assembly

from . import machine as machines
from . import node as nodes
from .mutation import Patch, mutant, noticed_by, rewritten

# Durability


@mutant
def speaks_before_the_sync() -> list[Patch]:
    """Votes and acknowledgements are sent before what they promise is durable."""
    right, wrong = "self.after_sync.append(PeerMessage(to", "self.now.append(PeerMessage(to"
    return [
        (Outgoing, "send_after_sync", Outgoing.send_now), rewritten(Outgoing, "drain", right, wrong)
    ]  # fmt: skip


@mutant
def log_not_synced() -> list[Patch]:
    """The journal writes and does not sync."""
    return [rewritten(EntryLog, "append", "self._file.sync()", "pass")]


@mutant
def failed_sync_forgiven() -> list[Patch]:
    """A failed sync is taken as done."""
    right = Journal.persist

    def persist(self: Journal, ready: Any) -> None:
        try:
            right(self, ready)
        except WriterFailed:
            self._failed = ""

    return [(Journal, "persist", persist)]


@mutant
def page_cache_trusted() -> list[Patch]:
    """What is read at the start counts as durable although it may be only in memory."""
    right = EntryLog.make_durable

    def make_durable(self: EntryLog, is_proven: bool, base_index: int, base_term: int) -> None:
        right(self, is_proven or bool(self._tail), base_index, base_term)

    return [(EntryLog, "make_durable", make_durable)]


@mutant
def page_cache_synced_again() -> list[Patch]:
    """What is read at the start is synced, not written again: the kernel has nothing to write."""
    right = EntryLog.make_durable

    def make_durable(self: EntryLog, is_proven: bool, base_index: int, base_term: int) -> None:
        self._file.sync()
        right(self, is_proven or bool(self._tail), base_index, base_term)

    return [(EntryLog, "make_durable", make_durable)]


@mutant
@noticed_by("unit/test_raft.py::test_entries_that_replace_durable_ones_are_persisted")
def truncation_keeps_durability() -> list[Patch]:
    """Entries that replace durable ones are taken for durable."""
    return [rewritten(Log, "truncate", "self.durable = min(self.durable, index - 1)", "pass")]


@mutant
def both_slots_at_once() -> list[Patch]:
    """Both slots of the ballot are rewritten before either is synced."""
    right = "        slot.sync()"
    return [rewritten(Ballots, "write", right, "    for slot in self._slots:\n" + right)]


@mutant
def damage_cut_like_a_tear() -> list[Patch]:
    """Rot in the log is cut off as if it had never been durable."""
    right = scan

    def scanned(data: bytes, marked: int, *, is_same_boot: bool) -> RecordScan:
        result = right(data, marked, is_same_boot=is_same_boot)
        if result.header is not None:
            result.damage = ""
        return result

    return [(recoveries, "scan", scanned)]


@mutant
def snapshot_written_in_place() -> list[Patch]:
    """The snapshot file is overwritten instead of replaced."""
    right, wrong = 'f"{path}/{name}.tmp", create', 'f"{path}/{name}", create'
    moved = 'disk.replace(f"{path}/{name}.tmp", f"{path}/{name}")'
    wrongly = rewritten(journals, "write_whole", right, wrong, moved, "pass")
    return [(module, *wrongly[1:]) for module in (journals, entry_logs, ballots)]


@mutant
def snapshot_not_synced() -> list[Patch]:
    """A file is renamed into place before its bytes are durable."""
    wrongly = rewritten(journals, "write_whole", "file.sync()", "pass")
    return [(module, *wrongly[1:]) for module in (journals, entry_logs, ballots)]


@mutant
def log_cut_before_the_snapshot() -> list[Patch]:
    """The log is cut first and the snapshot saved after it."""
    saved, cut = (
        "write_whole(self._disk, self._path, SNAPSHOT_NAME, [encode_snapshot(snapshot)])",
        "self._log.rewrite(snapshot.index, snapshot.term)",
    )
    return [rewritten(Journal, "save_snapshot", saved, "pass", cut, f"{cut}\n        {saved}")]


# Snapshots


@mutant
def snapshot_claims_an_entry_more() -> list[Patch]:
    """The snapshot that is sent says that it holds one entry more than it does."""
    right = Core.compact

    def compact(self: Core, index: int, data: bytes, needed: int) -> Snapshot | None:
        made = right(self, index, data, needed)
        if made is not None:
            self.snapshots.keep(replace(made, index=made.index + 1))
        return made

    return [(Core, "compact", compact)]


@mutant
def snapshot_keeps_the_old_log() -> list[Patch]:
    """Entries that a received snapshot replaces stay in the log."""

    def reset(self: Log, index: int, term: int) -> None:
        self._entries = self._entries[max(0, index - self.base) :]
        self.base, self.base_term, self.durable = index, term, 0
        self.last = index + len(self._entries)

    return [(Log, "reset", reset)]


@mutant
def chunks_taken_in_any_order() -> list[Patch]:
    """Chunks of a snapshot are joined in order of arrival."""
    return [rewritten(Assembly, "add", "if offset == len(self._parts):", "if True:")]


# Lost state


@mutant
def empty_disk_votes() -> list[Patch]:
    """A node with an empty directory counts as if it had lost nothing."""
    right = journals.open_journal

    def opened(*args: Any, **named: Any) -> Opened:
        result = right(*args, **named)
        state = result.state
        bare = EngineState(state.ballot, state.snapshot, state.entries, FOUNDER)
        return Opened(result.journal, bare, result.damage)

    return [(nodes, "open_journal", opened)]


@mutant
def lost_copies_count() -> list[Patch]:
    """Votes and acknowledgements count by name, whichever copy of the state they come from."""

    def count(self: Election, voter: str, incarnation: int, vote: VoteReply) -> None:
        if vote.term == self.term and vote.pre_vote == self.pre_vote and vote.granted:
            self._votes.add(voter)

    voter = property(lambda self: True)
    return [
        (Leader, "counts", lambda self, peer: True),
        (Election, "count", count),
        (Core, "is_voter", voter),
    ]


@mutant
def snapshot_forgets_the_roster() -> list[Patch]:
    """A snapshot claims that all members are founders."""
    right = Core.compact

    def compact(self: Core, index: int, data: bytes, needed: int) -> Snapshot | None:
        made = right(self, index, data, needed)
        if made is None:
            return None
        founders = tuple((name, replace(seat, incarnation=FOUNDER)) for name, seat in made.roster)
        return self.snapshots.keep(replace(made, roster=founders))

    return [(Core, "compact", compact)]


# Reads


@mutant
def reads_without_asking() -> list[Patch]:
    """A leader answers a read without asking whether it still leads."""

    def open_round(self: Reads, confirmed: bool) -> None:
        for asker, ticket in self.asked:
            self._answer(asker, ticket, self._core.commit)
        self.asked = []

    return [(Reads, "open_round", open_round)]


@mutant
def reads_before_the_first_commit() -> list[Patch]:
    """A new leader answers reads before it has committed anything itself."""
    right = Reads.open_round
    return [(Reads, "open_round", lambda self, confirmed: right(self, True))]


# The sequencer's own state


@mutant
def stale_slices_executed() -> list[Patch]:
    """A slice that was planned on another state is merged anyway."""
    return [(Ledger, "accepts", lambda self, each: True)]


@mutant
def repeats_counted() -> list[Patch]:
    """Messages that a redundant publisher repeats are merged again."""
    right = Ledger.range_of

    def range_of(self: Ledger, each: Slice, term: int, time_ns: int) -> Range:
        return right(self, replace(each, skip=0), term, time_ns)

    return [(Ledger, "range_of", range_of)]


@mutant
def snapshot_forgets_the_watermarks() -> list[Patch]:
    """After a restart, the ends of merged sessions are known, but not the merged numbers."""
    right = decode_ledger

    def decode(data: bytes) -> Ledger:
        ledger = right(data)
        ledger.watermarks.clear()
        return ledger

    return [(machines, "decode_ledger", decode)]
