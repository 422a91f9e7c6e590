"""Reader: reads a log directory frame by frame, across rolls and runs, while it grows."""

import logging
import os
from bisect import bisect_right
from contextlib import closing
from typing import Final

from rt.errors import CorruptLog, FrameError, ReplacedLog
from rt.events import Dropped, Gap, NewRun, SessionEvent
from rt.format.dropped_notice import decode_notice
from rt.format.frame import FrameKind, Header
from rt.format.manifest import FILE_NAME
from rt.format.message import Batch
from rt.format.ranges import Range
from rt.format.scan import Frame, Scan
from rt.format.session_event import decode_event, is_event
from rt.format.walk import Walk
from rt.log.files.directory import LogDirectory
from rt.log.files.disk import File
from rt.log.read.gaps import gap_before
from rt.log.read.growth import BadFrames, DamagedFrame
from rt.position import OFFSET_END, START, Position

_log: Final = logging.getLogger(__name__)
Found = Batch | Gap | NewRun | SessionEvent | Dropped

# consecutive polls without news between two probes; a probe costs a few system calls
_POLLS_A_PROBE: Final = 16
# ends accepted from the writer between two looks at the file, of three system calls each
_TOLD_A_LOOK: Final = 64


class Reader:
    """Reads a log from a position on, in order, and checks it; writes nothing.

    `poll` returns a `Batch` of messages, a `Gap`, `NewRun`, `SessionEvent` or `Dropped`; it
    returns None if there is nothing yet; call it again later. Not thread-safe.
    """

    def __init__(self, log: LogDirectory, start: Position = START) -> None:
        self.log = log
        self.position = start  # messages before it are not returned
        self._file: File | None = None
        self._scan: Scan | None = None
        self._limit = 0  # size of the file when last checked; no frame beyond it is read
        self._seen = 0  # messages of the current range so far
        self._idle_polls = 0  # polls of the current file without news
        self._continuity = _Continuity()
        self._bad_frames = BadFrames(log)
        self._next_file: Position | None = None  # set when a file was read to its end
        # Where the last file ends, if its writer in this process has just announced it; this
        # usually saves a look at the file.
        self.told_end: Position | None = None
        self._told = 0  # consecutive ends accepted from the writer without a look
        # whether the whole log is being copied again and is not complete yet
        self.awaits_copy = False

    def poll(self) -> Found | None:
        """Return the next item, or None if there is nothing yet.

        Raises:
            CorruptLog: the frame at the position is damaged. Later calls raise it again until the
                frame is repaired.
            ReplacedLog: the log on disk does not continue what was read; stop reading it.
        """
        while True:
            if self._scan is None:
                event = self._open()
                if event or self._scan is None:
                    return event
            frame = self._next_frame(self._scan)
            if frame is not None:
                found = self._take(frame)
                if found is not None:
                    return found
            elif self._is_at_told_end(self._scan.walk.position):
                return None
            elif not self._go_on():
                gap = self._gap_under_us()
                if gap or self._scan is not None:
                    return gap

    @property
    def place(self) -> Position | None:
        """Return how far the open file has been read; None if no file is open."""
        return None if self._scan is None else self._scan.walk.position

    @property
    def range(self) -> Range | None:
        """The range of a merged log that the last item came from; None in a session's own log."""
        return None if self._scan is None else self._scan.walk.range

    @property
    def is_beyond_end(self) -> bool:
        """Whether the log ends before `position`; valid after `poll` has returned None."""
        if self._scan is not None:
            return self._scan.walk.position < self.position
        order = self.log.manifest.order
        if not order:
            return self.position > START
        end = Position(order[-1] + self.log.manifest.rolled[order[-1]].end)
        # once the last file is rolled, the start of the next one also counts as the log's end
        return self.position > end and self.position != order[-1].next_file()

    def skip_range(self) -> None:
        """Skip the rest of the current range of a merged log without reading it."""
        walk = self._scan.walk if self._scan else None
        if walk is not None and walk.position.offset + walk.left <= self._limit:
            walk.skip_range()
            self.position = max(self.position, walk.position)

    def close(self) -> None:
        """Close the files."""
        self._close_file()
        self.log.close()

    def _next_frame(self, scan: Scan) -> Frame | None:
        try:
            frame = scan.next(self._limit)
            if frame is None and self._look():
                frame = scan.next(self._limit)
            if frame is None and scan.walk.position.offset < self._limit == self._rolled_end(scan):
                raise FrameError("the frame is incomplete")  # and never will be complete
        except FrameError as error:
            scan.forget()
            self._explain(scan.walk, str(error))
            return None
        return frame

    def _rolled_end(self, scan: Scan) -> int | None:
        return self.log.manifest.rolled_end(scan.walk.position.file)

    def _look(self) -> bool:
        """Update the end of the file; return whether it has grown."""
        if self._file is None or self._scan is None:
            return False
        rolled, told = self._rolled_end(self._scan), self.told_end
        size = -1 if told is None else told - self._scan.walk.position.file
        if not self._limit <= size < OFFSET_END:  # outdated, or for another file
            size = self._file.size()
        limit = size if rolled is None else min(size, rolled)
        grown = limit > self._limit
        self._limit = limit
        return grown

    def _take(self, frame: Frame) -> Found | None:
        walk = self._scan.walk if self._scan else None
        if walk is not None and walk.range is not None:
            return self._take_merged(frame, walk)
        if frame.position >= self.position and (
            fault := self._continuity.fault(frame.position, frame.header)
        ):
            raise self._replaced(fault)
        self.position = max(self.position, frame.position)
        return self._batch(frame, self.log.session, None, frame.header.sequence, 0)

    def _take_merged(self, frame: Frame, walk: Walk) -> Found | None:
        current = walk.range
        if current is None:
            return None
        if frame.header.kind == FrameKind.RANGE:
            self._seen = 0
            self.position = max(self.position, frame.position)
            if is_event(current):
                return None
            return self._continuity.new_run(current.session, current.first)
        if is_event(current):
            return self._event(frame, current)
        if frame.header.kind == FrameKind.CONTROL:
            return self._dropped(frame, current)
        passed = self._seen
        self._seen += frame.header.messages
        repeats = min(max(0, current.skip - passed), frame.header.messages)
        number = current.number + max(0, passed - current.skip)
        return self._batch(frame, current.session, current.time_ns, number, repeats)

    def _batch(
        self, frame: Frame, session: str, merge_time_ns: int | None, number: int, repeats: int
    ) -> Batch | None:
        header, position = frame.header, frame.position
        first = max(repeats, min(self.position - position, header.messages))
        self.position = max(self.position, Position(position + header.size))
        if header.kind != FrameKind.MESSAGES or first >= header.messages:
            return None
        number += first - repeats
        return Batch(header, frame.body, position, session, merge_time_ns, first, number)

    def _event(self, frame: Frame, current: Range) -> SessionEvent | None:
        is_wanted = frame.position >= self.position
        self.position = max(self.position, Position(frame.position + frame.header.size))
        if not is_wanted:
            return None
        try:
            return decode_event(frame.header, frame.body, current, frame.position)
        except FrameError as error:
            path = self.log.file_path(frame.position)
            raise CorruptLog(path, frame.position, str(error)) from None

    def _dropped(self, frame: Frame, current: Range) -> Dropped | None:
        is_wanted = frame.position >= self.position
        self.position = max(self.position, Position(frame.position + frame.header.size))
        span = decode_notice(frame.body) if is_wanted else None
        return None if span is None else span.event(current.session, frame.position)

    def _open(self) -> Gap | NewRun | None:
        self.log.refresh()
        if self._is_being_copied(self.position):
            return None
        start = self._next_file
        if start is None and self.log.is_there:
            start = self.log.file_from(self.position)
        if start is None:
            return self._gap_to_the_end()
        try:
            self._file = self.log.open_file(start)
        except FileNotFoundError:
            return None
        gap, self._next_file = gap_before(self.log, self.position, start), None
        self.position = max(self.position, start)
        wanted = self.position.offset
        walk = self.log.walk_before(self._file, start, lambda entry: entry.offset > wanted)
        self._scan = Scan(self._file.pread, walk)
        self._seen = self._limit = self._idle_polls = 0
        self._look()
        if gap or self.log.merged:
            return gap
        return self._continuity.new_run(self.log.session, start)

    def _gap_to_the_end(self) -> Gap | None:
        """Return the gap to the log's end, if no readable file is left after the position."""
        gap = gap_before(self.log, self.position, None) if self.log.is_there else None
        if gap is not None:
            self.position = gap.end
        return gap

    def _go_on(self) -> bool:
        """Look for more after the end of the data; return whether reading can continue now."""
        if self.log.refresh():
            return self._look() or self._file_is_done()
        if self._file_is_done():
            return True
        if self._idle_polls % _POLLS_A_PROBE == 0 and not self._is_awaited():
            self._demand_line()
            self._demand_same_log()
            self._goes_on_elsewhere()
        self._idle_polls += 1
        return False

    def _is_awaited(self) -> bool:
        """Whether a node is copying the log again, or the reader has just switched to that copy."""
        walk = self._scan.walk if self._scan else None
        place = self.position if walk is None else max(self.position, walk.position)
        return self._is_being_copied(place) or self._scan is None

    def _is_being_copied(self, place: Position) -> bool:
        """Whether a node is copying the whole log again and has not reached `place`.

        Once the copy has reached `place`, the reader switches to it, and no file is open.
        """
        fresh = self.log.begun_again() if self.log.merged else None
        was_awaited, self.awaits_copy = self.awaits_copy, False
        if fresh is None:
            return False
        if _reaches(fresh, place):
            self.log.take_up(fresh)
            self._close_file()
            self._next_file = None
            return False
        self.awaits_copy = True
        if not was_awaited:
            _log.warning(
                "%s is being copied again; reading continues once that has come to %s",
                self.log.path, place,
            )  # fmt: skip
        return True

    def _is_at_told_end(self, position: Position) -> bool:
        """Whether everything up to the end that the writer announced was read; forget that end.

        Now and then this returns False anyway, so that the file itself is checked.
        """
        told, self.told_end = self.told_end, None
        self._told = self._told + 1 if told == position else 0
        return self._told % _TOLD_A_LOOK > 0

    def _demand_line(self) -> None:
        """Raise `CorruptLog` if the next file exists but this one has no `rolled` line."""
        walk, log = self._scan.walk if self._scan else None, self.log
        if walk is None or log.manifest.rolled_end(walk.position.file) is not None:
            return
        file = walk.position.file
        later = next(filter(log.has_file, (file.next_file(), file.next_run())), None)
        if later is not None and not log.refresh() and log.manifest.rolled_end(file) is None:
            reason = (
                f"it does not say where {file.file_name} ends, though {later.file_name} is there"
            )
            raise CorruptLog(os.path.join(log.path, FILE_NAME), walk.position, reason)

    def _demand_same_log(self) -> None:
        """Raise `ReplacedLog` if another log has replaced this one; never for a merged log."""
        if not self.log.merged and self.log.is_replaced():
            raise self._replaced("it was deleted, and another made in its place")

    def _replaced(self, reason: str) -> ReplacedLog:
        return ReplacedLog(self.log.path, self.position, reason)

    def _file_is_done(self) -> bool:
        walk = self._scan.walk if self._scan else None
        if walk is None:
            return False
        end = self.log.manifest.rolled_end(walk.position.file)
        if end is None or walk.position.offset < end:
            return False
        if walk.position.offset > end:
            raise self._replaced(f"{walk.position.file.file_name} ends at offset {end} now")
        following = self.log.file_from(walk.position.next_file())
        if following is None:
            order = self.log.manifest.order
            later = order[bisect_right(order, walk.position.file) :]
            if not later:
                return False
            self.position = later[0]  # only a gap is left up to the log's end
        self.position = max(self.position, walk.position)
        self._next_file = following
        self._close_file()
        return True

    def _gap_under_us(self) -> Gap | None:
        """Return the gap if the open file was archived while being read."""
        if self._file is None or self._scan is None:
            return None
        at = self._scan.walk.position
        shorter = self._file.size() < max(at.offset, self.log.manifest.rolled_end(at.file) or 0)
        if shorter:
            self.log.refresh()  # the `archived` line is written before the file is emptied
        if at.file not in self.log.manifest.archived:
            may_come_back = shorter and (
                self._may_be_written_again(self._scan)
                or self._goes_on_elsewhere()
                or self._is_awaited()
            )
            if shorter and not may_come_back:
                raise CorruptLog(self.log.file_path(at), at, "the file became shorter than it was")
            return None
        self.position = max(self.position, at)
        is_copied = shorter and not self.log.is_gone(at.file)
        following = self.log.file_from(at if is_copied else at.next_file())
        gap = gap_before(self.log, self.position, following)
        if following is None and gap is None:
            return None
        end = gap.end if gap is not None else following
        self.position, self._next_file = max(self.position, end or at), following
        self._close_file()
        return gap

    def _may_be_written_again(self, scan: Scan) -> bool:
        """Whether a file became shorter because a node removed an unfinished range.

        A node removes an unfinished range when its disk is full, and when it restarts. The nodes
        agreed on the range, so this node will write the same bytes again, and reading continues in
        the middle of the range.
        """
        walk = scan.walk
        if walk.range is None or not walk.left or self._file is None:
            return False
        read = walk.range.size + walk.range.length - walk.left
        scan.forget()
        return self._file.size() >= walk.position.offset - read

    def _goes_on_elsewhere(self) -> bool:
        """Whether a new file has replaced the open one; switches once the new one is long enough.

        A node sets a damaged file of its merged log aside and copies it again from another node.
        """
        if self._file is None or self._scan is None:
            return False
        walk = self._scan.walk
        fresh = self.log.replacement(walk.position.file, self._file)
        if fresh is None:
            return False
        if fresh.size() < walk.position.offset:
            fresh.close()
            if not self.log.merged:
                raise self._replaced(f"{walk.position.file.file_name} is another file, and shorter")
            return True
        self._file.close()
        self._file, self._scan, self._limit = fresh, Scan(fresh.pread, walk), 0
        self._look()
        return True

    def _explain(self, walk: Walk, reason: str) -> None:
        """Raise `CorruptLog` if an invalid frame is damage; return if it is only unfinished."""
        if self._file is None:
            return
        is_damaged = isinstance(self._bad_frames.explain(self._file, walk), DamagedFrame)
        if is_damaged and not (self._goes_on_elsewhere() or self._is_awaited()):
            raise CorruptLog(self.log.file_path(walk.position), walk.position, reason)

    def _close_file(self) -> None:
        if self._file is not None:
            self._file.close()
        self._file, self._scan = None, None


