"""Progress: how far one peer's copy of the log is known to reach, and what it is sent next."""

from enum import StrEnum
from typing import Final

from sequencer.raft.log import Log

UNKNOWN: Final = -1  # no member has this incarnation


class Way(StrEnum):
    """How entries go to a peer."""

    PROBE = "probe"  # one message at a time, until both logs agree up to all that was sent
    STREAM = "stream"  # message after message, without waiting for answers
    SNAPSHOT = "snapshot"  # the entries it needs are gone; it gets the state instead


class Progress:
    """What the leader knows of one peer.

    Attributes:
        match: the last entry known to be durable there and the same as here.
        next: the next entry to send.
        way: how entries go there.
        recover: the last entry that was sent when one before it was missing there.
        waiting: the probe is out, its answer or the next heartbeat is not there.
        silent_ticks: since it was last heard.
        incarnation: which copy of its state the above is about.
        round: the last round of signs of life that it answered.
        commit_told, round_told: what it was last told.
    """

    __slots__ = (
        "blob",
        "blob_index",
        "blob_term",
        "commit_told",
        "incarnation",
        "match",
        "name",
        "next",
        "offset",
        "recover",
        "round",
        "round_told",
        "silent_ticks",
        "waiting",
        "way",
    )

    def __init__(self, name: str, following: int) -> None:
        self.name = name
        self.silent_ticks = 0
        self.begin(UNKNOWN, following)

    def begin(self, incarnation: int, following: int) -> None:
        """Know nothing, except which copy of the state it is about."""
        self.incarnation = incarnation
        self.match = self.recover = 0
        self.next = following
        self.round = self.round_told = 0
        self.commit_told = 0
        self.probe()
        self.forget_snapshot()

    def probe(self) -> None:
        """Find out where the logs agree before sending more."""
        self.way, self.waiting = Way.PROBE, False

    def forget_snapshot(self) -> None:
        """Hold no snapshot for this peer."""
        self.blob, self.blob_index, self.blob_term, self.offset = b"", 0, 0, 0

    def send_snapshot(self, blob: bytes, index: int, term: int) -> None:
        """Begin to send a snapshot."""
        self.way = Way.SNAPSHOT
        self.blob, self.blob_index, self.blob_term, self.offset = blob, index, term, 0

    def taken(self, index: int) -> None:
        """Learn that everything up to `index` is durable there."""
        is_news = index > self.match
        self.match = max(self.match, index)
        self.next = max(self.next, self.match + 1)
        if self.way is Way.SNAPSHOT and self.match >= self.blob_index:
            self.forget_snapshot()
            self.way = Way.STREAM
        elif self.way is Way.PROBE:
            self.next = self.match + 1
            if self.match >= self.recover:
                self.way = Way.STREAM
            elif is_news:
                self.waiting = False

    def refused(self, index: int, hint_index: int, hint_term: int, log: Log) -> None:
        """Learn that the logs differ at `index`, and by where they may agree.

        An answer to an older message says nothing new and is dropped. What else is under way may
        arrive, or be refused as this was: it is not sent again before the answers have said which,
        or a network that reorders would be sent everything again for each word out of turn.
        """
        if self.way is Way.SNAPSHOT or index <= self.match:
            return
        if self.way is Way.PROBE and index != self.next - 1:
            return
        if self.way is Way.STREAM:
            self.recover = self.next - 1
        agreed, _ = log.agree_by(min(hint_index, index - 1), hint_term)
        self.next = max(self.match, agreed) + 1
        self.probe()

    def chunk_taken(self, index: int, offset: int) -> bool:
        """Learn how much of the snapshot is there; False if it is no news."""
        if self.way is not Way.SNAPSHOT or index != self.blob_index or offset == self.offset:
            return False
        self.offset = min(offset, len(self.blob))
        return True
