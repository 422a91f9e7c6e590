"""The journal: what an engine must not forget, durable in one directory."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from rt.errors import Refused, WriterFailed
from rt.log.disk import Disk, File
from sequencer.journal.ballot import SLOT_NAMES, Ballots
from sequencer.journal.identity import (
    IDENTITY_NAME,
    StateIdentity,
    encode_identity,
    read_identity,
    write_whole,
)
from sequencer.journal.records import (
    RecordHeader,
    RecordScan,
    encode_mark,
    encode_records,
    read_header,
    read_marks,
    scan,
)
from sequencer.raft.consensus import FOUNDER, Ballot, EngineState, Entry, Ready, Snapshot
from sequencer.raft.snapshots import SNAPSHOT_BYTES_MAX, decode_snapshot, encode_snapshot

LOG_NAME: Final = "entries"
MARKS_NAME: Final = "marks"
SNAPSHOT_NAME: Final = "snapshot"
# Behind a snapshot the log is rewritten once it is this long: at 500 instructions of 100 bytes a
# second that is every 20 s, and a start reads no more than this and 5 s of entries.
CUT_BYTES: Final = 1 << 20
MARKS_BYTES_MAX: Final = 1 << 20
LOG_BYTES_MAX: Final = 4 << 30  # a log that long has had no snapshot for weeks

_STATE_NAMES: Final = (LOG_NAME, MARKS_NAME, SNAPSHOT_NAME, *SLOT_NAMES)


@dataclass(frozen=True, slots=True)
class Opened:
    """A journal, what it holds, and what was found wrong.

    Attributes:
        journal: ready to persist.
        state: for the engine to start from.
        damage: "" or what was missing or damaged. The old files were set aside, the state is
            empty and has a new incarnation: the node is a learner until a majority admits it.
    """

    journal: "Journal"
    state: EngineState
    damage: str


class Damaged(Exception):  # noqa: N818 - inside this module only
    """The state is not what was written."""


def found(
    disk: Disk, path: str, *, cluster: str, node: str, directory: int, place: str = ""
) -> None:
    """Make the state of a founding member of a new cluster, which may vote at once.

    Never for a node that lost its state: `open_journal` makes that one a learner by itself.

    Raises:
        Refused: the directory is not empty.
    """
    if disk.names(path):
        raise Refused("not-empty", f"{path} is not empty; a founding member starts from nothing")
    disk.make_directory(path)
    _make(disk, path, StateIdentity(cluster, node, directory, FOUNDER, place))


def open_journal(
    disk: Disk,
    path: str,
    *,
    cluster: str,
    node: str,
    fresh: int,
    place: str = "",
    cut_bytes: int = CUT_BYTES,
) -> Opened:
    """Open a node's state; if it is missing or damaged, set it aside and begin as a learner.

    Args:
        disk: where.
        path: the directory.
        cluster: the id of the cluster.
        node: this node.
        fresh: a random number from 1 to 2**61, the incarnation if a new one is needed.
        place: what the machine calls the directory and a copy does not inherit, or "".
        cut_bytes: the length from which the log is rewritten behind a snapshot.

    Raises:
        Refused: the directory is another cluster's, another node's, or a copy; it is not touched.
    """
    identity = read_identity(disk, path)
    if identity is not None:
        identity.demand(path, cluster, node, place)
    try:
        if identity is None:
            raise Damaged("there is no state" if not disk.names(path) else "no whole identity")
        return _open(disk, path, identity, "", cut_bytes)
    except Damaged as damage:
        reborn = StateIdentity(cluster, node, fresh, fresh, place)
        _begin_again(disk, path, reborn)
        return _open(disk, path, reborn, str(damage), cut_bytes)


def _make(disk: Disk, path: str, identity: StateIdentity) -> None:
    """Write an empty state; the identity, without which the rest is nothing, comes last."""
    header = RecordHeader(identity.directory, 0, 0, 0)
    write_whole(disk, path, LOG_NAME, [header.encode()])
    ballots = Ballots(disk, path, identity.directory)
    ballots.write(Ballot())
    ballots.close()
    write_whole(disk, path, IDENTITY_NAME, [encode_identity(identity)])


def _begin_again(disk: Disk, path: str, identity: StateIdentity) -> None:
    """Give the directory a new identity, then keep what is there under other names.

    In this order: if it ends half-way, old files are under a new identity and are damage again.
    """
    disk.make_directory(path)
    write_whole(disk, path, IDENTITY_NAME, [encode_identity(identity)])
    there = set(disk.names(path))
    for name in _STATE_NAMES:
        if name in there:
            disk.replace(f"{path}/{name}", f"{path}/{name}.bad-{identity.directory:x}")
    _make(disk, path, identity)


def _open(disk: Disk, path: str, identity: StateIdentity, damage: str, cut_bytes: int) -> Opened:
    snapshot = _read_snapshot(disk, path)
    found_log = _read_log(disk, path, identity)
    behind = _behind(snapshot, found_log)
    entries = behind or []
    ballots = _open_ballots(disk, path, identity)
    ballot = _checked_ballot(ballots.read(), entries, snapshot)
    journal = Journal(
        disk,
        path,
        identity=identity,
        log=found_log,
        entries=entries,
        ballots=ballots,
        cut_bytes=cut_bytes,
    )
    journal.renew(ballot, snapshot if behind is None else None)
    return Opened(journal, EngineState(ballot, snapshot, entries, identity.incarnation), damage)


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


def _read_log(disk: Disk, path: str, identity: StateIdentity) -> RecordScan:
    data = _read_all(disk, f"{path}/{LOG_NAME}", LOG_BYTES_MAX)
    if data is None:
        raise Damaged("the log is missing")
    header = read_header(data)
    marks = _read_all(disk, f"{path}/{MARKS_NAME}", 2 * MARKS_BYTES_MAX) or b""
    result = scan(data, read_marks(marks, header.generation) if header else 0)
    if result.header is None or result.damage:
        raise Damaged(f"log: {result.damage}")
    if result.header.directory != identity.directory:
        raise Damaged("log: it is of another directory")
    return result


def _behind(snapshot: Snapshot | None, log: RecordScan) -> list[Entry] | None:
    """The entries after the snapshot.

    None if the log does not hold the snapshot's last entry: then it is the one that a received
    snapshot was about to replace when the node died.
    """
    base, base_term = (log.header.base_index, log.header.base_term) if log.header else (0, 0)
    if snapshot is None:
        if base:
            raise Damaged("the snapshot that the log starts from is missing")
        return log.entries
    place = snapshot.index - base
    if place < 0:
        raise Damaged("the snapshot is older than the log's beginning")
    terms = [base_term, *(entry.term for entry in log.entries)]
    if place >= len(terms) or terms[place] != snapshot.term:
        return None
    return log.entries[place:]


def _open_ballots(disk: Disk, path: str, identity: StateIdentity) -> Ballots:
    if not set(SLOT_NAMES) & set(disk.names(path)):
        raise Damaged("both ballots are missing")
    return Ballots(disk, path, identity.directory)


def _checked_ballot(
    ballot: Ballot | None, entries: Sequence[Entry], snapshot: Snapshot | None
) -> Ballot:
    if ballot is None:
        raise Damaged("both ballots are bad")
    newest = max([entry.term for entry in entries[-1:]] + [snapshot.term if snapshot else 0])
    if ballot.term < newest:
        raise Damaged(f"the ballot is of term {ballot.term}, the log of term {newest}")
    return ballot


class Journal:
    """The durable state of one node; its only writer.

    A failed write or sync ends it for good: what the file system then holds is not known, and a
    second sync may succeed over lost bytes.
    """

    def __init__(
        self,
        disk: Disk,
        path: str,
        *,
        identity: StateIdentity,
        log: RecordScan,
        entries: Sequence[Entry],
        ballots: Ballots,
        cut_bytes: int,
    ) -> None:
        self._disk, self._path, self._identity = disk, path, identity
        self._cut_bytes = cut_bytes
        self._ballots = ballots
        self._log: File = disk.open(f"{path}/{LOG_NAME}")
        self._marks: File = disk.open(f"{path}/{MARKS_NAME}", create=True)
        self._end = self._durable = log.end
        self._marks_bytes = 0
        self._generation = log.header.generation if log.header else 0
        self._tail = list(entries)
        self._failed = ""

    @property
    def identity(self) -> StateIdentity:
        """Whose state this is."""
        return self._identity

    @property
    def size(self) -> int:
        """The bytes of the log on disk."""
        return self._end

    def renew(self, ballot: Ballot, snapshot: Snapshot | None) -> None:
        """Cut a torn tail, and make durable what was read: it may only have been in memory.

        Args:
            ballot: what was read.
            snapshot: what the log is to start from, if the log on disk is an older one.
        """
        if self._log.size() > self._end:
            self._log.truncate(self._end)
        if snapshot is not None:
            self._rewrite(snapshot)
        else:
            self._log.sync()
            self._begin_marks()
        self._ballots.write(ballot)

    def persist(self, ready: Ready) -> None:
        """Return when everything in `ready` is durable.

        Raises:
            WriterFailed: a write or sync failed, now or before.
        """
        self._demand_alive()
        try:
            if ready.ballot is not None:
                self._ballots.write(ready.ballot)
            if ready.snapshot is not None:
                self._install(ready.snapshot)
            if ready.entries:
                self._append(ready.entries)
        except OSError as error:
            raise self._fail(error) from error

    def save_snapshot(self, snapshot: Snapshot) -> None:
        """Return when the snapshot is durable; the log is cut behind it when it has grown long."""
        self._demand_alive()
        try:
            self._write_snapshot(snapshot)
            self._forget(snapshot.index)
            if self._end > self._cut_bytes:
                self._rewrite(snapshot)
        except OSError as error:
            raise self._fail(error) from error

    def close(self) -> None:
        """Release the files."""
        for file in (self._ballots, self._log, self._marks):
            file.close()

    def _demand_alive(self) -> None:
        if self._failed:
            raise WriterFailed(f"{self._path}: the journal has ended: {self._failed}")

    def _fail(self, error: OSError) -> WriterFailed:
        self._failed = str(error)
        return WriterFailed(f"{self._path}: {error}; the journal takes nothing more")

    def _append(self, entries: Sequence[Entry]) -> None:
        records = list(encode_records(entries, self._end, self._durable))
        self._end += self._log.append(records)
        self._log.sync()
        self._keep(entries)
        self._mark()

    def _keep(self, entries: Sequence[Entry]) -> None:
        if self._tail:
            del self._tail[max(0, entries[0].index - self._tail[0].index) :]
        self._tail += entries

    def _forget(self, index: int) -> None:
        if self._tail:
            del self._tail[: max(0, index - self._tail[0].index + 1)]

    def _mark(self) -> None:
        """Note outside the log how far it is durable, so that rot at its very end is seen too."""
        if self._marks_bytes >= MARKS_BYTES_MAX:
            self._begin_marks()
            return
        self._durable = self._end
        self._marks_bytes += self._marks.append([encode_mark(self._generation, self._durable)])

    def _install(self, snapshot: Snapshot) -> None:
        """Take a received snapshot in place of the whole log.

        After the first step the old log does not hold the snapshot's last entry, and a start
        passes it over; after the second it is gone.
        """
        self._write_snapshot(snapshot)
        self._tail.clear()
        self._rewrite(snapshot)

    def _write_snapshot(self, snapshot: Snapshot) -> None:
        write_whole(self._disk, self._path, SNAPSHOT_NAME, [encode_snapshot(snapshot)])

    def _rewrite(self, snapshot: Snapshot) -> None:
        """Replace the log by one that starts from the snapshot."""
        self._generation = (self._generation + 1) & 0xFFFFFFFF
        header = RecordHeader(
            self._identity.directory, self._generation, snapshot.index, snapshot.term
        ).encode()
        parts = [header, *encode_records(self._tail, len(header), len(header))]
        write_whole(self._disk, self._path, LOG_NAME, parts)
        self._log.close()
        self._log = self._disk.open(f"{self._path}/{LOG_NAME}")
        self._end = sum(map(len, parts))
        self._begin_marks()

    def _begin_marks(self) -> None:
        """Note it in an empty file: a power cut may have left half a mark at the end."""
        self._marks.truncate(0)
        self._marks_bytes = 0
        self._mark()
