"""Messages and duties in words."""

from sequencer.raft.consensus import Entry, EntryKind, Ready
from sequencer.raft.entries import unpack_member
from sequencer.raft.messages import (
    AnyMessage,
    Append,
    Appended,
    AskRead,
    AskVote,
    Chunk,
    ChunkTaken,
    Lead,
    ReadFrom,
    Vote,
)
from sequencer.raft.quorum import SUSPENDED


def entry_words(entry: Entry) -> str:
    """An entry: its index, its term, and what it holds."""
    if entry.kind is EntryKind.NOTHING:
        what = "nothing"
    elif entry.kind is EntryKind.MEMBER:
        name, incarnation = unpack_member(entry.command)
        what = f"suspend {name}" if incarnation == SUSPENDED else f"admit {name}"
    else:
        what = entry.command.decode()
    return f"{entry.index}/{entry.term} {what}"


def list_words(entries: tuple[Entry, ...]) -> str:
    """Entries, in order."""
    return ", ".join(map(entry_words, entries))


def message_words(message: AnyMessage) -> str:
    """What one node says to another."""
    say = _SAYINGS[type(message)]
    return f"[{message.term}] {say(message)}"


def _ask_vote(m: AskVote) -> str:
    ask = "would you vote for me?" if m.pre else "vote for me!"
    forced = " The leader wants it." if m.forced else ""
    return f"{ask} My log ends at {m.last_index}/{m.last_term}.{forced}"


def _vote(m: Vote) -> str:
    if m.pre:
        return "I would." if m.granted else "I would not."
    return "You have my vote." if m.granted else "No."


def _append(m: Append) -> str:
    follows = f"after {m.prev_index}/{m.prev_term}"
    entries = f"take {list_words(m.entries)}" if m.entries else "I am here"
    asked = f" Round {m.round}." if m.round else ""
    quiet = " No need to answer." if m.quiet else ""
    return f"{entries}, {follows}. Committed: {m.commit}.{asked}{quiet}"


def _appended(m: Appended) -> str:
    asked = f" Round {m.round}." if m.round else ""
    if m.taken:
        return f"durable up to {m.index}.{asked}"
    if not m.index:
        return "there is a newer term."
    return f"I differ at {m.index}; perhaps we agree at {m.hint_index}/{m.hint_term}.{asked}"


def _chunk(m: Chunk) -> str:
    end = m.offset + len(m.data)
    return f"my state after {m.index}/{m.index_term}, bytes {m.offset} to {end} of {m.total}."


_SAYINGS = {
    AskVote: _ask_vote,
    Vote: _vote,
    Append: _append,
    Appended: _appended,
    Chunk: _chunk,
    ChunkTaken: lambda m: f"of the state after {m.index} I have {m.offset} bytes.",
    Lead: lambda m: "stand for election now.",
    AskRead: lambda m: f"from where may I answer read {m.ticket}?",
    ReadFrom: lambda m: f"answer read {m.ticket} from {m.index} on.",
}


def duty_words(ready: Ready) -> list[str]:
    """What a node has to make durable."""
    lines = []
    if ready.ballot is not None:
        vote = f", votes for {ready.ballot.voted_for}" if ready.ballot.voted_for else ""
        lines.append(f"is in term {ready.ballot.term}{vote}")
    if ready.snapshot is not None:
        lines.append(f"has the state after {ready.snapshot.index}/{ready.snapshot.term}")
    if ready.entries:
        lines.append(f"has {list_words(ready.entries)}")
    return lines
