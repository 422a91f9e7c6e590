"""Executor: carries out instructions on a node's files; repeatable after a crash at any byte."""

from bisect import bisect_left
from collections.abc import Mapping
from typing import Final

from rt.errors import CorruptLog, FrameError, ManifestError
from rt.format.frame import HEADER_BYTES, Encoded, body_matches, parse_header
from rt.format.manifest import Archived, LogIdentity, session_list
from rt.format.ranges import Range
from rt.format.walk import Walk
from rt.limits import KIB
from rt.log.appender import Appender, Durable
from rt.log.disk import Disk, File, Span, set_aside
from rt.position import START, Position
from sequencer.instruction import Archive, Instruction, Merge, Note, Roll, Slice
from sequencer.ledger import Ledger
from sequencer.session_log import Heading, SessionLogs

# Shorter ranges are read and written with their range frame in one call; longer ones are copied
# inside the kernel.
_COPY_FROM_BYTES: Final = 64 * KIB


class Executor:
    """Writes the merged log. One thread uses it.

    After a crash the merged log may be ahead of the ledger: the instructions that come again are
    then compared with what stands there and written only from where it ends.
    """

    def __init__(
        self,
        disk: Disk,
        directory: str,
        identity: LogIdentity,
        ledger: Ledger,
        logs: SessionLogs,
        *,
        alone: bool = True,
    ) -> None:
        """Open the merged log and judge its end.

        Args:
            disk: where.
            directory: of the merged log.
            identity: of the merged log, should it have to be made.
            ledger: the state to go on from.
            logs: the copies of the sessions.
            alone: whether there is no other node that what is missing could be copied from.

        Raises:
            CorruptLog: it is damaged, or shorter than the ledger says and this node is alone.
        """
        self.alone = alone
        self.ledger = ledger
        self._logs = logs
        self._place = (disk, directory, identity)
        self.is_half_done = False  # an instruction was begun, and could not be carried out yet
        self.appender = self._opened()
        self._emptied_end = self._end_of_emptied()
        if self.alone and self.lacks_log:
            path = f"{directory}/{ledger.end.file_name}"
            raise CorruptLog(path, self.appender.end, "the merged log ends before its snapshot")

    def _opened(self) -> Appender:
        disk, directory, _ = self._place
        try:
            appender = Appender(*self._place)
        except ManifestError:
            if self.alone:
                raise
            set_aside(disk, directory)
            return self._opened()  # which files are whole is not known: all is copied
        try:
            appender.recover(durable=self.ledger.end if self.alone else 0, whole=not self.alone)
        except CorruptLog as damage:
            appender.close()
            if self.alone:
                raise
            set_aside(disk, damage.path)
            return self._opened()  # what is missing now is copied from another node
        appender.sync()  # what was read may only be in memory
        return appender

    @property
    def is_repeating(self) -> bool:
        """Whether the log still reaches beyond the ledger, from before a crash."""
        return self.appender.next_place > self.ledger.end

    def execute(self, index: int, term: int, instruction: Instruction) -> None:
        """Carry out the instruction `index`.

        Raises:
            CorruptLog: the bytes here are not those that were agreed on.
            FileNotFoundError: a session's bytes are not here.
            OSError: the merged log cannot be written; repeat it when it can.
        """
        self.ledger.index, self.is_half_done = index, True
        if isinstance(instruction, Roll):
            if self.ledger.end.offset:
                self._roll(max(instruction.time_ns, self.ledger.time_ns))
        elif isinstance(instruction, Archive):
            self._archive(index, instruction)
        elif isinstance(instruction, Note):
            self.ledger.note(instruction.name, instruction.text)
        else:
            for each in instruction.slices:
                if self.ledger.accepts(each):
                    self._merge(each, term, instruction)
        self.is_half_done = False

    def sync(self) -> Durable:
        """Make the merged log durable up to its end; before a snapshot names it."""
        return self.appender.sync()

    def close(self) -> None:
        """Release the files."""
        self.appender.close()

    def lacking(self, merge: Merge, held: Mapping[str, Position]) -> Slice | None:
        """Return the first slice whose bytes are not here, neither as input nor as output.

        Output may be here before an instruction is executed: from before a crash, or copied from
        another node.

        Args:
            merge: what is to be executed next.
            held: up to where each session is held durably here.
        """
        end = self.ledger.end
        for each in merge.slices:
            if not self.ledger.accepts(each) or each.skip == each.messages:
                continue
            size = self.ledger.range_of(each, 0, 0).size + each.length
            if end.offset and end.offset + size > self.ledger.file_bytes_max:
                end = end.next_file()
            end = Position(end + size)
            if self.appender.end < end and not self._is_held(each, held):
                return each
        return None

    def _is_held(self, each: Slice, held: Mapping[str, Position]) -> bool:
        """Whether the input of a slice is here; of an archived file only the name is."""
        return (
            held.get(each.session, START) >= each.end
            and not self._logs[each.session].is_archived(each.first.file)
        )  # fmt: skip

    def restore(self, ledger: Ledger) -> None:
        """Go on from the state of another node's snapshot.

        Its merged log has to be copied up to `ledger.end` before anything is executed.
        """
        self.ledger, self.is_half_done = ledger, False

    @property
    def lacks_log(self) -> bool:
        """Whether the merged log here ends before the ledger, or what was archived is not told."""
        return self.appender.next_place < self.ledger.end or self.lacks_lines

    @property
    def lacks_lines(self) -> bool:
        """Whether files were archived by instructions that another's state took the place of.

        When and why stands in the lines of the others; these are copied as the log is.
        """
        known = self.appender.manifest
        place = bisect_left(known.order, self.ledger.archived_to)
        return place > 0 and known.order[place - 1] not in known.archived

    @property
    def is_stranded(self) -> bool:
        """Whether what is to be executed next was archived by the others and copied as such.

        Then neither input nor output is here to execute it with: only another node's state helps.
        """
        return self.ledger.end < self._emptied_end

    def _end_of_emptied(self) -> Position:
        """Where the last archived file ends that is not all here; what is left of one is of no use.

        A power cut may bring back some of a file that a copy was told to empty.
        """
        known = self.appender.manifest
        for file in reversed(known.archived):
            end = file + known.rolled[file].end if file in known.rolled else START
            if end > file and not self._is_there(Position(end - 1)):
                return Position(end)
        return START

    def _is_there(self, position: Position) -> bool:
        try:
            return bool(self.appender.read(position, 1))
        except FileNotFoundError:
            return False  # folded into the manifest, or never copied

    def reopen(self) -> None:
        """Take up the merged log again after somebody else has appended to it."""
        self.appender = self._opened()
        self._emptied_end = self._end_of_emptied()

    def forget(self, session: str) -> None:
        """The copy of a session was set aside: it begins anew, in another directory."""
        self._logs.forget(session)

    def discard(self, path: str) -> None:
        """Set a damaged file of the merged log aside; it is copied from another node again."""
        self.appender.close()
        set_aside(self._place[0], path)
        self.reopen()

    def _archive(self, index: int, archive: Archive) -> None:
        """Record what is archived; the bytes go when a snapshot has made sure of what they gave."""
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
        size = merged.size + each.length
        if ledger.needs_roll(size):
            self._roll(merged.time_ns)
        if self.appender.end >= ledger.end + size:
            merged = self._compare(merged)
        else:
            merged = self._write(merged, each)
        ledger.take(each, merged, size)

    def _write(self, merged: Range, each: Slice) -> Range:
        log = self._logs[each.session]
        headings = log.headers(each.first, each.end, each.length)
        raw = b"".join(heading.raw for heading in headings)
        merged = merged.digested(self.ledger.digest, self.ledger.end, raw)
        frame = merged.frame(self.ledger.end)
        self._append(frame, merged, log.file(each.first.file), headings)
        return merged

    def _compare(self, merged: Range) -> Range:
        """Prove that the range which stands here already is the one that was agreed on."""
        position = self.ledger.end
        raw = self._headers_there(Position(position + merged.size), merged)
        merged = merged.digested(self.ledger.digest, position, raw)
        expected = b"".join(merged.frame(position).parts)
        if self.appender.read(position, len(expected)) != expected:
            path = f"{self.appender.directory}/{position.file_name}"
            raise CorruptLog(path, position, "another range stands where this one was agreed on")
        return merged

    def _headers_there(self, begin: Position, merged: Range) -> bytes:
        """Read the headers of a range's session frames from the merged log."""
        walk, parts = Walk(merged.first, merged=False), []
        while walk.position < merged.first + merged.length:
            at = Position(begin + (walk.position - merged.first))
            raw = self.appender.read(at, HEADER_BYTES)
            try:
                walk.step(parse_header(raw))
            except FrameError as error:
                path = f"{self.appender.directory}/{at.file_name}"
                raise CorruptLog(path, at, str(error)) from None
            parts.append(raw)
        return b"".join(parts)

    def _append(self, frame: Encoded, merged: Range, source: File, frames: list[Heading]) -> None:
        appender, position = self.appender, self.ledger.end
        if appender.end > position:
            appender.cut(position)
        if not appender.is_open:
            appender.begin_file(position)
        after = appender.walk.copy()
        after.step(frame.header, frame.parts[1])
        headers = [heading.header for heading in frames]
        for header in headers:
            after.step(header)
        every, offset, length = (frame.header, *headers), merged.first.offset, merged.length
        if length < _COPY_FROM_BYTES:
            data = source.pread(length, offset)
            self._check_frames(data, merged, frames)
            appender.append((*frame.parts, data), every, after)
            return
        try:
            appender.append(frame.parts, every, after, Span(source, offset, length))
        except EOFError as error:
            raise self._corrupt(merged, merged.first, str(error)) from None

    def _check_frames(self, data: bytes, merged: Range, frames: list[Heading]) -> None:
        """See that bytes that were whole when they came are whole still, to the last one.

        The headings may have been read when the instruction was planned, a while ago. Longer ranges
        are copied unseen: whoever reads or copies them from here checks them.
        """
        offset, view = 0, memoryview(data)
        for header, raw in frames:
            body = offset + HEADER_BYTES
            padding, end = body + header.length, offset + header.size
            is_whole = view[offset:body] == raw and body_matches(header, view[body:padding])
            if not is_whole or any(view[padding:end]):
                raise self._corrupt(merged, header.position, "the frame is not the one that came")
            offset = end

    def _corrupt(self, merged: Range, position: int, words: str) -> CorruptLog:
        path = f"{self._logs[merged.session].log.path}/{merged.first.file_name}"
        return CorruptLog(path, Position(position), words)

    def _roll(self, at_ns: int) -> None:
        end, appender = self.ledger.end, self.appender
        if end.file not in appender.manifest.rolled:
            if appender.end > end:
                appender.cut(end)
            named = session_list(self.ledger.active_sessions)
            appender.roll(at_ns, digest=self.ledger.digest.hex(), sessions=named)
        self.ledger.roll()
