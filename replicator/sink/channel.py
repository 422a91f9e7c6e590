"""SinkChannel: receives a source's log, checks it, and appends it to a copy."""

from collections.abc import Callable, Sequence
from typing import NoReturn

from replicator.host import Inbox
from replicator.sink.columns_check import ColumnsCheck
from replicator.sink.late_check import poisoned_words, refusal
from replicator.sink.sink import (
    Do,
    SinkEnd,
    check_frames,
    demand_frames,
    place_archived,
    place_data,
    place_rolled,
)
from replicator.wire.messages import (
    TAIL_BYTES_MAX,
    Ack,
    ArchivedNotice,
    Data,
    RolledNotice,
    Standing,
    TailSpan,
)
from rt.errors import NO_HEADERS, Refused
from rt.format.checksum import crc32
from rt.format.frame import HEADER_BYTES, HEADERS_COLUMN
from rt.format.manifest import Manifest
from rt.log.files.archived import NOT_OFFERED, is_not_copied
from rt.log.files.directory import LogDirectory
from rt.log.write.appender import Appender
from rt.position import START, Position


class SinkChannel:
    """SinkChannel: the sink side of a channel; nothing else appends to its copy."""

    def __init__(
        self,
        channel: int,
        inbox: Inbox,
        start: str | None = None,
        columns: ColumnsCheck | None = None,
        no_headers: Callable[[], str] | None = None,
    ) -> None:
        """Take over the copy in `inbox`.

        Args:
            channel: its number on the connection.
            inbox: the copy.
            start: where a reader's empty copy is to begin; "" for the oldest file. None for copies
                that are not a reader's.
            columns: checks that messages can be decoded; None to skip the check.
            no_headers: returns why messages may not have headers, or ""; None to skip the check.
        """
        self.channel = channel
        self.inbox = inbox
        self._columns = columns
        self._no_headers = no_headers
        self._appender: Appender = inbox.appender
        self._start = start
        self._acked: Ack | None = None

    def standing(self) -> Standing:
        """Return the message that says where the copy ends and proves what the copy holds.

        Raises:
            Refused: a frame of the copy proved undecodable after it was accepted.
        """
        appender = self._appender
        if self._columns is not None:
            self._columns.late.begin(appender)
        known, end = appender.manifest, appender.end
        archived_to = max(known.archived).next_file() if known.archived else START
        rolled = known.rolled[known.order[-1]] if known.order else None
        spans = last_spans(known, end, appender.last_frame)
        try:
            tail = b"".join(self._read(span.position, span.length) for span in spans)
        except FileNotFoundError:  # a power cut left only the file's line, which is proof enough
            spans, tail = (), b""
        start = (self._start or "") if _holds_nothing(appender) else ""
        return Standing(self.channel, end, archived_to, rolled, spans, crc32(tail), start)

    def take_data(self, message: Data, *, may_wait: bool = True) -> bool:
        """Append frames after checking each of them.

        Appending to a file that is open, the usual case, does not wait for the disk.

        Args:
            message: the message with the frames.
            may_wait: whether this may wait for the disk, to begin a file or to read an older one.

        Returns:
            False if nothing was done, because taking the frames would have to wait for the disk.

        Raises:
            Refused: the frames are damaged, differ from the bytes here, or leave a gap; or the
                messages of a frame cannot be decoded, and the copy ends before that frame.
            OSError: the frames could not be written.
        """
        payload, appender, columns = message.payload, self._appender, self._columns
        if message.position != appender.end or not appender.is_open or appender.is_closed:
            if not may_wait and self._waits_for_disk(message.position):
                return False
            payload = self._placed(message.position, payload)
            if not payload:
                return True
        after = appender.walk.copy()
        headers, messages, with_columns = check_frames(payload, after)
        if with_columns & HEADERS_COLUMN and self._no_headers is not None:
            self._demand_no_headers(self._no_headers)
        skipped: Sequence[Position] = ()
        if columns is not None:
            if columns.late.poisoned:
                columns.late.demand_sound(appender)
            poison, skipped = columns.check(payload, headers)
            if poison is not None:
                self._end_before(payload, *poison)
        appender.append((payload,), headers, after)
        if skipped and columns is not None:
            columns.late.record(appender, skipped)
        self.inbox.traffic.add(len(payload), messages, len(headers))
        self.inbox.written()
        return True

    def _demand_no_headers(self, no_headers: Callable[[], str]) -> None:
        """Refuse frames with headers while a node might be unable to read them."""
        if why := no_headers():
            raise Refused(NO_HEADERS, f"messages with headers are not taken yet: {why}")

    def _placed(self, position: Position, payload: memoryview) -> memoryview:
        """Return the frames of `payload` that are new here; begin a file if they begin one."""
        do = place_data(position, self._end)
        if do is Do.COMPARE:
            new = self._new_part(position, payload)
            if not new:
                return new
            position, payload = Position(position + len(payload) - len(new)), new
            do = place_data(position, self._end)
        if do is Do.BEGIN:
            self._appender.begin_file(position)
        return payload

    def _waits_for_disk(self, position: Position) -> bool:
        """Whether taking frames for a position begins a file, or reads one that has ended."""
        appender = self._appender
        return not appender.is_open or position < appender.end.file

    def _end_before(self, payload: memoryview, length: int, reason: str) -> NoReturn:
        """Append the first `length` bytes, and refuse the undecodable frame that follows them."""
        after = self._appender.walk.copy()
        if length:
            headers, messages, _ = check_frames(payload[:length], after)
            self._appender.append((payload[:length],), headers, after)
            self.inbox.traffic.add(length, messages, len(headers))
            self.inbox.written()
        raise refusal(poisoned_words(after.position, reason))

    def take_rolled(self, message: RolledNotice) -> None:
        """End the copy's active file where the source's file ended; errors as for `take_data`."""
        line = message.line
        do = place_rolled(line, self._end, self._appender.manifest.rolled.get(line.file))
        if do is Do.NOTHING:
            return
        if do is Do.BEGIN_AND_ROLL:
            demand_frames(self._appender.manifest)
            self._appender.begin_file(line.file)
        self._appender.follow_roll(line)
        self.inbox.written()

    def take_archived(self, message: ArchivedNotice) -> None:
        """Archive a file that the source has archived, unless the host keeps its bytes.

        The file is also kept if the source never had it, because the source's own copy of the log
        begins later. Errors as for `take_data`, and:

        Raises:
            Refused: with code `busy`, the host still needs the part of the file that the copy has;
                the source should retry soon. With `begins-later`, the copy needs this file next,
                and the source never had it; another source may have it.
        """
        known = self._appender.manifest
        file = message.line.file
        if file in known.archived and file in known.rolled:
            return
        do = place_archived(message.rolled, self._end, known.rolled.get(message.line.file))
        if do is Do.SKIP:
            self._skip(message)
            return
        if do is Do.ROLL:
            self._appender.follow_roll(message.rolled)
            self.inbox.written()
        if not is_not_copied(message.line) and not self.inbox.keeps(message.line):
            self._appender.archive(message.line)

    def _skip(self, message: ArchivedNotice) -> None:
        file, end, line = message.line.file, self._appender.end, message.line
        if is_not_copied(line) and _has_bytes(self._appender):
            words = f"the source begins after {file.file_name}, and this log ends at {end}"
            raise Refused("begins-later", words)
        if end.file == file and end.offset and self.inbox.needs(end):
            words = f"{file.file_name} was archived before it was merged here up to {end}"
            raise Refused("busy", words)
        if not message.rolled.end:
            demand_frames(self._appender.manifest)
        if is_not_copied(line) and self._start == "":
            line = line._replace(reason=NOT_OFFERED)
        self._appender.skip_archived(message.rolled, line)
        self.inbox.written()

    def news(self) -> Ack | None:
        """Return an acknowledgement of the log's progress; None if the last one said the same."""
        reached = self.inbox.confirmations
        ack = Ack(
            self.channel, self._appender.end, reached.received, reached.replicated,
            reached.merged, reached.merged_at,
        )  # fmt: skip
        if ack == self._acked:
            return None
        self._acked = ack
        return ack

    @property
    def _end(self) -> SinkEnd:
        appender = self._appender
        if appender.is_closed:
            raise Refused("busy", "this copy was set aside; another is about to be begun")
        return SinkEnd(appender.end, appender.is_open)

    def _new_part(self, position: Position, payload: memoryview) -> memoryview:
        """Compare the frames with those in the copy; return the frames that the copy lacks."""
        file, appender = position.file, self._appender
        if file in appender.manifest.archived:
            return payload[:0]
        ours = appender.manifest.rolled_end(file)
        if ours is None:
            ours = appender.end.offset if appender.end.file == file else 0
        length = min(len(payload), max(0, ours - position.offset))
        beyond = length < len(payload) and file in appender.manifest.rolled
        if beyond or self._read(position, length) != payload[:length]:
            words = f"other bytes came for {position} than are here; both are kept"
            raise Refused("diverged", words)
        return payload[length:]

    def _read(self, position: Position, length: int) -> bytes:
        if not length:
            return b""
        log = LogDirectory(self._appender.directory, self._appender.disk)
        file = log.open_file(position.file)
        try:
            return file.pread(length, position.offset)
        finally:
            file.close()


