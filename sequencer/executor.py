"""Executor: carries out instructions on a node's files; repeatable after a crash at any byte."""

from typing import Final

from rt.appender import Appender, Durable
from rt.disk import Disk, File, Span
from rt.errors import CorruptLog
from rt.frame import Encoded, Header
from rt.limits import KIB
from rt.manifest import Identity
from rt.ranges import Range
from sequencer.instruction import Instruction, Merge, Roll, Slice
from sequencer.ledger import Ledger
from sequencer.session_log import SessionLogs

# Shorter ranges are read and written with their range frame in one call; longer ones are copied
# inside the kernel.
_COPY_FROM_BYTES: Final = 64 * KIB


class Executor:
    """Writes the merged log. One thread uses it.

    After a crash the merged log may be ahead of the ledger: the instructions that come again are
    then compared with what stands there and written only from where it ends.
    """

    def __init__(
        self, disk: Disk, directory: str, identity: Identity, ledger: Ledger, logs: SessionLogs
    ) -> None:
        """Open the merged log and judge its end.

        Raises:
            CorruptLog: it is damaged, or shorter than the ledger's snapshot says.
        """
        self.ledger = ledger
        self._logs = logs
        self.appender = Appender(disk, directory, identity)
        self.appender.recover(durable=ledger.end)
        if self.appender.end < ledger.end:
            path = f"{directory}/{ledger.end.file_name}"
            raise CorruptLog(path, self.appender.end, "the merged log ends before its snapshot")

    @property
    def is_repeating(self) -> bool:
        """Whether the log still reaches beyond the ledger, from before a crash."""
        return self.appender.end > self.ledger.end

    def execute(self, index: int, term: int, instruction: Instruction) -> None:
        """Carry out the instruction `index`.

        Raises:
            CorruptLog: the bytes here are not those that were agreed on.
            FileNotFoundError: a session's bytes are not here.
            OSError: the merged log cannot be written; repeat it when it can.
        """
        self.ledger.index = index
        if isinstance(instruction, Roll):
            if self.ledger.end.offset:
                self._roll(max(instruction.time_ns, self.ledger.time_ns))
            return
        for each in instruction.slices:
            if self.ledger.accepts(each):
                self._merge(each, term, instruction)

    def sync(self) -> Durable:
        """Make the merged log durable up to its end; before a snapshot names it."""
        return self.appender.sync()

    def close(self) -> None:
        """Release the files."""
        self.appender.close()

    def _merge(self, each: Slice, term: int, instruction: Merge) -> None:
        ledger = self.ledger
        if each.skip == each.messages:
            ledger.pass_over(each)
            return
        merged = ledger.range_of(each, term, instruction.time_ns)
        size = merged.size + each.length
        if ledger.needs_roll(size):
            self._roll(merged.time_ns)
        log = self._logs[each.session]
        headings = log.headers(each.first, each.end, each.length)
        raw = b"".join(heading.raw for heading in headings)
        merged = merged.digested(ledger.digest, ledger.end, raw)
        frame = merged.frame(ledger.end)
        if not self._is_there(frame, size):
            headers = [heading.header for heading in headings]
            self._append(frame, merged, log.file(each.first.file), headers)
        ledger.take(each, merged, size)

    def _append(self, frame: Encoded, merged: Range, source: File, headers: list[Header]) -> None:
        appender, position = self.appender, self.ledger.end
        if appender.end > position:
            appender.cut(position)
        if not appender.is_open:
            appender.begin_file(position)
        after = appender.walk.copy()
        after.step(frame.header, frame.parts[1])
        for header in headers:
            after.step(header)
        every, offset, length = (frame.header, *headers), merged.first.offset, merged.length
        if length < _COPY_FROM_BYTES:
            appender.append((*frame.parts, source.pread(length, offset)), every, after)
        else:
            appender.append(frame.parts, every, after, Span(source, offset, length))

    def _is_there(self, frame: Encoded, size: int) -> bool:
        """Whether the range was written whole before a crash; the wrong one there is damage."""
        appender, position = self.appender, self.ledger.end
        if appender.end < position + size:
            return False
        expected = b"".join(frame.parts)
        if appender.read(position, len(expected)) != expected:
            path = f"{appender.directory}/{position.file_name}"
            raise CorruptLog(path, position, "another range stands where this one was agreed on")
        return True

    def _roll(self, at_ns: int) -> None:
        end, appender = self.ledger.end, self.appender
        if end.file not in appender.manifest.rolled:
            if appender.end > end:
                appender.cut(end)
            appender.roll(at_ns)
        self.ledger.roll()
