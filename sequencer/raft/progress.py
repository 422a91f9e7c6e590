"""Progress: what the leader knows of one peer's log, and what to send it next."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from sequencer.raft.entries import Log

UNKNOWN: Final = -1  # a peer's incarnation before its first reply; no copy has this one


class ProgressState(StrEnum):
    """How the leader sends entries to a peer."""

    PROBE = "probe"  # one message at a time, until the logs match up to everything sent
    REPLICATE = "replicate"  # message after message, without waiting for replies
    SNAPSHOT = "snapshot"  # the entries it needs were compacted; it gets the snapshot instead


@dataclass(slots=True)
class SnapshotTransfer:
    """A snapshot on its way to a peer, of which `offset` bytes have been acknowledged."""

    blob: bytes
    index: int
    term: int
    offset: int = 0


class Progress:
    """What the leader knows of one peer.

    Attributes:
        name: the peer.
        incarnation: the copy of the peer's state that the other fields describe.
        match: the last entry known to be durable there and equal to the leader's.
        next: the next entry to send.
        state: how entries are sent.
        recover: the last entry that had been sent when the peer rejected an earlier one. Probing
            ends once the peer acknowledges this entry.
        waiting: while probing, whether the next entries wait for a reply; a heartbeat may end that.
        snapshot: the snapshot being sent, or None.
        silent_ticks: ticks since the peer was last heard from.
        round: the last ReadIndex round that the peer confirmed.
        sent: the newest commit index and ReadIndex round sent to the peer.
        suspicion: the round whose reply shows whether the peer lost acknowledged entries; 0 if the
            peer is not suspected.
    """

    def __init__(self, name: str, following: int) -> None:
        self.name = name
        self.silent_ticks = 0
        self.reset(UNKNOWN, following)

    def reset(self, incarnation: int, following: int) -> None:
        """Forget what was known of the peer's log, and begin with its copy `incarnation`.

        Args:
            incarnation: the copy of the peer's state that answers now.
            following: the entry to send next.
        """
        self.incarnation = incarnation
        self.match = self.recover = 0
        self.next = following
        self.round = self.suspicion = 0
        self.sent = (0, 0)
        self.snapshot: SnapshotTransfer | None = None
        self.probe()

    def probe(self) -> None:
        """Switch to probing: find out where the logs match before sending more."""
        self.state, self.waiting = ProgressState.PROBE, False

    def begin_snapshot(self, blob: bytes, index: int, term: int) -> None:
        """Start sending a snapshot."""
        self.state = ProgressState.SNAPSHOT
        self.snapshot = SnapshotTransfer(blob, index, term)

    def acknowledge(self, index: int) -> None:
        """Record that everything up to `index` is durable at the peer."""
        is_news = index > self.match
        if index >= self.match:
            self.suspicion = 0
        self.match = max(self.match, index)
        self.next = max(self.next, self.match + 1)
        if self.snapshot is not None and self.match >= self.snapshot.index:
            self.snapshot = None
            self.state = ProgressState.REPLICATE
        elif self.state is ProgressState.PROBE:
            self.next = self.match + 1
            if self.match >= self.recover:
                self.state = ProgressState.REPLICATE
            elif is_news:
                self.waiting = False

    def reject(self, index: int, hint_index: int, hint_term: int, log: Log) -> None:
        """Record that the logs do not match at `index`, and where they may match.

        A rejection of an older message is ignored. Messages still in flight may be accepted. So
        entries are resent one message at a time until the peer has acknowledged everything sent so
        far. Otherwise, on a network that reorders, each message out of order would cause the whole
        window to be resent.
        """
        if self.state is ProgressState.SNAPSHOT or index <= self.match:
            return
        if self.state is ProgressState.PROBE and index != self.next - 1:
            return
        if self.state is ProgressState.REPLICATE:
            self.recover = self.next - 1
        agreed, _ = log.last_possible_match(min(hint_index, index - 1), hint_term)
        self.next = max(self.match, agreed) + 1
        self.probe()

    def acknowledge_chunk(self, index: int, offset: int) -> bool:
        """Record how much of the snapshot the peer holds.

        Returns:
            False if that was known already, or if the snapshot is not the one being sent.
        """
        transfer = self.snapshot
        if transfer is None or index != transfer.index or offset == transfer.offset:
            return False
        transfer.offset = min(offset, len(transfer.blob))
        return True
