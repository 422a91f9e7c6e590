"""Verify: checks every byte of a log: frames, columns, manifest, index, numbers and digest."""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from rt.errors import FrameError, Misuse
from rt.format.chain import Chain
from rt.format.columns import check_columns
from rt.format.frame import HEADER_BYTES, FrameKind, Header
from rt.format.index import Indexer
from rt.format.manifest import Rolled
from rt.format.recovery import Clean, Corrupt, Gone, Torn, Verdict, judge
from rt.format.walk import Walk
from rt.log.files.absent import no_log
from rt.log.files.directory import LogDirectory
from rt.log.files.disk import File
from rt.log.files.indexing import IndexCheck, IndexState
from rt.log.files.listing import log_files
from rt.log.notify.confirmations import ConfirmationsFile
from rt.log.write.active_file import Facts
from rt.position import FILE_BYTES_MAX, START, Position

_NOT_ROLLED: Final = "not rolled according to the manifest, yet a file follows it"
_FAULTS_MAX: Final = 100  # faults listed at most; frames are not decoded after that


class LogState(StrEnum):
    """The state of a file."""

    CLEAN = "clean"
    TORN = "torn"  # ends in an unfinished batch, as after a crash; not damage
    CORRUPT = "corrupt"
    ARCHIVED = "archived"


@dataclass(slots=True)
class FileReport:
    """The findings about one file.

    Attributes:
        file: Its name.
        state: Its state.
        end: End of its last whole frame.
        frames: Number of whole frames.
        messages: Number of messages in them.
        index: An IndexState; "" if the index was not checked.
        reason: Why the state is not clean.
        is_rolled: Whether the manifest says that the file is complete.
        is_missing: Whether the file is missing although it should exist.
    """

    file: str
    state: LogState
    end: Position
    frames: int = 0
    messages: int = 0
    index: str = ""
    reason: str = ""
    is_rolled: bool = False
    is_missing: bool = False

    @property
    def is_wrong(self) -> bool:
        """Whether something about the file has to be repaired.

        A missing index is not wrong: foreign writers and older restored logs have none.
        """
        good = ("", IndexState.GOOD, IndexState.MISSING)
        return self.state is LogState.CORRUPT or self.index not in good


@dataclass(slots=True)
class LogReport:
    """The findings about one log."""

    directory: str
    kind: str
    stream: str
    name: str
    id: str
    files: list[FileReport] = field(default_factory=list)
    # those that concern several files, or something other than a file's state
    faults: list[str] = field(default_factory=list)
    end: Position = START
    digest: str = ""  # digest of a merged log up to its end

    @property
    def is_wrong(self) -> bool:
        """Whether anything has to be repaired."""
        return bool(self.faults) or any(file.is_wrong for file in self.files)


def open_log(directory: str) -> LogDirectory:
    """Open a log for inspection.

    Raises:
        Misuse: There is no log.
        CorruptLog: The manifest is damaged.
    """
    log = LogDirectory(directory)
    log.refresh()
    if not log.is_there:
        raise no_log(directory)
    return log


def log_bytes(log: LogDirectory) -> int:
    """Return how many bytes of a log there are to read."""
    total = 0
    for start in log.files():
        file = log.open_file(start)
        total += file.size()
        file.close()
    return total


def verify_log(log: LogDirectory, on_read: Callable[[int], None]) -> LogReport:
    """Check a whole log.

    Args:
        log: As `open_log` returns it.
        on_read: Called with the size of each read.
    """
    return _Verifier(log, on_read).run()


