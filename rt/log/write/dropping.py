"""Dropping: drops the oldest files of a full session that no pusher has begun to send."""

import time
from bisect import bisect_left
from collections.abc import Callable, Sequence
from contextlib import closing

from rt.errors import DiskFailed
from rt.format.dropped_notice import NOTHING, NOTICE_BYTES, DroppedSpan, notice_frame, parse_notice
from rt.format.frame import session_tag
from rt.format.manifest import Archived, Manifest
from rt.log.files.archived import DROPPED, is_dropped
from rt.log.files.directory import LogDirectory
from rt.log.files.listing import log_files
from rt.log.write.appender import Appender
from rt.log.write.sending import Sending, begin_sending, notice_of, sending
from rt.position import Position


class Dropping:
    """Drops the oldest files of a full session, and records in the next file what was dropped.

    Each file begins with a notice of what was dropped just before it.

    Before a file is dropped, the notice in the next file is rewritten in place, since no node has
    that file yet. So readers of the stream get the notice once, where the messages would have been;
    for the nodes, a dropped file never existed.

    Threads:
        One thread at a time calls anything here, under the publisher's lock. Any thread may read
        `spans`, which is replaced as a whole.
    """

    def __init__(self, appender: Appender, limit: int) -> None:
        """Take over a recovered session without an open file; it may hold up to `limit` bytes."""
        self._appender = appender
        self._log = LogDirectory(appender.directory, appender.disk)
        # spans dropped by this object, adjacent ones joined
        self.spans: tuple[DroppedSpan, ...] = ()
        self._untold: tuple[DroppedSpan, ...] = ()
        begin_sending(appender.directory, self._newest, limit)
        self._carried = self._left_over()

    def begin(self, file: Position, sequence: int) -> None:
        """Begin a file with its notice; after an `OSError`, such as a full disk, call it again."""
        appender = self._appender
        frame = notice_frame(
            self._carried, position=file, sequence=sequence, time_ns=time.time_ns(),
            session_tag=session_tag(appender.identity.session),
        )  # fmt: skip
        if not appender.is_open:
            appender.begin_file(file)
        after = appender.walk.copy()
        after.step(frame.header)
        appender.append(frame.parts, (frame.header,), after)
        self._carried = NOTHING

    def drop(self, begin: Callable[[], object]) -> bool:
        """Drop the oldest file that can be dropped; return whether there was one.

        If no file follows it, this calls `begin` to begin the next file.

        Raises:
            OSError: the disk is full, or failed.
        """
        known = self._appender.manifest
        with sending(self._appender.directory) as mark:
            file = None if mark is None else self._oldest(known, mark)
            if file is None:
                return False
            following = self._following(file)
            if following is None:
                begin()
                following = self._appender.end.file
            earlier, next_one = notice_of(self._log, file), notice_of(self._log, following)
            if earlier is None or next_one is None:
                return False  # written without `drop_oldest`
            line = known.rolled[file]
            at_ns = time.time_ns()
            gone = DroppedSpan(file, Position(file + line.end), line.first, line.next, at_ns)
            self._write_notice(
                following, earlier.joined(gone) if gone.first < gone.next else earlier
            )
            self._record(gone)
            self._appender.archive_all([Archived(file, at_ns, DROPPED)])
        return True

    def take_untold(self) -> tuple[DroppedSpan, ...]:
        """Return the spans dropped since the last call."""
        untold, self._untold = self._untold, ()
        return untold

    def _record(self, gone: DroppedSpan) -> None:
        """Record a dropped span before its manifest line is written, so it is never confirmed.

        An attempt that a full disk ended has recorded it already.
        """
        if self.spans and self.spans[-1].end >= gone.end:
            return
        self.spans, self._untold = _with(self.spans, gone), _with(self._untold, gone)

    def _oldest(self, known: Manifest, mark: Sending) -> Position | None:
        order = known.order
        places = range(bisect_left(order, mark.bound), len(order))
        return next((order[place] for place in places if not is_dropped(known, order[place])), None)

    def _following(self, file: Position) -> Position | None:
        """Return the file after `file`; None if there is none.

        The following file was not dropped, since the oldest files are dropped first.
        """
        active = self._appender.end.file if self._appender.is_open else None
        return self._appender.manifest.successor(file) or active

    def _write_notice(self, file: Position, dropped: DroppedSpan) -> None:
        path = self._log.file_path(file)
        with closing(self._log.open_file(file)) as opened:
            found = parse_notice(opened.pread(NOTICE_BYTES, 0))
        if found is None:
            raise DiskFailed(None, f"{path} no longer begins with its notice")
        header, _ = found
        frame = notice_frame(
            dropped, position=file, sequence=header.sequence, time_ns=header.time_ns,
            session_tag=header.session_tag,
        )  # fmt: skip
        with closing(self._appender.disk.open(path)) as opened:
            opened.overwrite(b"".join(frame.parts), 0)
            opened.sync()  # before the line of the dropped file: without either, it was not dropped

    def _left_over(self) -> DroppedSpan:
        """Return the span of the last file's notice if no message followed it; otherwise `NOTHING`.

        Nodes skip a file that has only a notice, so the next file must repeat the notice.
        """
        order, known = self._appender.manifest.order, self._appender.manifest
        if not order or known.rolled[order[-1]].end != NOTICE_BYTES:
            return NOTHING
        return notice_of(self._log, order[-1]) or NOTHING

    def _newest(self) -> Position | None:
        files = log_files(self._appender.disk, self._appender.directory)
        return max([*files, *self._appender.manifest.order[-1:]], default=None)