def _holds_nothing(appender: Appender) -> bool:
    """Whether the copy has no bytes yet; its manifest may list files that it skipped."""
    known = appender.manifest
    last = known.archived.get(known.order[-1]) if known.order else None
    passed_over = not known.order or (last is not None and is_not_copied(last))
    return passed_over and not appender.is_open


def _has_bytes(appender: Appender) -> bool:
    """Whether the copy has a file that is not archived.

    If so, the copy must not skip a file that its source never had: another source may have it.
    """
    return appender.is_open or len(appender.manifest.archived) < len(appender.manifest.order)


def last_spans(known: Manifest, end: Position, last_frame: Position | None) -> tuple[TailSpan, ...]:
    """Return the spans whose bytes prove what a copy holds before `end`; none if all are archived.

    For an active file these are its last page, and the header of its last frame, which has the
    frame's number, time and body CRC. For an ended file the last page suffices, since the Standing
    also has the file's manifest line. If the active file has no frame, the file before it counts.
    """
    if last_frame is not None:
        return TailSpan(last_frame, HEADER_BYTES), _page_before(end)
    for file in reversed(known.order):
        if file in known.archived:
            return ()
        if length := known.rolled[file].end:
            return (_page_before(Position(file + length)),)
    return ()


def _page_before(end: Position) -> TailSpan:
    length = min(end.offset, TAIL_BYTES_MAX)
    return TailSpan(Position(end - length), length)
