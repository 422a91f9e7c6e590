"""Executor: executes instructions on a node's files, and repeats them after a crash at any byte."""

import os
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import Final

from rt.errors import CorruptLog, ManifestError, SessionDiverged
from rt.format.frame import HEADER_BYTES, Encoded
from rt.format.manifest import Archived, LogIdentity, session_list
from rt.format.ranges import Range, range_bytes
from rt.limits import KIB
from rt.log.files.disk import Disk, Span, set_aside
from rt.log.write.appender import Appender, Durable
from rt.log.write.recent_frames import FrameMemory, Heading, RecentFrames
from rt.position import START, Position, file_position
from rt.traffic import Traffic
from sequencer.execution.disagreement import disagreement
from sequencer.ledger.instruction import Archive, Instruction, Merge, Note, Roll, Slice
from sequencer.ledger.ledger import Ledger
from sequencer.ledger.session_events import change_sessions
from sequencer.ledger.session_facts import Tail
from sequencer.planning.carried import frames_of
from sequencer.planning.group_join_check import new_samples
from sequencer.planning.session_log import (
    SessionLogs,
    changed_frame,
    is_header,
    merged_headers,
)

_RAW: Final = attrgetter("raw")  # of a heading
# A shorter range is read, and written in one call with its range frame; a longer range is copied in
# the kernel.
_COPY_FROM_BYTES: Final = 64 * KIB
# How often a copy of a session that differs from an instruction is fetched again. After that, this
# node copies the merged bytes from a node that has executed the instruction, since the other nodes'
# copies of the session may be wrong too.
_RETRIES: Final = 1
_NONE: Final = (None, ())


