"""Receiving: how a node takes entries and snapshots from the leader of its term."""

from rt.errors import PeerError
from sequencer.raft.consensus import Entry, Snapshot
from sequencer.raft.core import Core
from sequencer.raft.messages import Append, Appended, Chunk, ChunkTaken
from sequencer.raft.snapshots import SNAPSHOT_BYTES_MAX, decode_snapshot


def take_append(core: Core, message: Append) -> Appended:
    """Take the entries of a message if the log reaches and agrees with what precedes them.

    What is committed here is the same at the leader, so an old message is taken from there on.
    """
    end = max(message.prev_index + len(message.entries), core.commit)
    if message.prev_index >= core.commit and not agrees(core, message):
        hint = core.log.agree_by(message.prev_index, message.prev_term)
        return Appended(message.term, False, message.prev_index, message.round, *hint)
    _merge(core, message.entries)
    core.commit_to(min(message.commit, end))
    return Appended(message.term, True, end, message.round)


def agrees(core: Core, message: Append) -> bool:
    """Whether the log has the entry that precedes those of the message."""
    return core.log.term_at(message.prev_index) == message.prev_term


def _merge(core: Core, entries: tuple[Entry, ...]) -> None:
    """Append what is missing; cut only where an entry of another term stands in its place."""
    for entry in entries:
        if entry.index <= core.commit:
            continue
        term = core.log.term_at(entry.index)
        if term == entry.term:
            continue
        if term is not None:
            core.cut(entry.index)
        core.append(entry)


def take_chunk(core: Core, message: Chunk) -> Appended | ChunkTaken:
    """Take a part of the leader's snapshot, and the snapshot itself with the last part.

    Raises:
        PeerError: it is larger than any honest one, or not a snapshot of this cluster.
    """
    if message.index <= core.commit:
        return Appended(message.term, True, core.commit, message.round)
    if message.total > SNAPSHOT_BYTES_MAX:
        raise PeerError(f"snapshot of {message.total} bytes; the limit is {SNAPSHOT_BYTES_MAX}")
    key = (message.term, message.index, message.index_term, message.total)
    here = core.assembly.take(key, message.offset, message.data)
    if here < message.total:
        return ChunkTaken(message.term, message.index, here, message.round)
    _install(core, message, core.assembly.finish())
    return Appended(message.term, True, message.index, message.round)


def _install(core: Core, message: Chunk, blob: bytes) -> None:
    snapshot = _checked(core, message, blob)
    if core.log.term_at(snapshot.index) == snapshot.term:
        core.commit_to(snapshot.index)
    else:
        core.install(snapshot, blob)


def _checked(core: Core, message: Chunk, blob: bytes) -> Snapshot:
    try:
        snapshot = decode_snapshot(blob)
    except ValueError as error:
        raise PeerError(str(error)) from None
    if (snapshot.index, snapshot.term) != (message.index, message.index_term):
        raise PeerError("the snapshot is not the one that was announced")
    if tuple(name for name, _ in snapshot.roster) != core.members:
        raise PeerError("the snapshot is of other members")
    return snapshot
