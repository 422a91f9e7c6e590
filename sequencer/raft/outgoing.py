"""Outgoing: the messages a node has decided to send, sorted by when they may be sent."""

from collections.abc import Sequence

from sequencer.raft.codec import MessageCodec
from sequencer.raft.consensus import PeerMessage
from sequencer.raft.messages import AnyMessage, AppendReply


class Outgoing:
    """Outgoing: gathers messages until the next `Ready`.

    Messages that promise nothing about this node's disk may be sent at once; all others wait until
    the entries and ballot they refer to are durable.

    Attributes:
        now, after_sync: the messages of either kind.
        append_reply: to whom, and what: a reply to the leader that later ones may be merged into.
    """

    __slots__ = ("after_sync", "append_reply", "codec", "now")

    def __init__(self, cluster: str, founders: Sequence[str], incarnation: int) -> None:
        self.codec = MessageCodec(cluster, founders, incarnation)
        self.now: list[PeerMessage] = []
        self.after_sync: list[PeerMessage] = []
        self.append_reply: tuple[str, AppendReply] | None = None

    def send_now(self, to: str, message: AnyMessage) -> None:
        """Send without waiting for the disk."""
        self.now.append(PeerMessage(to, self.codec.encode(message)))

    def send_after_sync(self, to: str, message: AnyMessage) -> None:
        """Send once everything that is not durable yet is durable."""
        self.after_sync.append(PeerMessage(to, self.codec.encode(message)))

    def reply_to_append(self, to: str, reply: AppendReply) -> None:
        """Reply to the leader; successes within one `Ready` are merged into one reply."""
        if self.append_reply is not None:
            before = self.append_reply[1]
            is_same = self.append_reply[0] == to and before.term == reply.term
            if is_same and before.success and reply.success:
                index, round_ = max(before.index, reply.index), max(before.round, reply.round)
                reply = AppendReply(reply.term, True, index, round_)
            else:
                self.send_after_sync(*self.append_reply)
        self.append_reply = (to, reply)

    def take(self) -> tuple[tuple[PeerMessage, ...], tuple[PeerMessage, ...]]:
        """Hand over the messages to send now, and those to send after the sync."""
        if self.append_reply is not None:
            self.send_after_sync(*self.append_reply)
            self.append_reply = None
        now, after_sync = tuple(self.now), tuple(self.after_sync)
        self.now.clear()
        self.after_sync.clear()
        return now, after_sync
