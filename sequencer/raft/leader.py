"""Leading: bringing the other logs to this one, and deciding what is committed."""

from collections.abc import Iterator, Sequence

from rt.errors import PeerError, Refused
from sequencer.raft.consensus import COMMAND_BYTES_MAX, Entry, EntryKind, Peer
from sequencer.raft.core import Core
from sequencer.raft.entries import pack_member
from sequencer.raft.messages import Append, Appended, Chunk, ChunkTaken, Lead
from sequencer.raft.progress import UNKNOWN, Progress, Way
from sequencer.raft.quorum import SUSPENDED, reached
from sequencer.raft.reads import Reads


class Leader:
    """A node's leadership of one term; it begins with an entry that commits what it inherited."""

    __slots__ = (
        "_beat_ticks",
        "_core",
        "_first",
        "_moving_now",
        "_moving_ticks",
        "_moving_to",
        "_peers",
        "_undecided_bytes",
        "reads",
    )

    def __init__(self, core: Core) -> None:
        self._core = core
        self._peers = {name: Progress(name, core.log.last + 1) for name in core.others}
        self._beat_ticks = 0
        self._moving_to, self._moving_ticks, self._moving_now = "", 0, False
        self._undecided_bytes = bytes_of(core.log.between(core.commit + 1, core.log.last))
        self.reads = Reads(core)
        self._first = self._append(b"", EntryKind.NOTHING).index
        core.leader = core.name

    def _append(self, command: bytes, kind: EntryKind) -> Entry:
        entry = Entry(self._core.log.last + 1, self._core.term, command, kind)
        self._core.append(entry)
        return entry

    # Proposals and commitment

    def propose(self, command: bytes) -> Entry:
        """Append a command; it goes out with the next `Ready`."""
        self._check(len(command))
        self._undecided_bytes += len(command)
        return self._append(command, EntryKind.COMMAND)

    def _check(self, length: int) -> None:
        if self._moving_to:
            raise Refused("moving", f"leadership is being handed to {self._moving_to}")
        if length > COMMAND_BYTES_MAX:
            raise Refused("too-large", f"command of {length} bytes; limit {COMMAND_BYTES_MAX}")
        if self._undecided_bytes + length > self._core.settings.undecided_bytes_max:
            raise Refused("busy", f"{self._undecided_bytes} bytes are undecided already")

    def advance(self) -> None:
        """Commit what a majority holds durably, if it ends in an entry of this term.

        An older entry on a majority can still be replaced; with a newer one behind it, it cannot.
        """
        core = self._core
        index = reached([core.log.durable, *self._matches()], core.majority)
        if index > core.commit and self.decides(index):
            self._undecided_bytes -= bytes_of(core.log.between(core.commit + 1, index))
            core.commit_to(index)

    def decides(self, index: int) -> bool:
        """Whether a majority that holds this entry commits it."""
        return self._core.log.term_at(index) == self._core.term

    def _matches(self) -> list[int]:
        return [peer.match for peer in self._peers.values() if self.counts(peer)]

    def counts(self, peer: Progress) -> bool:
        """Whether what is known of a peer is about the copy of its state that counts."""
        return self._core.roster.now[peer.name] == peer.incarnation

    # Sending

    def flush(self) -> None:
        """Send what is new: entries, the commit index, a round of signs of life for reads."""
        self.reads.open_round(self._core.commit >= self._first)
        self._settle_reads()
        last, commit, round_ = self._core.log.last, self._core.commit, self.reads.round
        for peer in self._peers.values():
            if peer.next <= last or peer.commit_told < commit or peer.round_told < round_:
                self._send(peer)
        self._hand_over()

    def beat(self) -> None:
        """Send everyone a sign of life, which also repeats what may have been lost."""
        self._moving_now = bool(self._moving_to)
        for peer in self._peers.values():
            if peer.way is Way.SNAPSHOT:
                self._send_chunk(peer)
            else:
                self._send_append(peer, (), opens=True)
                if peer.match < peer.recover and self._is_live(peer):
                    peer.waiting = False

    def _send(self, peer: Progress) -> None:
        log = self._core.log
        while peer.way is Way.STREAM or (peer.way is Way.PROBE and not peer.waiting):
            if log.term_at(peer.next - 1) is None:
                self._begin_snapshot(peer)
                return
            entries = self._due(peer)
            if not entries and not self._news(peer):
                return
            self._send_append(peer, entries)
            peer.waiting = True
            if peer.way is Way.STREAM:
                peer.next += len(entries)

    def _due(self, peer: Progress) -> tuple[Entry, ...]:
        settings, log = self._core.settings, self._core.log
        if peer.next > log.last or peer.next - peer.match > settings.window_entries_max:
            return ()
        return log.batch(peer.next, settings.batch_bytes_max)

    def _news(self, peer: Progress) -> bool:
        return peer.commit_told < self._core.commit or peer.round_told < self.reads.round

    def _send_append(
        self, peer: Progress, entries: tuple[Entry, ...], *, opens: bool = False
    ) -> None:
        core, prev = self._core, peer.next - 1
        prev_term = core.log.term_at(prev)
        if prev_term is None:
            self._begin_snapshot(peer)
            return
        quiet = not (entries or opens) and self._needs_no_answer(peer)
        peer.commit_told, peer.round_told = core.commit, self.reads.round
        core.say_early(
            peer.name,
            Append(
                core.term, prev, prev_term, core.commit, self.reads.round, entries, opens, quiet
            ),
        )

    def _needs_no_answer(self, peer: Progress) -> bool:
        """Whether a peer's answer would say nothing: a lost word is repeated by the next beat."""
        no_round = peer.round_told == self.reads.round
        return no_round and peer.way is Way.STREAM and self.counts(peer)

    def _begin_snapshot(self, peer: Progress) -> None:
        snapshot = self._core.snapshot
        if snapshot is not None:
            peer.send_snapshot(self._core.blob, snapshot.index, snapshot.term)
            self._send_chunk(peer)

    def needed(self, index: int) -> int:
        """The entry, at most `index`, behind which none may go: a live peer's snapshot ends there.

        Otherwise a snapshot that takes longer than the log lasts would be followed by another.
        """
        sending = [
            peer.blob_index for peer in self._peers.values() if peer.blob and self._is_live(peer)
        ]
        return min([index, *sending])

    def _send_chunk(self, peer: Progress) -> None:
        end = peer.offset + self._core.settings.chunk_bytes
        peer.round_told = self.reads.round
        chunk = Chunk(
            self._core.term,
            peer.blob_index,
            peer.blob_term,
            peer.offset,
            len(peer.blob),
            self.reads.round,
            peer.blob[peer.offset : end],
        )
        self._core.say_early(peer.name, chunk)

    # Answers

    def on_appended(self, sender: str, incarnation: int, message: Appended) -> None:
        """Take an answer to entries or to the last part of a snapshot."""
        if message.taken and message.index > self._core.log.last:
            raise PeerError(f"{sender} claims entry {message.index}, which does not exist")
        peer = self._heard(sender, incarnation, message.round)
        if peer is None:
            return
        if message.taken:
            peer.taken(message.index)
            self.advance()
            self._mind_member(peer)
        else:
            peer.refused(message.index, message.hint_index, message.hint_term, self._core.log)

    def on_chunk_taken(self, sender: str, incarnation: int, message: ChunkTaken) -> None:
        """Take an answer to a part of a snapshot."""
        peer = self._heard(sender, incarnation, message.round)
        if peer is not None and peer.chunk_taken(message.index, message.offset):
            self._send_chunk(peer)

    def _heard(self, sender: str, incarnation: int, round_: int) -> Progress | None:
        """The peer, unless this is a late word of a copy of its state that is gone."""
        peer = self._peers[sender]
        if peer.incarnation == UNKNOWN:
            peer.incarnation = incarnation
        if incarnation != peer.incarnation:
            if self.counts(peer) and self._is_live(peer):
                return None
            peer.begin(incarnation, self._core.log.last + 1)
        peer.silent_ticks = 0
        peer.round = max(peer.round, min(round_, self.reads.round))
        self._settle_reads()
        return peer

    # Members whose state was lost

    def _mind_member(self, peer: Progress) -> None:
        """Suspend the lost copy of a peer's state; once that is decided, admit the new one.

        One change at a time, and only with an entry of this term behind, as for any change of
        who counts. The new copy holds the log up to its suspension before it counts.
        """
        core = self._core
        if self.counts(peer) or core.commit < max(core.roster.changed_at, self._first):
            return
        if core.roster.now[peer.name] != SUSPENDED:
            self._append(pack_member(peer.name, SUSPENDED), EntryKind.MEMBER)
        elif peer.match >= core.commit:
            self._append(pack_member(peer.name, peer.incarnation), EntryKind.MEMBER)

    # Reads

    def _settle_reads(self) -> None:
        if self.reads.waiting:
            rounds = [peer.round for peer in self._peers.values() if self.counts(peer)]
            self.reads.settle(reached([self.reads.round, *rounds], self._core.majority))

    # Handing over

    def transfer(self, to: str) -> None:
        """Hand leadership to `to` as soon as it holds the whole log."""
        if to not in self._peers or not self.counts(self._peers[to]):
            raise Refused("not-a-member", f"{to} is not a member that can vote")
        self._moving_to, self._moving_ticks, self._moving_now = to, 0, True

    def _hand_over(self) -> None:
        """Ask once per heartbeat: the word may be lost."""
        if self._moving_now and self._peers[self._moving_to].match == self._core.log.last:
            self._core.say_early(self._moving_to, Lead(self._core.term))
            self._moving_now = False

    # Time

    def tick(self) -> bool:
        """Let a tick pass; False once no majority has been heard for an election timeout."""
        self.age()
        self._beat_ticks += 1
        if self._beat_ticks >= self._core.settings.heartbeat_ticks:
            self._beat_ticks = 0
            self.beat()
        return self._is_followed()

    def age(self) -> None:
        """Be a tick longer without a word of a peer, or of the one to hand over to."""
        for peer in self._peers.values():
            peer.silent_ticks += 1
        self._moving_ticks += 1
        if self._moving_ticks >= self._core.settings.election_ticks:
            self._moving_to, self._moving_now = "", False

    def _is_followed(self) -> bool:
        live = [peer for peer in self._peers.values() if self._is_live(peer)]
        heard = [peer for peer in live if peer.incarnation == UNKNOWN or self.counts(peer)]
        return len(heard) + 1 >= self._core.majority

    def _is_live(self, peer: Progress) -> bool:
        return peer.silent_ticks <= self._core.settings.election_ticks

    def peers(self) -> Iterator[Peer]:
        """What can be shown of the others."""
        for peer in self._peers.values():
            lag = self._core.log.last - peer.match
            yield Peer(
                peer.name, peer.match, lag, peer.silent_ticks, self.counts(peer), str(peer.way)
            )


def bytes_of(entries: Sequence[Entry]) -> int:
    """The bytes of the commands of these entries."""
    return sum([len(entry.command) for entry in entries])