def finish_dropping(appender: Appender) -> None:
    """Finish dropping files that a later file's notice, but not the manifest, records as dropped.

    A process that died while it dropped a file leaves this state. Such files must not be sent any
    more, since a pusher may have skipped them already and sent what follows.
    """
    known, log = appender.manifest, LogDirectory(appender.directory, appender.disk)
    with sending(appender.directory) as mark:
        if mark is None:
            return
        log.refresh()
        kept = [file for file in known.order if file not in known.archived]
        lines = [
            Archived(file, time.time_ns(), DROPPED) for file in kept if covers(log, known, file)
        ]
        if lines:
            appender.archive_all(lines)
    log.close()


def covers(log: LogDirectory, known: Manifest, file: Position) -> bool:
    """Whether the notice in the next file says that `file` was dropped.

    `file` is rolled, and not recorded as archived.
    """
    following = known.successor(file) or log.file_from(file.next_file())
    said = None if following is None else notice_of(log, following)
    return said is not None and said.begin <= file < said.end


def _with(spans: tuple[DroppedSpan, ...], gone: DroppedSpan) -> tuple[DroppedSpan, ...]:
    if spans and spans[-1].next == gone.first:
        return (*spans[:-1], spans[-1].joined(gone))
    return (*spans, gone) if gone.first < gone.next else spans


def kept_end(known: Manifest, position: Position, gone: Sequence[DroppedSpan] = ()) -> Position:
    """Return the end of the last frame up to a position, not counting dropped frames.

    Args:
        known: the session's manifest; another thread may be adding to it.
        position: where the search begins; it goes back from here.
        gone: further dropped spans, whose lines may not be in the manifest yet.
    """

    def is_gone(file: Position) -> bool:
        return is_dropped(known, file) or any(each.begin <= file < each.end for each in gone)

    if position.offset and not is_gone(position.file):
        return position
    kept = (file for file in reversed(known.order) if file < position)
    ends = (
        file + known.rolled[file].end
        for file in kept
        if known.rolled[file].end and not is_gone(file)
    )
    return Position(next(ends, 0))


def dropped_spans(known: Manifest) -> list[DroppedSpan]:
    """Return everything a session has ever dropped, oldest first; adjacent files form one span."""
    spans: list[DroppedSpan] = []
    last = None
    for file in known.order:
        if not is_dropped(known, file):
            last = None
            continue
        line, at_ns = known.rolled[file], known.archived[file].at_ns
        gone = DroppedSpan(file, Position(file + line.end), line.first, line.next, at_ns)
        if last is None:
            spans.append(gone)
        else:
            spans[-1] = spans[-1].joined(gone)
        last = file
    return [each for each in spans if each.first < each.next]