class _Verifier:
    def __init__(self, log: LogDirectory, on_read: Callable[[int], None]) -> None:
        identity = log.manifest.identity
        if identity is None:
            raise Misuse(f"{log.path}: not a log")
        self._log = log
        self._on_read = on_read
        self._chain = Chain(merged=log.merged)
        self._report = LogReport(
            log.path, identity.kind, identity.stream, identity.name, identity.id
        )
        confirmed = ConfirmationsFile(log.path).read()
        # bytes that a node received were durable here before they were sent
        self._durable = START if log.merged else confirmed.received

    def run(self) -> LogReport:
        manifest, report = self._log.manifest, self._report
        there = set(log_files(self._log.disk, self._log.path))
        newest = max(there, default=START)
        # after listing the names, so that missing files are known to be archived
        self._log.refresh()
        starts = sorted(there | set(manifest.order) | set(manifest.archived))
        if starts and starts[0] != START:
            self._chain.skip(None)  # a copy that begins in the middle of the log
        for start in starts:
            found = self._look(start, has_later=start < newest)
            self._pass_over(found, manifest.rolled.get(start))
            report.files.append(found)
            report.end = max(report.end, found.end)
        report.faults += self._chain.faults
        if self._log.merged and self._chain.digest is not None:
            report.digest = self._chain.digest.hex()
        return report

    def _look(self, start: Position, *, has_later: bool) -> FileReport:
        manifest = self._log.manifest
        rolled = manifest.rolled.get(start)
        archived = FileReport(start.file_name, LogState.ARCHIVED, self._end(start))
        try:
            found = self._file(start, rolled)
        except FileNotFoundError:
            if start in manifest.archived:
                return archived
            found = FileReport(
                start.file_name, LogState.CORRUPT, start, reason="the file is missing",
                is_missing=True,
            )  # fmt: skip
        found.is_rolled = rolled is not None
        if rolled is None and has_later:
            self._report.faults.append(f"{start.file_name}: {_NOT_ROLLED}")
        if found.is_wrong and self._log.refresh() and start in manifest.archived:
            return archived
        return found

    def _end(self, start: Position) -> Position:
        return Position(start + (self._log.manifest.rolled_end(start) or 0))

    def _pass_over(self, found: FileReport, rolled: Rolled | None) -> None:
        """Restart or give up the chain of numbers and digests after a file not read to its end."""
        if found.state is LogState.CLEAN:
            return
        if rolled is not None:
            self._chain.skip(rolled.next)
        elif found.state is not LogState.TORN:
            self._chain.drop()

    def _file(self, start: Position, rolled: Rolled | None) -> FileReport:
        file = self._log.open_file(start)
        _, index_file = self._log.open_index(start)
        try:
            return self._judged(file, index_file, start, rolled)
        finally:
            file.close()
            if index_file is not None:
                index_file.close()

    def _judged(
        self, file: File, index_file: File | None, start: Position, rolled: Rolled | None
    ) -> FileReport:
        if (size := file.size()) > FILE_BYTES_MAX:  # probably sparse, and not worth reading
            reason = f"it has {size:,} bytes, and no log file has more than {FILE_BYTES_MAX:,}"
            self._chain.drop()
            return FileReport(start.file_name, LogState.CORRUPT, start, reason=reason)
        walk = Walk(start, merged=self._log.merged, session=self._log.session)
        passed = _Passed(self._chain, walk, index_file, merged=self._log.merged)
        verdict = judge(
            self._counted(file), file.size(), walk,
            rolled_end=None if rolled is None else rolled.end,
            archived=start in self._log.manifest.archived,
            durable=self._durable if start.file == self._durable.file else 0,
            seen=lambda header: self._take(file, walk, header, passed),
        )  # fmt: skip
        if walk.at_boundary:
            self._chain.finish()
        else:
            self._chain.drop()
        if isinstance(verdict, Gone):
            return FileReport(start.file_name, LogState.ARCHIVED, self._end(start))
        state, reason = _state(verdict)
        if state is LogState.CLEAN and not walk.at_boundary:
            state = LogState.TORN if rolled is None else LogState.CORRUPT
            reason = f"at {walk.position}: the range is incomplete"
        if rolled is not None and state is LogState.CLEAN:
            self._compare(passed.facts, rolled)
        index = "" if state is LogState.CORRUPT else passed.index(complete=rolled is not None)
        return FileReport(
            start.file_name, state, walk.position, passed.frames, passed.messages, index, reason
        )

    def _take(self, file: File, walk: Walk, header: Header, passed: "_Passed") -> None:
        """Count a whole frame and try to decode it, which may fail even with good CRCs."""
        passed.add(header)
        if header.kind != FrameKind.MESSAGES or len(self._report.faults) >= _FAULTS_MAX:
            return
        at = Position(walk.position - header.size)
        try:
            check_columns(header, file.pread(header.length, at.offset + HEADER_BYTES))
        except FrameError as error:
            session = self._log.session if walk.range is None else walk.range.session
            self._report.faults.append(
                f"{at.file_name}: at {at}: a frame of session {session} is whole, yet its "
                f"{header.messages:,} messages cannot be decoded: {error}"
            )

    def _counted(self, file: File) -> Callable[[int, int], bytes]:
        def read(length: int, offset: int) -> bytes:
            data = file.pread(length, offset)
            self._on_read(len(data))
            return data

        return read

    def _compare(self, facts: Facts, rolled: Rolled) -> None:
        """Compare the manifest's line with the file's contents."""
        listed = (rolled.first, rolled.next, rolled.first_time_ns, rolled.last_time_ns)
        held = (facts.first, facts.next, facts.first_time_ns, facts.last_time_ns)
        if facts.frames and listed != held:
            self._report.faults.append(
                f"{rolled.file.file_name}: the manifest lists messages {listed[0]} to {listed[1]}, "
                f"the file holds {held[0]} to {held[1]}, or their times differ"
            )


class _Passed:
    """Counts the frames of one file as they are read."""

    def __init__(self, chain: Chain, walk: Walk, index_file: File | None, *, merged: bool) -> None:
        self.frames = 0
        self.messages = 0
        self.facts = Facts()
        self._chain = chain
        self._walk = walk
        self._merged = merged
        self._indexer = Indexer(merged=merged)
        self._index = (
            IndexCheck(lambda _length, _offset: b"", 0)
            if index_file is None
            else IndexCheck(index_file.pread, index_file.size())
        )

    def add(self, header: Header) -> None:
        """Add the header of a whole frame that the walk has just passed."""
        position = Position(self._walk.position - header.size)
        self.frames += 1
        self._chain.add(header, position, self._walk.range)
        if not self._merged or header.kind == FrameKind.RANGE:
            self.messages += header.messages
            self.facts.add(header)
        if entry := self._indexer.add(header, position.offset):
            self._index.compare(entry)

    def index(self, *, complete: bool) -> str:
        """Return the state of the index.

        Args:
            complete: Whether all of its entries should have been written by now.
        """
        state = self._index.verdict()
        if state is IndexState.WRONG or complete:
            return state
        # the last entries of an active file are written late, and may point to lost frames
        return IndexState.GOOD


def _state(verdict: Verdict) -> tuple[LogState, str]:
    if isinstance(verdict, Clean | Gone):
        return LogState.CLEAN, ""
    if isinstance(verdict, Torn) and verdict.followed:
        return (LogState.CORRUPT, f"at {verdict.at}: {verdict.reason}; a whole range follows it")
    state = LogState.CORRUPT if isinstance(verdict, Corrupt) else LogState.TORN
    return state, f"at {verdict.at}: {verdict.reason}"
