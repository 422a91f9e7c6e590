"""Progress: what the leader knows of one peer's log, and what to send it next."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from sequencer.raft.entries import Log

UNKNOWN: Final = -1  # no member has this incarnation


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
        recover: the last entry sent when the peer turned out to lack an earlier one.
        waiting: a probe was sent, and neither a reply nor the next heartbeat has followed.
        snapshot: the snapshot being sent, or None.
        silent_ticks: ticks since the peer was last heard from.
        round: the last ReadIndex round that the peer confirmed.
        sent: the newest commit index and ReadIndex round sent to the peer.
        suspicion: the round whose reply shows whether the peer lost acknowledged entries, or 0.
    """

    def __init__(self, name: str, following: int) -> None:
        self.name = name
        self.silent_ticks = 0
        self.reset(UNKNOWN, following)

    def reset(self, incarnation: int, following: int) -> None:
        """Forget the peer's log: another copy of its state answers now."""
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

        A reply to an older message is ignored. Messages still in flight may be accepted or
        rejected, so nothing is resent before their replies arrive; otherwise a network that
        reorders would cause the whole window to be resent for each message out of order.
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
        """Record how much of the snapshot the peer holds; False if that was known already."""
        transfer = self.snapshot
        if transfer is None or index != transfer.index or offset == transfer.offset:
            return False
        transfer.offset = min(offset, len(transfer.blob))
        return True