class Executor:
    """Executor: writes the merged log, on one thread.

    After a crash the log may be ahead of the ledger, so instructions are repeated. If the log
    already holds an instruction's output, the two are compared; only missing output is written.
    """

    def __init__(
        self,
        disk: Disk,
        directory: str,
        identity: LogIdentity,
        ledger: Ledger,
        logs: SessionLogs,
        *,
        received: Callable[[str], Position] = lambda _session: START,
        alone: bool = True,
        memory: FrameMemory | None = None,
    ) -> None:
        """Open the merged log and recover its end.

        Args:
            disk: holds the merged log.
            directory: directory of the merged log.
            identity: identity to create the merged log with if there is none.
            ledger: the state to continue from.
            logs: the copies of the sessions.
            received: returns the end of this node's copy of a session, durable or not.
            alone: whether there is no other node to copy missing bytes from.
            memory: keeps the last merged frames until pullers have them; None if pullers read all
                frames from files.

        Raises:
            CorruptLog: this node is alone, and the log is damaged or shorter than the ledger says.
            ManifestError: this node is alone, and the log's manifest is damaged.
        """
        self.alone = alone
        self.ledger = ledger
        self.held: Mapping[str, Position] = {}  # each session's durable end here
        self.is_half_done = False  # an instruction was begun and is not finished
        self.traffic = Traffic()  # what was merged since the start
        self.logs, self._records, self._received = logs, logs.records, received
        self._disk, self._directory, self._identity = disk, directory, identity
        self._memory = memory
        self.appender = self._opened()
        # The other nodes have archived the files up to here, and this log lacks bytes of the last.
        self.emptied_end = _end_of_emptied(self.appender)
        if self.alone and self.lacks_log:
            path = f"{directory}/{ledger.end.file_name}"
            raise CorruptLog(path, self.appender.end, "the merged log ends before its snapshot")

    def _opened(self) -> Appender:
        try:
            appender = Appender(self._disk, self._directory, self._identity)
        except ManifestError:
            if self.alone:
                raise
            set_aside(self._disk, self._directory)
            return self._opened()  # no manifest says which files are whole: copy all
        try:
            appender.recover(durable=self.ledger.end if self.alone else 0, whole=not self.alone)
        except CorruptLog as damage:
            appender.close()
            if self.alone:
                raise
            set_aside(self._disk, damage.path)
            return self._opened()  # another node's log will fill the gap
        appender.sync()
        if self._memory is not None:
            appender.recent = RecentFrames(self._memory)
        return appender

    @property
    def done_index(self) -> int:
        """The last instruction that was executed completely."""
        return self.ledger.index - self.is_half_done

    def execute(self, index: int, term: int, instruction: Instruction) -> None:
        """Execute the instruction `index`.

        Raises:
            SessionDiverged: this node's copy of a session differs from what was agreed on.
            Diverged: the merged log has forked.
            CorruptLog: a copy, or the merged log, is damaged.
            FileNotFoundError: this node lacks a session's bytes.
            OSError: the merged log cannot be written; call this again when it can.
        """
        self.ledger.index, self.is_half_done = index, True
        if isinstance(instruction, Merge):  # nearly all are
            for each in instruction.slices:
                if self.ledger.accepts(each):
                    self._merge(each, term, instruction)
        elif isinstance(instruction, Roll):
            if self.ledger.end.offset:
                self._roll(max(instruction.time_ns, self.ledger.time_ns))
        elif isinstance(instruction, Archive):
            self._archive(index, instruction)
        elif isinstance(instruction, Note):
            self.ledger.carry_out(instruction)
        else:
            change_sessions(instruction, term, self.ledger, self.appender, self._roll)
        self.is_half_done = False

    def sync(self) -> Durable:
        """Make the merged log durable, and return its durable end.

        Call this before saving a snapshot, which relies on the log.
        """
        return self.appender.sync()

    def close(self) -> None:
        """Release the files of the merged log and of the copies."""
        self.appender.close()
        self.logs.close()

    def lacking(self, merge: Merge) -> Slice | None:
        """Return the first slice of a merge whose bytes this node lacks; None if there is none.

        This node has a slice's bytes if the instruction carries them, if its copy of the session
        has them, or if its merged log already holds them, from before a crash or from another node.
        """
        ledger, end, is_ahead = self.ledger, self.ledger.end, self.appender.end > self.ledger.end
        for each in merge.slices:
            if not ledger.accepts(each) or each.skip == each.messages:
                continue
            if is_ahead:  # otherwise no slice's output is in the log
                size = range_bytes(each.session) + each.length
                if end.offset and end.offset + size > ledger.file_bytes_max:
                    end = end.next_file()
                end = Position(end + size)
                if self.appender.end >= end:
                    continue
            planned, _ = self._records.proposed.get(each.session, _NONE)
            if planned is not each and not (self._is_held(each) or frames_of(each)):
                return each
        return None

    def _is_held(self, each: Slice) -> bool:
        """Whether a slice's bytes can be read from this node's copy of the session.

        Bytes in an archived file cannot. A copy that differed more than `_RETRIES` times is not
        used. Bytes that are not durable count only if the instruction carries the slice too.
        """
        session, records = each.session, self._records
        end = self.copy_end(session) if each.carried else self.held.get(session, START)
        return (
            end >= each.end
            and (session not in records.differing or records[session].differed <= _RETRIES)
            and not self.logs[session].is_archived(each.first.file)
        )

    def copy_end(self, session: str) -> Position:
        """Return the end, durable or not, up to which this node's copy of a session can be read.

        `START` if no byte of the copy is durable, since the copy may then be of the session's next
        log.
        """
        end = self.held.get(session, START)
        return max(end, self._received(session)) if end else end

    def check_end(self, merge: Merge) -> None:
        """Check that no copy's last file extends past the end that a merge says the file has.

        After a power cut, a copy may have more of a file than its publisher has. Such a copy can
        never be completed, because the publisher and the other nodes refuse to add to it.

        Raises:
            SessionDiverged: a copy extends past that end.
        """
        for each in merge.slices:
            end = self.held.get(each.session, START)
            if each.after < end < each.first and end.offset and self.ledger.accepts(each):
                raise self._diverged(each.session, each.after, "the agreed file ends here")

    def check_copy(self, session: str, known: Tail | None = None) -> None:
        """Check that a copy has its session's last merged frame; if none is known, do nothing.

        If the copy's file is archived, check instead that it did not end before that frame did.

        Args:
            session: the session.
            known: the frame to check if the ledger does not record one, or None.

        Raises:
            SessionDiverged: the copy has another frame there, or none.
        """
        tail = self.ledger.tails.get(session) or known
        if tail is None:
            return
        log, position = self.logs[session], tail.position
        if log.is_archived(position.file):
            has_tail = not log.ends_before(self.ledger.merged_to(session))  # only its end is known
        else:
            has_tail = tail.is_of(log.header_at(position))
        self.logs.forget(session)  # at a start, many copies are checked, and few read again
        if not has_tail:
            raise self._diverged(session, tail.position, "another frame was merged from here")

    def log_of(self, session: str) -> LogIdentity | None:
        """Return the identity of a copy's log, from its manifest; None if it has none."""
        return self.logs[session].manifest.identity

    @property
    def lacks_log(self) -> bool:
        """Whether to copy some of the merged log, or of its manifest, before executing anything."""
        ledger, appender = self.ledger, self.appender
        if appender.end < ledger.end and appender.next_place < ledger.end:
            return True
        return ledger.archived_to > 0 and self.lacks_lines

    @property
    def lacks_lines(self) -> bool:
        """Whether the merged log's manifest lacks the lines that say which files are archived.

        If this node adopted another node's state, it skipped the instructions that archived these
        files. It then copies the lines, which give time and reason, from another node along with
        the log.
        """
        known = self.appender.manifest
        place = bisect_left(known.order, self.ledger.archived_to)
        return place > 0 and known.order[place - 1] not in known.archived

    @property
    def is_stranded(self) -> bool:
        """Whether the other nodes have archived the next output, which this log lacks.

        Then no node has the bytes to merge, or the merged bytes, so this node has to adopt another
        node's state.
        """
        return self.ledger.end < self.emptied_end

    def reopen(self) -> None:
        """Open the merged log again, after bytes from another node were appended to it."""
        self.appender = self._opened()
        self.emptied_end = _end_of_emptied(self.appender)

    def rest(self) -> None:
        """Free the memory of the last merged frames, since pullers that keep up have them."""
        if self.appender.recent is not None:
            self.appender.recent.clear()

    def is_rolled(self, path: str) -> bool:
        """Whether `path` is a rolled file of the merged log."""
        return file_position(os.path.basename(path)) in self.appender.manifest.rolled

    def discard(self, path: str) -> None:
        """Set a damaged file of the merged log aside, so that it is copied from another node.

        If a rolled file is damaged, set the whole log aside: copying resumes at the end of the log,
        so it cannot replace a single rolled file.
        """
        damaged = self._directory if self.is_rolled(path) else path
        self.appender.close()
        set_aside(self._disk, damaged)
        self.reopen()

    def _archive(self, index: int, archive: Archive) -> None:
        """Record files as archived; their bytes are deleted once a snapshot covers that."""
        ledger, known = self.ledger, self.appender.manifest.archived
        time_ns = max(archive.time_ns, ledger.time_ns)
        gone, last = [], ledger.archived_to
        for file, reason in archive.files:
            if last <= file and ledger.archives(file):
                gone.append(Archived(file, time_ns, reason, index))
                last = file.next_file()
        if new := [line for line in gone if line.file not in known]:
            self.appender.archive_all(new, empty=False)
        ledger.archived_to = last

    def _merge(self, each: Slice, term: int, instruction: Merge) -> None:
        ledger = self.ledger
        if each.skip == each.messages:
            ledger.pass_over(each)
            return
        merged = ledger.range_of(each, term, instruction.time_ns)
        size = range_bytes(each.session) + each.length
        if ledger.needs_roll(size):
            self._roll(merged.time_ns)
        if self.appender.end >= ledger.end + size:
            merged, headers = self._compare(merged, each)
            self._compare_copy(each, headers)
            is_read = False
        else:
            headings, data, is_read = self._frames(each)
            headers = b"".join(map(_RAW, headings))
            merged, frame = merged.sealed(ledger.digest, ledger.end, headers)
            self._append(frame, merged, headings, data)
        if each.session in self._records.differing:
            self._records.agree(each.session)
        samples = new_samples(self.appender, ledger, each, merged, headers) if each.group else []
        ledger.record_slice(each, merged, size, headers)
        if samples:
            ledger.sample(each.group, samples)
        if not is_read:
            self._records.doubt(each.session, ledger.tails[each.session])
        self.traffic.add(size, each.messages - each.skip, 1 + len(headers) // HEADER_BYTES)

    def _frames(self, each: Slice) -> tuple[Sequence[Heading], bytes, bool]:
        """Return a slice's headings and bytes, and whether they are those of this node's copy.

        The bytes are b"" if they were not read yet.

        Raises:
            SessionDiverged: this node's copy has frames other than the leader's.
        """
        session, carried = each.session, each.carried
        planned, known = self._records.proposed.get(session, _NONE)
        if planned is each:  # this node took it from its own copy just now
            return known, carried, True
        if carried and not self._is_held(each) and (found := frames_of(each)) is not None:
            return found, carried, False
        received = self.logs[session].received(each.first, each.end)
        headings, data = (self._read(each), b"") if received is None else received[2:]
        is_same = not (data and carried) or data == carried
        if not (is_same and each.agrees_with(b"".join(map(_RAW, headings)))):
            raise self._diverged(session, each.first, "the leader has other frames here")
        return headings, data, True

    def _read(self, each: Slice) -> list[Heading]:
        """Read the headings of a slice's frames from this node's copy."""
        log = self.logs[each.session]
        if log.ends_before(each.end) or log.lacks_file(each.first):
            raise self._diverged(each.session, each.first, "the leader has more of this file")
        is_taken = each.length < _COPY_FROM_BYTES
        try:
            return log.headers(each.first, each.end, each.length, is_taken=is_taken)
        except CorruptLog:
            self._records.differ(each.session)  # damaged, or its frames begin elsewhere
            raise

    def _compare(self, merged: Range, each: Slice) -> tuple[Range, bytes]:
        """Verify that the range already in the log is the agreed one.

        Returns:
            The range with its digest, and the headers of its messages' frames.
        """
        position = self.ledger.end
        raw = merged_headers(self.appender, Position(position + merged.size), merged)
        merged = merged.digested(self.ledger.digest, position, raw)
        expected = b"".join(merged.frame(position).parts)
        is_agreed = each.agrees_with(raw)
        if not is_agreed or self.appender.read(position, len(expected)) != expected:
            raise disagreement(self.appender, position, alone=self.alone)
        return merged, raw

    def _compare_copy(self, each: Slice, headers: bytes) -> None:
        """Compare the first frame of a slice in this node's copy with the agreed frame.

        The merged log already holds the slice. If it came from another node, that may be because
        this copy differs and can never be completed. Nothing is compared unless the copy has
        durable bytes of the slice: when this instruction is repeated after a crash, the copy may
        already be of the session's next log.

        Raises:
            SessionDiverged: the copy has another frame.
        """
        if self.held.get(each.session, START) <= each.first:
            return
        log = self.logs[each.session]
        raw = None if log.is_archived(each.first.file) else log.header_at(each.first)
        if raw is not None and is_header(raw) and raw != headers[:HEADER_BYTES]:
            raise self._diverged(
                each.session, each.first, "the nodes merged other frames from here"
            )

    def _append(self, frame: Encoded, merged: Range, read: Sequence[Heading], known: bytes) -> None:
        """Append a range and its checked bytes `known`; if those are b"", read this node's copy."""
        appender, position = self.appender, self.ledger.end
        if appender.end > position:
            appender.cut(position)
        if not appender.is_open:
            appender.begin_file(position)
        every, length = [frame.header], merged.length
        for header, _ in read:
            every.append(header)
        after = appender.walk.past(frame.header, merged)
        if length < _COPY_FROM_BYTES:
            data = known or self._taken(merged, read)
            appender.append((*frame.parts, data), every, after)
            return
        log = self.logs[merged.session]
        try:
            span = Span(log.file(merged.first.file), merged.first.offset, length)
            appender.append(frame.parts, every, after, span)
        except EOFError as error:
            raise self._corrupt(merged, merged.first, str(error)) from None

    def _taken(self, merged: Range, read: Sequence[Heading]) -> bytes:
        """Return a range's bytes from this node's copy, after checking them again."""
        data = self.logs[merged.session].take_bytes(merged.first, merged.length)
        if len(data) < merged.length:
            raise self._corrupt(merged, merged.first, "the file ends before the range does")
        if (changed := changed_frame(data, read)) is not None:
            raise self._corrupt(merged, changed, "the frame has changed since it arrived")
        return data

    def _corrupt(self, merged: Range, position: int, reason: str) -> CorruptLog:
        path = self.logs[merged.session].log.file_path(merged.first.file)
        return CorruptLog(path, Position(position), reason)

    def _diverged(self, session: str, position: Position, reason: str) -> SessionDiverged:
        self._records.differ(session)
        path = self.logs[session].log.file_path(position.file)
        return SessionDiverged(path, session, position, reason)

    def _roll(self, at_ns: int) -> None:
        end, appender = self.ledger.end, self.appender
        if end.file not in appender.manifest.rolled:
            if appender.end > end:
                appender.cut(end)
            named = session_list(self.ledger.active_sessions)
            appender.roll(at_ns, digest=self.ledger.digest.hex(), sessions=named)
        self.ledger.roll()


def _end_of_emptied(appender: Appender) -> Position:
    """Return the end of the last archived file that is incomplete here; `START` if there is none.

    A file is complete if its last byte is here. A file that was emptied here may have a part of its
    bytes again after a power cut; it is still incomplete, and that part is useless.
    """
    known = appender.manifest
    for file in reversed(known.archived):
        end = file + known.rolled[file].end if file in known.rolled else START
        try:
            if end > file and not appender.read(Position(end - 1), 1):
                return Position(end)
        except FileNotFoundError:  # folded into the manifest, or never copied
            return Position(end)
    return START