class _Continuity:
    """What a reader has seen of each session so far."""

    def __init__(self) -> None:
        self._runs: dict[str, int] = {}  # last run of each session
        self._run, self._next_number = 0, 0  # run and next sequence number in a session's own log

    def new_run(self, session: str, first: Position) -> NewRun | None:
        """Record the run a session is in; return an event if it differs from the last one."""
        known = self._runs.get(session)
        self._runs[session] = first.run
        return NewRun(session, first) if known is not None and known != first.run else None

    def fault(self, position: Position, header: Header) -> str:
        """Record the next frame of a session's own log; return why it does not fit, or "".

        A frame does not fit if it begins a new run with numbers that an earlier run has used. A
        publisher that was restored from a backup does this, since it does not know which numbers it
        used after the backup. Within a run, a number that comes again is no fault: the frame before
        may be one that cannot be decoded, and that claims more messages than it holds.
        """
        if not header.messages:
            return ""
        expected, self._next_number = self._next_number, header.sequence + header.messages
        is_new_run, self._run = position.run != self._run, position.run
        if header.sequence >= expected or not is_new_run:
            return ""
        return f"message {header.sequence} comes again, after {expected - 1}"


def _reaches(log: LogDirectory, place: Position) -> bool:
    """Whether a log has been copied up to `place`, or the file of `place` is complete."""
    if place.file in log.manifest.rolled:
        return True
    try:
        file = log.open_file(place.file)
    except FileNotFoundError:
        return False
    with closing(file):
        return log.is_there and file.size() >= place.offset
