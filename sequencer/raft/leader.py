"""The leader: replicating the log, deciding what is committed, and handing leadership over."""

from collections.abc import Iterator
from typing import Final

from rt.errors import PeerError, Refused
from sequencer.raft.consensus import (
    COMMAND_BYTES_MAX,
    Configuration,
    Entry,
    EntryKind,
    Peer,
)
from sequencer.raft.core import Core
from sequencer.raft.entries import pack_configuration, pack_member
from sequencer.raft.messages import (
    AppendEntries,
    AppendReply,
    InstallSnapshot,
    ReadIndexReply,
    SnapshotReply,
    TimeoutNow,
)
from sequencer.raft.progress import UNKNOWN, Progress, ProgressState
from sequencer.raft.quorum import is_suspended, reached, suspended
from sequencer.raft.snapshots import encode_snapshot

_PROBE, _REPLICATE = ProgressState.PROBE, ProgressState.REPLICATE


class Leader:
    """Leader: replicates the log to the other members and commits entries, for one term.

    Its first entry is a no-op. Once that is committed, so are all entries of earlier terms.
    """

    def __init__(self, core: Core) -> None:
        self._core = core
        self._peers: dict[str, Progress] = {}
        self._heartbeat_ticks = 0
        self._transferee, self._transfer_ticks, self._transfer_due = "", 0, False
        undecided = core.log.between(core.commit + 1, core.log.last)
        self._undecided_bytes = sum(len(entry.command) for entry in undecided)
        self.reads = Reads(core)
        self._follow_roster()
        self._no_op = self._append(b"", EntryKind.NO_OP).index
        core.leader = core.name

    def _append(self, command: bytes, kind: EntryKind) -> Entry:
        entry = Entry(self._core.log.last + 1, self._core.term, command, kind)
        self._core.append(entry)
        return entry

    # Proposals and the commit index

    def propose(self, command: bytes) -> Entry:
        """Append a command; the next `Ready` sends it.

        Raises:
            Refused: `moving`, `too-large` or `busy`, as for `Raft.propose`.
        """
        length = len(command)
        if self._transferee:
            raise Refused("moving", f"leadership is being handed to {self._transferee}")
        if length > COMMAND_BYTES_MAX:
            raise Refused("too-large", f"command of {length} bytes; limit {COMMAND_BYTES_MAX}")
        if self._undecided_bytes + length > self._core.settings.undecided_bytes_max:
            raise Refused("busy", f"{self._undecided_bytes} bytes are undecided already")
        self._undecided_bytes += length
        return self._append(command, EntryKind.COMMAND)

    def advance_commit(self) -> None:
        """Commit what is durable on a majority, if its last entry is of this term.

        Even if a majority holds an entry of an older term, a later leader may overwrite it until a
        majority also holds an entry of this term (figure 8 of the Raft paper).
        """
        core, log = self._core, self._core.log
        if core.commit == log.last:
            return
        ends = [log.durable]
        for peer in self._peers.values():
            if self.counts(peer):
                ends.append(peer.match)  # noqa: PERF401 - a comprehension is a function in 3.11
        index = reached(ends, core.roster.majority)
        if index > core.commit and log.term_at(index) == core.term:
            for entry in log.between(core.commit + 1, index):
                self._undecided_bytes -= len(entry.command)
            core.commit_to(index)
            if self._is_following:
                self._follow_roster()

    def counts(self, peer: Progress) -> bool:
        """Whether the peer votes, and its replies come from the copy of its state that counts."""
        return self._core.roster.counts(peer.name, peer.incarnation)

    # Sending

    def flush(self) -> None:
        """Send each peer what is new for it: entries, the commit index, a ReadIndex round."""
        core, reads = self._core, self.reads
        if reads.asked or reads.rounds:
            reads.open_round(core.commit >= self._no_op)
            self._settle_reads()
        last, news = core.log.last, (core.commit, reads.round)
        for peer in self._peers.values():
            if peer.next <= last or peer.sent != news:
                # A removed peer gets only committed entries. If it held its own removal before that
                # is committed, it could not know whether it is a member, and its longer log could
                # keep the others from electing a leader without it.
                self._send(peer, last if peer.name in core.roster.now else core.commit)
        if self._transfer_due:
            self._send_timeout_now()

    def heartbeat(self) -> None:
        """Send every peer a heartbeat, which also resends what may have been lost."""
        self._transfer_due = bool(self._transferee)
        for peer in self._peers.values():
            if peer.snapshot is not None:
                self._send_chunk(peer)
            else:
                self._send_append(peer, (), heartbeat=True)
                if peer.match < peer.recover and self.is_live(peer):
                    peer.waiting = False

    def _send(self, peer: Progress, last: int) -> None:
        """Send a peer the entries up to `last` that it lacks."""
        log, settings = self._core.log, self._core.settings
        while peer.state is _REPLICATE or (peer.state is _PROBE and not peer.waiting):
            if peer.next <= log.base and log.term_at(peer.next - 1) is None:
                self._begin_snapshot(peer)
                return
            entries: tuple[Entry, ...] = ()
            if peer.next <= last and peer.next - peer.match <= settings.window_entries_max:
                entries = log.batch(peer.next, settings.batch_bytes_max, last)
            if not entries and peer.sent == (self._core.commit, self.reads.round):
                return
            self._send_append(peer, entries)
            peer.waiting = True
            if peer.state is _REPLICATE:
                peer.next += len(entries)
                if peer.next > log.last:
                    return

    def _send_append(
        self, peer: Progress, entries: tuple[Entry, ...], *, heartbeat: bool = False
    ) -> None:
        core, prev = self._core, peer.next - 1
        prev_term = core.log.term_at(prev)
        if prev_term is None:
            self._begin_snapshot(peer)
            return
        # a reply would say nothing new; if the message is lost, a heartbeat repeats the index
        no_reply = (
            not (entries or heartbeat)
            and peer.sent[1] == self.reads.round
            and peer.state is _REPLICATE
            and self.counts(peer)
        )
        peer.sent = (core.commit, self.reads.round)
        message = AppendEntries(
            core.term, prev, prev_term, core.commit, self.reads.round, entries, heartbeat, no_reply
        )
        core.outgoing.send_now(peer.name, message)

    def _begin_snapshot(self, peer: Progress) -> None:
        newest = self._core.snapshots.newest
        if newest is not None:
            peer.begin_snapshot(encode_snapshot(newest), newest.index, newest.term)
            self._send_chunk(peer)

    def needed(self, index: int) -> int:
        """Return the index up to which the log may drop its entries; at most `index`.

        A live peer that is receiving a snapshot needs the entries after that snapshot; without
        them, it would need another one.
        """
        sending = [
            peer.snapshot.index
            for peer in self._peers.values()
            if peer.snapshot is not None and self.is_live(peer)
        ]
        return min([index, *sending])

    def _send_chunk(self, peer: Progress) -> None:
        transfer = peer.snapshot
        if transfer is None:
            return
        end = transfer.offset + self._core.settings.chunk_bytes
        peer.sent = (peer.sent[0], self.reads.round)
        chunk = InstallSnapshot(
            self._core.term,
            transfer.index,
            transfer.term,
            transfer.offset,
            len(transfer.blob),
            self.reads.round,
            transfer.blob[transfer.offset : end],
        )
        self._core.outgoing.send_now(peer.name, chunk)

    # Replies

    def on_append_reply(self, sender: str, incarnation: int, message: AppendReply) -> None:
        """Handle the reply to entries or to the last part of a snapshot."""
        if message.success and message.index > self._core.log.last:
            raise PeerError(f"{sender} claims entry {message.index}, which does not exist")
        peer = self._heard(sender, incarnation, message.round)
        if peer is None:
            return
        if message.success:
            peer.acknowledge(message.index)
            self.advance_commit()
            if not self.counts(peer):
                self._update_roster(peer)
            if self._is_following:
                self._follow_roster()
        elif message.index == peer.match > 0 and sender in self._core.roster.now:
            self._suspect(peer, message)
        else:
            peer.reject(message.index, message.hint_index, message.hint_term, self._core.log)

    def on_snapshot_reply(self, sender: str, incarnation: int, message: SnapshotReply) -> None:
        """Handle the reply to a part of a snapshot."""
        peer = self._heard(sender, incarnation, message.round)
        if peer is not None and peer.acknowledge_chunk(message.last_index, message.offset):
            self._send_chunk(peer)

    def _heard(self, sender: str, incarnation: int, round_: int) -> Progress | None:
        """Record that a peer was heard from, and return its progress.

        Return None and record nothing if the peer is unknown, or if the message comes from another
        copy of its state while the copy that counts is live.
        """
        peer = self._peers.get(sender)
        if peer is None:
            return None
        if peer.incarnation == UNKNOWN:
            peer.incarnation = incarnation
        if incarnation != peer.incarnation:
            if self.counts(peer) and self.is_live(peer):
                return None
            peer.reset(incarnation, self._core.log.last + 1)
        peer.silent_ticks = 0
        peer.round = max(peer.round, min(round_, self.reads.round))
        if self.reads.rounds:
            self._settle_reads()
        return peer

    # Members

    def change(self, seats: Configuration) -> Entry:
        """Append a configuration that differs from the newest one by one member."""
        for name in seats.keys() - self._core.roster.now.keys():
            self._peers.pop(name, None)  # of an earlier member of this name
        entry = self._append(pack_configuration(seats), EntryKind.CONFIGURATION)
        self._follow_roster()
        return entry

    def _follow_roster(self) -> None:
        """Replicate to all other members, and to live removed ones until they hold the removal."""
        core = self._core
        for name in core.roster.now:
            if name != core.name and name not in self._peers:
                self._peers[name] = Progress(name, core.log.last + 1)
        self._is_following = core.commit < core.roster.changed_at
        if not self._is_following:
            for peer in [each for each in self._peers.values() if each.name not in core.roster.now]:
                if peer.match >= core.roster.changed_at or not self.is_live(peer):
                    del self._peers[peer.name]
                else:
                    self._is_following = True  # until the peer knows that it is removed

    def peer(self, name: str) -> Progress | None:
        """Return the progress of a peer; None if there is no such peer."""
        return self._peers.get(name)

    def _update_roster(self, peer: Progress) -> None:
        """Take the next step in replacing a lost copy of a peer's state by the one that answers.

        The first step suspends the lost copy, and the second admits the new copy, which must hold
        the committed log by then. Like every change of the members, each step waits until the last
        change and an entry of this term are committed.
        """
        core = self._core
        seat = core.roster.now.get(peer.name)
        if seat is None or not seat.votes or self.counts(peer) or not self.is_settled:
            return
        now = seat.incarnation
        if not is_suspended(now):
            self._append(pack_member(peer.name, suspended(now)), EntryKind.MEMBER)
        elif peer.match >= core.commit and now != suspended(peer.incarnation):
            self._append(pack_member(peer.name, peer.incarnation), EntryKind.MEMBER)

    def _suspect(self, peer: Progress, message: AppendReply) -> None:
        """Suspend a peer that rejects entries after `match`, which it had acknowledged.

        Usually, such a rejection was sent before the acknowledgement and arrived late. So the first
        rejection only opens a new round, whose messages are sent after the acknowledgement. If the
        peer rejects one of those too, it has lost acknowledged entries, and perhaps votes. A
        suspended copy never counts again; the node starts again with an empty one.

        Raises:
            PeerError: the peer is suspended now.
        """
        core = self._core
        if not peer.suspicion:
            self.reads.round += 1
            peer.suspicion = self.reads.round
        elif message.round >= peer.suspicion and self.is_settled:
            first, last = message.hint_index + 1, peer.match
            lost = f"entry {last}" if first >= last else f"entries {first} to {last}"
            peer.reset(peer.incarnation, core.log.last + 1)
            self._append(pack_member(peer.name, suspended(peer.incarnation)), EntryKind.MEMBER)
            raise PeerError(
                f"{peer.name} lost {lost}, which it had acknowledged, and is suspended until it "
                "has learned everything again (a node's directory must never be restored: empty it)"
            )

    @property
    def is_settled(self) -> bool:
        """Whether the configuration may be changed.

        Its last change and an entry of this term must be committed. Otherwise another leader could
        still commit a different configuration.
        """
        return self._core.commit >= max(self._core.roster.changed_at, self._no_op)

    # Reads

    def _settle_reads(self) -> None:
        if self.reads.rounds:
            rounds = [peer.round for peer in self._peers.values() if self.counts(peer)]
            self.reads.answer_confirmed(
                reached([self.reads.round, *rounds], self._core.roster.majority)
            )

    # Leadership transfer

    def transfer(self, to: str) -> None:
        """Hand leadership to `to` as soon as that member holds the whole log.

        Raises:
            Refused: `not-a-member`.
        """
        if to not in self._peers or not self.counts(self._peers[to]):
            raise Refused("not-a-member", f"{to} is not a member that can vote")
        self._transferee, self._transfer_ticks, self._transfer_due = to, 0, True

    @property
    def is_transferring(self) -> bool:
        """Whether leadership is being handed over."""
        return bool(self._transferee)

    def _send_timeout_now(self) -> None:
        """If the transferee holds the whole log, ask it to campaign.

        Called again after each heartbeat, since the message may be lost.
        """
        peer = self._peers.get(self._transferee)
        if peer is not None and peer.match == self._core.log.last:
            self._core.outgoing.send_now(self._transferee, TimeoutNow(self._core.term))
            self._transfer_due = False

    # Time

    def tick(self) -> bool:
        """Advance time; return False if no majority was heard within an election timeout.

        A leader must then stop leading (check quorum).
        """
        self.age()
        self._heartbeat_ticks += 1
        if self._heartbeat_ticks >= self._core.settings.heartbeat_ticks:
            self._heartbeat_ticks = 0
            self.heartbeat()
        return len(self.heard_voters()) >= self._core.roster.majority

    def age(self) -> None:
        """Count a tick of silence for each peer, and for a transfer under way."""
        for peer in self._peers.values():
            peer.silent_ticks += 1
        self._follow_roster()
        self._transfer_ticks += 1
        if self._transfer_ticks >= self._core.settings.election_ticks:
            self._transferee, self._transfer_due = "", False

    def heard_voters(self) -> list[str]:
        """Return the names of this node and of the voters heard within an election timeout.

        A voter is left out if the copy of its state that was heard is not the one that counts. Just
        after an election, voters that have not answered yet are included.
        """
        voters = [self._peers[name] for name in self._core.roster.voters if name in self._peers]
        live = [peer for peer in voters if self.is_live(peer)]
        heard = [p.name for p in live if p.incarnation == UNKNOWN or self.counts(p)]
        return [self._core.name, *heard]

    def is_live(self, peer: Progress) -> bool:
        """Whether a peer was heard, or became a peer, within an election timeout."""
        return peer.silent_ticks <= self._core.settings.election_ticks

    def peers(self) -> Iterator[Peer]:
        """Yield the status of each peer."""
        for peer in self._peers.values():
            lag = self._core.log.last - peer.match
            yield Peer(
                peer.name, peer.match, lag, peer.silent_ticks, self.counts(peer), str(peer.state)
            )


