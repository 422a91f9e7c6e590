"""The messages of Raft; `sequencer.raft.codec` encodes them."""

from dataclasses import dataclass
from typing import Final, NamedTuple

from sequencer.raft.consensus import COMMAND_BYTES_MAX, Entry
from sequencer.raft.entries import ENTRIES_MAX, ENTRY_BYTES

BATCH_BYTES: Final = 256 * 1024  # of commands per message, unless a single one is larger
CHUNK_BYTES: Final = 256 * 1024  # snapshot bytes per message
# The largest valid message: a full batch that ends in the largest command, plus all names.
MESSAGE_BYTES_MAX: Final = (
    BATCH_BYTES + COMMAND_BYTES_MAX + ENTRIES_MAX * ENTRY_BYTES + 8 * 256 + 128
)


@dataclass(frozen=True, slots=True)
class RequestVote:
    """A candidate asks for a vote.

    Attributes:
        term: the candidate's term; in a pre-vote, the term it would campaign in.
        last_index, last_term: the last entry of the candidate's log.
        pre_vote: asks whether a vote would be granted; no term or vote changes.
        transfer: the leader sent TimeoutNow, so voters must not protect that leader.
    """

    term: int
    last_index: int
    last_term: int
    pre_vote: bool = False
    transfer: bool = False


@dataclass(frozen=True, slots=True)
class VoteReply:
    """The reply to RequestVote; `term` is the requested one if granted, else the voter's."""

    term: int
    granted: bool
    pre_vote: bool = False


class AppendEntries(NamedTuple):
    """Entries of the leader's log after `prev_index`.

    Without entries, it is a heartbeat, or carries a new commit index or ReadIndex round.

    Attributes:
        term: the leader's term.
        prev_index, prev_term: the entry before the first of `entries`.
        commit: the leader's commit index.
        round: the newest ReadIndex round; the reply returns it.
        entries: consecutive, from `prev_index` + 1.
        heartbeat: sent by the heartbeat timer; carries the list of founders.
        no_reply: only the commit index is new, so the follower replies only if its log does not
            match.
    """

    term: int
    prev_index: int
    prev_term: int
    commit: int
    round: int
    entries: tuple[Entry, ...] = ()
    heartbeat: bool = False
    no_reply: bool = False


@dataclass(frozen=True, slots=True)
class AppendReply:
    """The reply to AppendEntries, and to the last part of a snapshot.

    Attributes:
        term: the follower's term.
        success: whether the logs matched at `prev_index`.
        index: on success, the last entry that matches and is durable; else `prev_index`.
        round: as in the request.
        hint_index, hint_term: on failure, the last entry at which the logs may still match.
    """

    term: int
    success: bool
    index: int
    round: int
    hint_index: int = 0
    hint_term: int = 0


@dataclass(frozen=True, slots=True)
class InstallSnapshot:
    """A part of the leader's snapshot, which replaces the log up to `last_index`."""

    term: int
    last_index: int
    last_term: int
    offset: int
    total: int
    round: int
    data: bytes


@dataclass(frozen=True, slots=True)
class SnapshotReply:
    """The reply to InstallSnapshot: the follower holds the first `offset` bytes."""

    term: int
    last_index: int
    offset: int
    round: int


@dataclass(frozen=True, slots=True)
class TimeoutNow:
    """The leader asks the receiver to campaign immediately."""

    term: int


@dataclass(frozen=True, slots=True)
class ReadIndex:
    """A follower asks the leader for the index from which a read is linearizable."""

    term: int
    ticket: int


@dataclass(frozen=True, slots=True)
class ReadIndexReply:
    """The reply to ReadIndex."""

    term: int
    ticket: int
    index: int


AnyMessage = (
    RequestVote
    | VoteReply
    | AppendEntries
    | AppendReply
    | InstallSnapshot
    | SnapshotReply
    | TimeoutNow
    | ReadIndex
    | ReadIndexReply
)
