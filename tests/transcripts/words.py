"""Messages and duties as text."""

from sequencer.raft.consensus import Configuration, Entry, EntryKind, Ready
from sequencer.raft.entries import unpack_configuration, unpack_member
from sequencer.raft.messages import (
    AnyMessage,
    AppendEntries,
    AppendReply,
    InstallSnapshot,
    ReadIndex,
    ReadIndexReply,
    RequestVote,
    SnapshotReply,
    TimeoutNow,
    VoteReply,
)
from sequencer.raft.quorum import is_suspended


def entry_text(entry: Entry) -> str:
    """An entry: its index, its term, and what it holds."""
    if entry.kind is EntryKind.NO_OP:
        what = "no-op"
    elif entry.kind is EntryKind.MEMBER:
        name, incarnation = unpack_member(entry.command)
        what = f"suspend {name}" if is_suspended(incarnation) else f"admit {name}"
    elif entry.kind is EntryKind.CONFIGURATION:
        what = configuration_text(unpack_configuration(entry.command)[0])
    else:
        what = entry.command.decode()
    return f"{entry.index}/{entry.term} {what}"


def configuration_text(seats: Configuration) -> str:
    """A configuration: its voters, then its learners."""
    voters = " ".join(name for name, seat in seats.items() if seat.votes)
    learners = "".join(f", learner {name}" for name, seat in seats.items() if not seat.votes)
    return f"members {voters}{learners}"


def entries_text(entries: tuple[Entry, ...]) -> str:
    """Entries, in order."""
    return ", ".join(map(entry_text, entries))


def message_text(message: AnyMessage) -> str:
    """A message: its term, its name, and its fields."""
    text = _TEXTS[type(message)]
    return f"[{message.term}] {text(message)}"


def _request_vote(m: RequestVote) -> str:
    name = "RequestPreVote" if m.pre_vote else "RequestVote"
    transfer = ", leadership transfer" if m.transfer else ""
    return f"{name} last={m.last_index}/{m.last_term}{transfer}"


def _vote_reply(m: VoteReply) -> str:
    name = "PreVoteReply" if m.pre_vote else "VoteReply"
    return f"{name} {'granted' if m.granted else 'denied'}"


def _append_entries(m: AppendEntries) -> str:
    name = "Heartbeat" if m.heartbeat else "AppendEntries"
    entries = f" [{entries_text(m.entries)}]" if m.entries else ""
    no_reply = ", no reply" if m.no_reply else ""
    prev = f"prev={m.prev_index}/{m.prev_term}"
    return f"{name} {prev}{entries} commit={m.commit}{_round(m.round)}{no_reply}"


def _append_reply(m: AppendReply) -> str:
    if m.success:
        return f"AppendReply match={m.index}{_round(m.round)}"
    if not m.index:
        return "AppendReply rejected, stale term"
    hint = f"try {m.hint_index}/{m.hint_term}"
    return f"AppendReply rejected at {m.index}, {hint}{_round(m.round)}"


def _round(number: int) -> str:
    return f" round={number}" if number else ""


def _install_snapshot(m: InstallSnapshot) -> str:
    end = m.offset + len(m.data)
    return f"InstallSnapshot {m.last_index}/{m.last_term} bytes {m.offset}..{end} of {m.total}"


_TEXTS = {
    RequestVote: _request_vote,
    VoteReply: _vote_reply,
    AppendEntries: _append_entries,
    AppendReply: _append_reply,
    InstallSnapshot: _install_snapshot,
    SnapshotReply: lambda m: f"SnapshotReply {m.last_index} has {m.offset} bytes",
    TimeoutNow: lambda m: "TimeoutNow",
    ReadIndex: lambda m: f"ReadIndex ticket={m.ticket}",
    ReadIndexReply: lambda m: f"ReadIndexReply ticket={m.ticket} index={m.index}",
}


def duty_lines(ready: Ready) -> list[str]:
    """What a node has to make durable."""
    lines = []
    if ready.ballot is not None:
        vote = f", votes for {ready.ballot.voted_for}" if ready.ballot.voted_for else ""
        lines.append(f"persists term {ready.ballot.term}{vote}")
    if ready.snapshot is not None:
        lines.append(f"persists the snapshot at {ready.snapshot.index}/{ready.snapshot.term}")
    if ready.entries:
        lines.append(f"persists {entries_text(ready.entries)}")
    return lines
