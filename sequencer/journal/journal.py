"""Journal: keeps durably, in one directory, the state that an engine must not forget."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NoReturn

from rt.errors import Refused, RemovedFromCluster, WriterFailed
from rt.log.files.disk import Disk, write_whole
from sequencer.journal.ballot import SLOT_NAMES, Ballots
from sequencer.journal.boot import (
    BOOT_NAME,
    LATE_NAME,
    begin_late,
    end_late,
    read_boot,
    write_boot,
)
from sequencer.journal.entry_log import LOG_NAME, MARKS_NAME, EntryLog
from sequencer.journal.identity import (
    IDENTITY_NAME,
    StateIdentity,
    encode_identity,
    read_identity,
)
from sequencer.journal.records import RecordHeader
from sequencer.journal.recovery import SNAPSHOT_NAME, Damaged, Recovered, recover
from sequencer.journal.starts import STARTS_NAMES
from sequencer.raft.consensus import FOUNDER, Ballot, EngineState, Ready, Snapshot
from sequencer.raft.snapshots import encode_snapshot

# Saving a snapshot rewrites the log if it is longer than this. At 500 instructions a second, of 100
# bytes each, that happens every 20 s. A start reads at most this much, plus 5 s of entries.
CUT_BYTES: Final = 1 << 20

DISOWNED_NAME: Final = "identity.disowned"
DISOWNED: Final = (
    "this copy of the state lacks what the node had acknowledged (a node's directory must never be "
    "restored from a backup or a snapshot: empty it instead, and it learns everything again)"
)
REMOVED_NAME: Final = "identity.removed"
REMOVED: Final = "this node was removed from its cluster"
_STATE_NAMES: Final = (
    LOG_NAME, MARKS_NAME, SNAPSHOT_NAME, BOOT_NAME, LATE_NAME, *STARTS_NAMES, DISOWNED_NAME,
    *SLOT_NAMES,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Opened:
    """Opened: a journal, what it holds, and any damage found.

    Attributes:
        journal: the open journal.
        state: the state for the engine to start from.
        damage: what was missing or damaged; "" if nothing was. If there is damage, the old files
            were set aside, and the state is empty and has a new incarnation. The node is then a
            learner until a majority admits it.
    """

    journal: "Journal"
    state: EngineState
    damage: str


def found(
    disk: Disk,
    path: str,
    *,
    cluster: str,
    node: str,
    directory: int,
    place: str = "",
    members: Mapping[str, str] | None = None,
    snapshot: Snapshot | None = None,
) -> None:
    """Create the state of a founding member of a new cluster, which may vote at once.

    Never use this for a node that lost its state; `open_journal` makes such a node a learner.

    Args:
        disk: the disk.
        path: the directory.
        cluster: the id of the cluster.
        node: this node.
        directory: a random number, to use as the directory's id.
        place: the directory's inode number, or "".
        members: the addresses of all founding members, by name, which from now on override those
            in the node's configuration file.
        snapshot: the snapshot to start from, the same on all founding members; None to start empty.

    Raises:
        Refused: the directory is not empty.
    """
    if disk.names(path):
        raise Refused("not-empty", f"{path} is not empty; a founding member starts from nothing")
    disk.make_directory(path)
    identity = StateIdentity(cluster, node, directory, FOUNDER, place, members or {})
    _make(disk, path, identity, snapshot)


def open_journal(
    disk: Disk,
    path: str,
    *,
    cluster: str,
    node: str,
    fresh: int,
    place: str = "",
    boot: str = "",
    cut_bytes: int = CUT_BYTES,
    is_late: bool = False,
) -> Opened:
    """Open a node's state; if it is missing or damaged, set its files aside and begin as a learner.

    Args:
        disk: the disk.
        path: the directory.
        cluster: the id of the cluster.
        node: this node.
        fresh: a random number from 1 to 2**61 - 1, to use as incarnation if a new one is needed.
        place: the directory's inode number, or "".
        boot: the id the kernel drew at this boot, or "" if unknown.
        cut_bytes: saving a snapshot rewrites the log if it is longer than this.
        is_late: whether entries are acknowledged before they are synced. If so, the state counts as
            lost when the machine restarts before `Journal.close`.

    Raises:
        Refused: the directory belongs to another cluster or node, is a copy of another directory,
            or belongs to a node that was removed from its cluster. Nothing in it is changed.
    """
    identity = read_identity(disk, path)
    if identity is None and REMOVED_NAME in disk.names(path):
        words = f"{REMOVED}; to add it again, empty its directory and use rt cluster add"
        raise Refused("removed", f"{path}: {words}")
    if identity is not None:
        identity.demand(path, cluster, node, place)
    damage = ""
    try:
        if identity is None:
            raise Damaged(_why_no_identity(disk.names(path)))
        recovered = recover(disk, path, identity, boot)
    except Damaged as error:
        damage, identity = str(error), StateIdentity(cluster, node, fresh, fresh, place)
        _begin_again(disk, path, identity)
        recovered = recover(disk, path, identity, boot)
    journal = Journal(
        disk, path, identity=identity, recovered=recovered, cut_bytes=cut_bytes, is_late=is_late
    )
    if boot and boot != read_boot(disk, path):
        write_boot(disk, path, boot)
    if is_late:
        begin_late(disk, path, boot)
    else:
        end_late(disk, path)
    state = EngineState(
        recovered.ballot, recovered.snapshot, recovered.entries,
        identity.incarnation, identity.founders,
    )  # fmt: skip
    return Opened(journal, state, damage)


def _why_no_identity(names: Sequence[str]) -> str:
    if DISOWNED_NAME in names:
        return DISOWNED
    return "no intact identity" if names else "there is no state"


def _make(disk: Disk, path: str, identity: StateIdentity, snapshot: Snapshot | None = None) -> None:
    """Write a state without entries; the identity comes last, since it makes the rest valid."""
    header = RecordHeader(identity.directory, 0, 0, 0)
    write_whole(disk, path, LOG_NAME, [header.encode()])
    if snapshot is not None:
        write_whole(disk, path, SNAPSHOT_NAME, [encode_snapshot(snapshot)])
    Ballots(disk, path, identity.directory, Ballot(snapshot.term if snapshot else 0)).close()
    write_whole(disk, path, IDENTITY_NAME, [encode_identity(identity)])


def _begin_again(disk: Disk, path: str, identity: StateIdentity) -> None:
    """Set the state in a directory aside, and write an empty one with a new identity.

    The new identity is written first. If the rest is interrupted, the next start finds files that
    do not belong to this identity, and counts that as damage again.
    """
    disk.make_directory(path)
    write_whole(disk, path, IDENTITY_NAME, [encode_identity(identity)])
    there = set(disk.names(path))
    for name in _STATE_NAMES:
        if name in there:
            disk.replace(f"{path}/{name}", f"{path}/{name}.bad-{identity.directory:x}")
    _make(disk, path, identity)


class Journal:
    """Journal: the only writer of one node's durable state.

    After a failed write or sync it accepts nothing more, since it cannot know what the file system
    holds: a second sync may succeed although bytes were lost.

    Args:
        disk: the disk.
        path: the directory.
        identity: the directory's identity.
        recovered: what the directory holds; made durable before the constructor returns.
        cut_bytes: as in `open_journal`.
        is_late: as in `open_journal`.

    Attributes:
        size: the log's size on disk, in bytes.
    """

    def __init__(
        self,
        disk: Disk,
        path: str,
        *,
        identity: StateIdentity,
        recovered: Recovered,
        cut_bytes: int,
        is_late: bool = False,
    ) -> None:
        self._disk, self._path, self._is_late = disk, path, is_late
        self._cut_bytes = cut_bytes
        self._failed = ""
        scan = recovered.scan
        self._log = EntryLog(
            disk, path, identity.directory, scan, recovered.entries, is_late=is_late
        )
        base = (scan.header.base_index, scan.header.base_term) if scan.header else (0, 0)
        if recovered.snapshot is not None:
            base = recovered.snapshot.index, recovered.snapshot.term
        self._log.make_durable(scan.is_proven and not recovered.is_behind, *base)
        self._ballots = Ballots(disk, path, identity.directory, recovered.ballot)
        self.size = self._log.end

    def persist(self, ready: Ready) -> None:
        """Make the duties in `ready` durable; with `is_late`, entries are written but not synced.

        Raises:
            WriterFailed: a write or sync failed, now or earlier, or this copy was disowned or
                removed.
        """
        if self._failed:
            raise self._ended()
        try:
            if ready.disowned:
                raise self._disown("the other members have suspended it")
            if ready.removed:
                raise self._retire()
            if ready.ballot is not None:
                self._ballots.write(ready.ballot)
            if ready.snapshot is not None:
                self._install(ready.snapshot)
            if ready.entries:
                self._log.append(ready.entries)
            self.size = self._log.end
        except OSError as error:
            raise self._fail(error) from error

    def save_snapshot(self, snapshot: Snapshot) -> None:
        """Save a snapshot durably, and rewrite the log if it is longer than `cut_bytes`.

        Raises:
            WriterFailed: as for `persist`.
        """
        if self._failed:
            raise self._ended()
        try:
            write_whole(self._disk, self._path, SNAPSHOT_NAME, [encode_snapshot(snapshot)])
            self._log.forget(snapshot.index)
            if self._log.end > self._cut_bytes:
                self._log.rewrite(snapshot.index, snapshot.term)
            self.size = self._log.end
        except OSError as error:
            raise self._fail(error) from error

    def close(self) -> None:
        """Sync what is not synced yet, unless the journal has failed, and release the files."""
        if self._is_late and not self._failed:
            try:
                self._log.sync()
                end_late(self._disk, self._path)
            except OSError as error:  # the file `late` still says so
                self._failed = str(error)
        self._ballots.close()
        self._log.close()

    def _ended(self) -> WriterFailed:
        return WriterFailed(f"{self._path}: the journal has ended: {self._failed}")

    def _fail(self, error: OSError) -> WriterFailed:
        self._failed = str(error)
        return WriterFailed(f"{self._path}: {error}; the journal has ended")

    def disown(self, why: str) -> NoReturn:
        """Set the identity aside, so that the node begins as a learner at its next start.

        Args:
            why: what showed that this copy lacks acknowledged state, for the error.

        Raises:
            WriterFailed: always; the journal has stopped.
        """
        if self._failed:
            raise self._ended()
        try:
            raise self._disown(why)
        except OSError as error:
            raise self._fail(error) from error

    def _disown(self, why: str) -> WriterFailed:
        identity = f"{self._path}/{IDENTITY_NAME}"
        self._disk.replace(identity, f"{self._path}/{DISOWNED_NAME}")
        self._failed = DISOWNED
        return WriterFailed(
            f"{self._path}: {why}; {DISOWNED}; start the node again, and it learns everything"
        )

    def _retire(self) -> WriterFailed:
        """Record that this node was removed, and return the error that says so.

        The identity is set aside under a name that makes `open_journal` refuse the directory.
        """
        identity = f"{self._path}/{IDENTITY_NAME}"
        self._disk.replace(identity, f"{self._path}/{REMOVED_NAME}")
        self._failed = REMOVED
        return RemovedFromCluster(
            f"{self._path}: {REMOVED}; its files are kept, and it stays stopped; to add it again, "
            "empty its directory and use rt cluster add"
        )

    def _install(self, snapshot: Snapshot) -> None:
        """Save a received snapshot in place of the whole log.

        A crash between the two steps leaves the new snapshot and the old log. The next start then
        ignores the entries of that log, since it lacks the snapshot's last entry.
        """
        write_whole(self._disk, self._path, SNAPSHOT_NAME, [encode_snapshot(snapshot)])
        self._log.restart(snapshot.index, snapshot.term)
