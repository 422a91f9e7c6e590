"""Executor: executes instructions on a node's files; repeatable after a crash at any byte."""

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
# Shorter ranges are read and written with their range frame; longer ones are copied in the kernel.
_COPY_FROM_BYTES: Final = 64 * KIB
# How often a copy that differs from an instruction is fetched again. After that, the bytes come
# from the merged log of a node that has executed the instruction, since other copies may be wrong
# too.
_RETRIES: Final = 1


class Executor:
    """Executor: writes the merged log, on one thread.

    After a crash the log may be ahead of the ledger, so instructions are repeated. Output that the
    log already holds is compared with it, and only the rest is written.
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
            received: returns the end of a session's copy here, durable or not.
            alone: whether there is no other node to copy missing bytes from.
            memory: keeps the frames merged last until pullers have them; None if pullers read them
                from files.

        Raises:
            CorruptLog: the log is damaged, or is shorter than the ledger says and this node is
                alone.
        """
        self.alone = alone
        self.ledger = ledger
        self.held: Mapping[str, Position] = {}  # each session's durable end here
        self.is_half_done = False  # an instruction was begun and is not finished
        self.traffic = Traffic()  # what was merged since the start
        # By session, the slice that this node proposed last, with the headings of its frames, which
        # were read from the copy here and checked.
        self.proposed: dict[str, tuple[Slice, Sequence[Heading]]] = {}
        self.logs, self._received = logs, received
        self._disk, self._directory, self._identity = disk, directory, identity
        self._memory = memory
        self.unproven: dict[str, None] = {}  # merged further, and not from the copy here
        self.appender = self._opened()
        # Up to here, the other nodes have archived output that is incomplete in this log.
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
            return self._opened()  # nothing says which files are whole: all are copied again
        try:
            appender.recover(durable=self.ledger.end if self.alone else 0, whole=not self.alone)
        except CorruptLog as damage:
            appender.close()
            if self.alone:
                raise
            set_aside(self._disk, damage.path)
            return self._opened()  # the missing part is copied from another node
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
            CorruptLog: a copy, or the merged log, is damaged.
            FileNotFoundError: a session's bytes are not here.
            OSError: the merged log cannot be written; repeat this when it can.
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
        """Make the merged log durable, and return up to where it is durable.

        Call it before a snapshot refers to the log.
        """
        return self.appender.sync()

    def close(self) -> None:
        """Release the files of the merged log and of the copies."""
        self.appender.close()
        self.logs.close()

    def lacking(self, merge: Merge) -> Slice | None:
        """Return the first slice of a merge whose bytes this node lacks; None if there is none.

        The bytes may be in the instruction, in the copy of the session here, or already in the
        merged log: left from before a crash, or copied from another node.
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
            planned, _ = self.proposed.get(each.session, (None, ()))
            if planned is not each and not (self._is_held(each) or frames_of(each)):
                return each
        return None

    def _is_held(self, each: Slice) -> bool:
        """Whether a slice's bytes can be read from this node's copy.

        A copy that has differed more than `_RETRIES` times is not used.
        """
        session, known = each.session, self.logs.states.get(each.session)
        end = self.copy_end(session) if each.carried else self.held.get(session, START)
        return (
            end >= each.end
            and (known is None or known.differed <= _RETRIES)
            and not self.logs[session].is_archived(each.first.file)
        )

    def copy_end(self, session: str) -> Position:
        """Return the end, durable or not, to which a session's copy can be read.

        `START` if no byte of the copy is durable, since such a copy may belong to the session's
        next log.
        """
        end = self.held.get(session, START)
        return max(end, self._received(session)) if end else end

    def take_unproven(self) -> list[str]:
        """Return the sessions merged further since the last call, but not from copies here."""
        sessions, self.unproven = list(self.unproven), {}
        return sessions

    def check_end(self, merge: Merge) -> None:
        """Check that no copy extends past the agreed end of a file.

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
        """Check that a copy has its session's last merged frame.

        Args:
            session: the session.
            known: that frame, used if the ledger does not record it; None if it is unknown.

        Raises:
            SessionDiverged: the copy has another frame there.
        """
        tail = self.ledger.tails.get(session) or known
        if tail is None:
            return
        log, position = self.logs[session], tail.position
        if log.is_archived(position.file):
            has_tail = not log.ends_before(self.ledger.merged_to(session))  # only its end is known
        else:
            has_tail = tail.is_of(log.header_at(position))
        self.logs.forget(session)  # a start checks many copies, and most are not read again
        if not has_tail:
            raise self._diverged(session, tail.position, "another frame was merged from here")

    def log_of(self, session: str) -> LogIdentity | None:
        """Return the identity of a copy's log, from its manifest; None if it has none."""
        return self.logs[session].manifest.identity

    @property
    def lacks_log(self) -> bool:
        """Whether the merged log, or manifest lines of its archived files, must be copied first."""
        ledger, appender = self.ledger, self.appender
        if appender.end < ledger.end and appender.next_place < ledger.end:
            return True
        return ledger.archived_to > 0 and self.lacks_lines

    @property
    def lacks_lines(self) -> bool:
        """Whether the merged log's manifest lacks lines of archived files.

        When this node adopted another node's state, it skipped the instructions that archived these
        files. The files' lines, with time and reason, are copied from another node along with the
        log.
        """
        known = self.appender.manifest
        place = bisect_left(known.order, self.ledger.archived_to)
        return place > 0 and known.order[place - 1] not in known.archived

    @property
    def is_stranded(self) -> bool:
        """Whether the other nodes have archived the next instruction's output.

        If so, this node can get neither the bytes to merge nor the merged ones, and has to adopt
        another node's state.
        """
        return self.ledger.end < self.emptied_end

    def reopen(self) -> None:
        """Open the merged log again after a copy has appended to it."""
        self.appender = self._opened()
        self.emptied_end = _end_of_emptied(self.appender)

    def rest(self) -> None:
        """Free the memory of the last merged frames, which pullers that keep up already have."""
        if self.appender.recent is not None:
            self.appender.recent.clear()

    def forget(self, session: str) -> None:
        """Close a session's copy that may be wrong, so that it is read from its files again."""
        self.proposed.pop(session, None)
        self.logs.forget(session)

    def lose(self, session: str) -> None:
        """Close a session's copy after it was set aside; a new copy will replace it."""
        self.proposed.pop(session, None)
        self.logs.lose(session)

    def begin_again(self, session: str) -> None:
        """Close a session's copy and forget all about it, since another log will replace it."""
        self.proposed.pop(session, None)
        self.logs.drop(session)

    def is_rolled(self, path: str) -> bool:
        """Whether this is a rolled file of the merged log."""
        return file_position(os.path.basename(path)) in self.appender.manifest.rolled

    def discard(self, path: str) -> None:
        """Set a damaged file of the merged log aside, to be copied from another node.

        Copying resumes at the end of the log, so it cannot replace a single rolled file. If a
        rolled file is damaged, the whole log is set aside.
        """
        damaged = self._directory if self.is_rolled(path) else path
        self.appender.close()
        set_aside(self._disk, damaged)
        self.reopen()

    def _archive(self, index: int, archive: Archive) -> None:
        """Record archived files; their bytes are deleted once a snapshot covers them."""
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
            self.unproven[each.session] = None
            merged, headers = self._compare(merged, each)
            self._compare_copy(each, headers)
        else:
            headings, data = self._frames(each)
            headers = b"".join(map(_RAW, headings))
            merged, frame = merged.sealed(ledger.digest, ledger.end, headers)
            self._append(frame, merged, headings, data)
        if (known := self.logs.states.get(each.session)) is not None:
            known.differed = 0
        samples = new_samples(self.appender, ledger, each, merged, headers) if each.group else []
        ledger.take(each, merged, size, headers)
        if samples:
            ledger.sample(each.group, samples)
        self.traffic.add(size, each.messages - each.skip, 1 + len(headers) // HEADER_BYTES)

    def _frames(self, each: Slice) -> tuple[Sequence[Heading], bytes]:
        """Return the headings of a slice's frames, and their bytes or b"" if not read yet.

        Raises:
            SessionDiverged: this node's copy has other frames than the leader's.
        """
        session, carried = each.session, each.carried
        planned, known = self.proposed.get(session, (None, ()))
        if planned is each:  # it was taken from this very copy just now
            return known, carried
        if carried and not self._is_held(each) and (found := frames_of(each)) is not None:
            self.unproven[session] = None
            return found, carried
        received = self.logs[session].received(each.first, each.end)
        headings, data = (self._read(each), b"") if received is None else received[2:]
        is_same = not (data and carried) or data == carried
        if not (is_same and each.agrees_with(b"".join(map(_RAW, headings)))):
            raise self._diverged(session, each.first, "the leader has other frames here")
        return headings, data

    def _read(self, each: Slice) -> list[Heading]:
        """Read the headers of a slice from the copy here."""
        log = self.logs[each.session]
        if log.ends_before(each.end) or log.lacks_file(each.first):
            raise self._diverged(each.session, each.first, "the leader has more of this file")
        is_taken = each.length < _COPY_FROM_BYTES
        try:
            return log.headers(each.first, each.end, each.length, is_taken=is_taken)
        except CorruptLog:
            self._count_difference(each.session)  # damaged, or its frames begin elsewhere
            raise

    def _compare(self, merged: Range, each: Slice) -> tuple[Range, bytes]:
        """Verify that the range already in the log is the one that was agreed on."""
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

        The merged bytes came from another node, perhaps because this copy can never be completed.
        Nothing is compared if no byte of the slice is durable in the copy: if this instruction is
        repeated after a crash, the copy may belong to the session's next log.

        Raises:
            SessionDiverged: the copy has other frames.
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
        """Append a range with its checked bytes `known`; if they are b"", read the copy here."""
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
        """Return a range's bytes from the copy here, after checking them again."""
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
        self._count_difference(session)
        path = self.logs[session].log.file_path(position.file)
        return SessionDiverged(path, session, position, reason)

    def _count_difference(self, session: str) -> None:
        self.logs.state(session).differed += 1

    def _roll(self, at_ns: int) -> None:
        end, appender = self.ledger.end, self.appender
        if end.file not in appender.manifest.rolled:
            if appender.end > end:
                appender.cut(end)
            named = session_list(self.ledger.active_sessions)
            appender.roll(at_ns, digest=self.ledger.digest.hex(), sessions=named)
        self.ledger.roll()


def _end_of_emptied(appender: Appender) -> Position:
    """Return the end of the last archived file that is not complete here; `START` if there is none.

    A file counts as complete only if its last byte is here. A power cut may bring back a part of a
    file that was emptied here, and such a part is useless.
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
