"""Recovery: reads a state directory when a node starts, and detects missing or damaged files."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from rt.log.files.disk import Disk
from sequencer.journal.ballot import SLOT_NAMES, read_ballot
from sequencer.journal.boot import may_have_lost, read_boot
from sequencer.journal.entry_log import LOG_NAME, MARKS_BYTES_MAX, MARKS_NAME
from sequencer.journal.identity import StateIdentity
from sequencer.journal.records import RecordScan, read_header, read_marks, scan
from sequencer.raft.consensus import Ballot, Entry, Snapshot
from sequencer.raft.snapshots import SNAPSHOT_BYTES_MAX, decode_snapshot

SNAPSHOT_NAME: Final = "snapshot"
LOG_BYTES_MAX: Final = 4 << 30  # reached only after weeks without a snapshot
_LATE: Final = (
    "it acknowledged entries before they were synced (lose_confirmed_on_power_cut), and its "
    "machine has started again since: what it lacks is not known"
)


class Damaged(Exception):  # noqa: N818 - inside this package only
    """The state is not what was written."""


@dataclass(frozen=True, slots=True)
class Recovered:
    """Recovered: what a state directory holds.

    Attributes:
        ballot: the last term and vote.
        snapshot: the newest snapshot, or None.
        entries: the entries after the snapshot.
        scan: what the file of entries holds.
        is_behind: whether the log lacks the snapshot's last entry, because the node died before a
            received snapshot could replace the log.
    """

    ballot: Ballot
    snapshot: Snapshot | None
    entries: Sequence[Entry]
    scan: RecordScan
    is_behind: bool


def recover(disk: Disk, path: str, identity: StateIdentity, boot: str) -> Recovered:
    """Read the state of a node.

    Args:
        disk: the disk.
        path: the directory.
        identity: the directory's identity.
        boot: the id of the running boot, or "" if unknown.

    Raises:
        Damaged: something is missing, or is not what was written.
    """
    if may_have_lost(disk, path, boot):
        raise Damaged(_LATE)
    stored = read_boot(disk, path)
    # whether no write can be torn; assumed if the stored boot id is damaged
    is_same_boot = stored is None or (bool(boot) and boot == stored)
    snapshot = _read_snapshot(disk, path)
    found = _read_log(disk, path, identity, is_same_boot)
    entries = _after(snapshot, found)
    if not set(SLOT_NAMES) & set(disk.names(path)):
        raise Damaged("both ballots are missing")
    ballot = read_ballot(disk, path, identity.directory)
    ballot = checked_ballot(ballot, entries or (), snapshot)
    return Recovered(ballot, snapshot, entries or (), found, entries is None)


def _read_all(disk: Disk, path: str, limit: int) -> bytes | None:
    try:
        file = disk.open_read(path)
    except FileNotFoundError:
        return None
    try:
        if file.size() > limit:
            raise Damaged(f"{path} has {file.size()} bytes; the limit is {limit}")
        return file.pread(file.size(), 0)
    finally:
        file.close()


def _read_snapshot(disk: Disk, path: str) -> Snapshot | None:
    blob = _read_all(disk, f"{path}/{SNAPSHOT_NAME}", SNAPSHOT_BYTES_MAX + 4096)
    if blob is None:
        return None
    try:
        return decode_snapshot(blob)
    except ValueError as error:
        raise Damaged(str(error)) from None


def _read_log(disk: Disk, path: str, identity: StateIdentity, is_same_boot: bool) -> RecordScan:
    data = _read_all(disk, f"{path}/{LOG_NAME}", LOG_BYTES_MAX)
    if data is None:
        raise Damaged("the log is missing")
    header = read_header(data)
    marks = _read_all(disk, f"{path}/{MARKS_NAME}", 2 * MARKS_BYTES_MAX) or b""
    marked = read_marks(marks, header.generation) if header else 0
    result = scan(data, marked, is_same_boot=is_same_boot)
    if result.header is None or result.damage:
        raise Damaged(f"log: {result.damage}")
    if result.header.directory != identity.directory:
        raise Damaged("log: it belongs to another directory")
    return result


def _after(snapshot: Snapshot | None, log: RecordScan) -> list[Entry] | None:
    """Return the entries after the snapshot; None if the log lacks the snapshot's last entry.

    Raises:
        Damaged: the snapshot is missing, or is older than the start of the log.
    """
    base, base_term = (log.header.base_index, log.header.base_term) if log.header else (0, 0)
    if snapshot is None:
        if base:
            raise Damaged("the snapshot that the log starts from is missing")
        return log.entries
    place = snapshot.index - base
    if place < 0:
        raise Damaged("the snapshot is older than the start of the log")
    terms = [base_term, *(entry.term for entry in log.entries)]
    if place >= len(terms) or terms[place] != snapshot.term:
        return None
    return log.entries[place:]


def checked_ballot(
    ballot: Ballot | None, entries: Sequence[Entry], snapshot: Snapshot | None
) -> Ballot:
    """Return the ballot; `Damaged` if it is damaged or contradicts the log."""
    if ballot is None:
        raise Damaged("both ballots are damaged")
    newest = max([entry.term for entry in entries[-1:]] + [snapshot.term if snapshot else 0])
    if ballot.term < newest:
        raise Damaged(f"the ballot is of term {ballot.term}, the log of term {newest}")
    return ballot
