"""Outgoing: the messages a node has decided to send, sorted by when they may be sent."""

from collections.abc import Sequence

from sequencer.raft.codec import MessageCodec
from sequencer.raft.consensus import PeerMessage
from sequencer.raft.messages import AnyMessage, AppendReply


class Outgoing:
    """Outgoing: gathers messages until the next `Ready`.

    Messages that promise nothing about this node's disk may be sent at once; all others wait until
    the entries and ballot they refer to are durable.
    """

    __slots__ = ("_after_sync", "_append_reply", "_now", "codec")

    def __init__(self, cluster: str, founders: Sequence[str], incarnation: int) -> None:
        self.codec = MessageCodec(cluster, founders, incarnation)
        self._now: list[PeerMessage] = []
        self._after_sync: list[PeerMessage] = []
        self._append_reply: tuple[str, AppendReply] | None = None

    def send_now(self, to: str, message: AnyMessage) -> None:
        """Send without waiting for the disk."""
        self._now.append(PeerMessage(to, self.codec.encode(message)))

    def send_after_sync(self, to: str, message: AnyMessage) -> None:
        """Send once everything that is not durable yet is durable."""
        self._after_sync.append(PeerMessage(to, self.codec.encode(message)))

    def reply_to_append(self, to: str, reply: AppendReply) -> None:
        """Reply to the leader; successes within one `Ready` are merged into one reply."""
        if self._append_reply is not None:
            before = self._append_reply[1]
            is_same = self._append_reply[0] == to and before.term == reply.term
            if is_same and before.success and reply.success:
                index, round_ = max(before.index, reply.index), max(before.round, reply.round)
                reply = AppendReply(reply.term, True, index, round_)
            else:
                self.send_after_sync(*self._append_reply)
        self._append_reply = (to, reply)

    def _queue_reply(self) -> None:
        if self._append_reply is not None:
            self.send_after_sync(*self._append_reply)
            self._append_reply = None

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to send."""
        return not (self._now or self._after_sync or self._append_reply)

    def take(self) -> tuple[tuple[PeerMessage, ...], tuple[PeerMessage, ...]]:
        """Hand over the messages to send now, and those to send after the sync."""
        self._queue_reply()
        now, after_sync = tuple(self._now), tuple(self._after_sync)
        self._now.clear()
        self._after_sync.clear()
        return now, after_sync
