"""The follower's side of replication: receives entries and snapshots from its term's leader."""

from rt.errors import PeerError
from sequencer.raft.consensus import Entry
from sequencer.raft.core import Core
from sequencer.raft.messages import AppendEntries, AppendReply, InstallSnapshot, SnapshotReply
from sequencer.raft.snapshots import SNAPSHOT_BYTES_MAX, decode_snapshot


def take_append(core: Core, message: AppendEntries) -> AppendReply:
    """Append a message's entries if the log matches at the entry before them.

    Everything up to the commit index is known to match the leader's log, so earlier entries of an
    old message are skipped.
    """
    end = max(message.prev_index + len(message.entries), core.commit)
    is_match = core.log.term_at(message.prev_index) == message.prev_term
    if message.prev_index >= core.commit and not is_match:
        hint = core.log.last_possible_match(message.prev_index, message.prev_term)
        return AppendReply(message.term, False, message.prev_index, message.round, *hint)
    _merge(core, message.entries)
    core.commit_to(min(message.commit, end))
    core.snapshots.is_followed = core.snapshots.is_followed or message.commit <= end
    return AppendReply(message.term, True, end, message.round)


def forked_at(core: Core, message: AppendEntries) -> int:
    """The first entry committed here that differs in the leader's log; 0 if there is none.

    Entries committed in earlier terms are in every later leader's log. A difference proves that a
    majority lost them: its nodes were restored from older copies, or their disks lied.
    """
    if message.prev_index > core.commit:
        return 0
    if core.log.contradicts(message.prev_index, message.prev_term):
        return message.prev_index
    for entry in message.entries:
        if entry.index > core.commit:
            break
        if core.log.contradicts(entry.index, entry.term):
            return entry.index
    return 0


def _merge(core: Core, entries: tuple[Entry, ...]) -> None:
    """Append the missing entries; truncate only at an entry whose term conflicts."""
    for entry in entries:
        if entry.index <= core.commit:
            continue
        term = core.log.term_at(entry.index)
        if term == entry.term:
            continue
        if term is not None:
            core.truncate(entry.index)
        core.append(entry)


def take_snapshot(core: Core, message: InstallSnapshot) -> AppendReply | SnapshotReply:
    """Take a part of the leader's snapshot, and install it once the last part is here.

    Raises:
        PeerError: it is larger than any valid one, or not a snapshot of this cluster.
    """
    if message.last_index <= core.commit:
        return AppendReply(message.term, True, core.commit, message.round)
    if message.total > SNAPSHOT_BYTES_MAX:
        raise PeerError(f"snapshot of {message.total} bytes; the limit is {SNAPSHOT_BYTES_MAX}")
    key = (message.term, message.last_index, message.last_term, message.total)
    assembly = core.snapshots.assembly
    received = assembly.take(key, message.offset, message.data)
    if received < message.total:
        return SnapshotReply(message.term, message.last_index, received, message.round)
    _install(core, message, assembly.finish())
    return AppendReply(message.term, True, message.last_index, message.round)


def _install(core: Core, message: InstallSnapshot, blob: bytes) -> None:
    try:
        snapshot = decode_snapshot(blob)
    except ValueError as error:
        raise PeerError(str(error)) from None
    if (snapshot.index, snapshot.term) != (message.last_index, message.last_term):
        raise PeerError("the snapshot is not the one that was announced")
    if core.log.term_at(snapshot.index) == snapshot.term:
        core.commit_to(snapshot.index)
    else:
        core.install(snapshot)
        core.snapshots.is_followed = False