READS_MAX: Final = 1024  # waiting requests of all nodes together


class Reads:
    """Reads: the reads that wait until a majority has confirmed that this node still leads.

    A round confirms all reads that were requested since the previous round was opened. A read is
    answered with the commit index as of when its round was opened, which covers every write that
    completed before the read was requested.

    Attributes:
        asked: the reads that are not in a round yet; for each, the asking node and its ticket.
        rounds: the open rounds, oldest first; for each, its number, commit index and reads.
        round: the newest round's number; each message to a peer carries it, and the reply returns
            it.
    """

    __slots__ = ("_core", "asked", "round", "rounds")

    def __init__(self, core: Core) -> None:
        self._core = core
        self.round = 0
        self.asked: list[tuple[str, int]] = []
        self.rounds: list[tuple[int, int, list[tuple[str, int]]]] = []

    @property
    def is_idle(self) -> bool:
        """Whether every requested read is answered."""
        return not (self.asked or self.rounds)

    @property
    def full(self) -> bool:
        """Whether further reads must be refused."""
        return len(self.asked) + sum(len(asked) for _, _, asked in self.rounds) >= READS_MAX

    def ask(self, asker: str, ticket: int) -> None:
        """Accept a read requested by this node or by another one."""
        self.asked.append((asker, ticket))

    def open_round(self, confirmed: bool) -> None:
        """Open a round for the reads requested so far, if `confirmed`.

        Args:
            confirmed: whether an entry of this term is committed. Before that, the commit index may
                be lower than one that an earlier leader has answered with.
        """
        if self.asked and confirmed:
            self.round += 1
            self.rounds.append((self.round, self._core.commit, self.asked))
            self.asked = []

    def answer_confirmed(self, round_: int) -> None:
        """Answer the reads of all rounds up to `round_`, which a majority has confirmed."""
        while self.rounds and self.rounds[0][0] <= round_:
            _, index, asked = self.rounds.pop(0)
            for asker, ticket in asked:
                self._answer(asker, ticket, index)

    def _answer(self, asker: str, ticket: int, index: int) -> None:
        if asker == self._core.name:
            self._core.finish_read(ticket, index)
        else:
            self._core.outgoing.send_now(asker, ReadIndexReply(self._core.term, ticket, index))
