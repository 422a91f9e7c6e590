"""Plan: fixes what one load reads of its logs."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from datetime import datetime
from typing import Final, NamedTuple

from rt.errors import CorruptLog, FrameError, GapError, Misuse
from rt.events import Gap
from rt.format.frame import FrameKind, Header
from rt.format.index import SUFFIX, Index, IndexEntry, encode_index
from rt.format.scan import Scan, next_header
from rt.format.seek import walk_before
from rt.format.walk import Walk
from rt.limits import INDEX_EVERY_BYTES, MIB
from rt.log.files.absent import no_log
from rt.log.files.directory import LogDirectory
from rt.log.files.disk import File
from rt.log.read.gaps import gaps_between
from rt.log.read.growth import BadFrames, DamagedFrame
from rt.log.read.start import (
    AtTime,
    Last,
    Start,
    checked_start,
    end_before,
    nanoseconds,
    readable_at,
    resolve,
)
from rt.log.write.active_file import Facts
from rt.position import START, Position
from rt.spark.reading.options import FAILFAST, ReadOptions, Selection
from rt.spark.reading.places import LogPlace, log_paths
from rt.spark.reading.storage import open_storage

_INDEX_BYTES_MAX: Final = 192 * MIB  # 24 bytes for each range of at least 128 bytes in a 1 GiB file


@dataclass(frozen=True, slots=True)
class LogSnapshot:
    """A log at one moment: every query on a load reads this, whatever is appended meanwhile.

    Attributes:
        path: the path of the log, as the user wrote it.
        log_id: a log that was deleted and created again has another id.
        stream: the stream whose messages it holds.
        start: where to begin.
        stop: where to stop, exclusive.
        files: where each file with wanted messages begins and ends, oldest first.
        gaps: the archived parts.
    """

    path: str
    log_id: str
    stream: str
    merged: bool
    start: Position
    stop: Position
    files: tuple[tuple[Position, int], ...]
    gaps: tuple[Gap, ...]

    @property
    def place(self) -> LogPlace:
        """Return where a task finds the log."""
        return LogPlace(self.path, self.log_id, self.stream)


class _Tail(NamedTuple):
    """A growing file when last scanned: its size, the end of its whole frames, the walk."""

    size: int
    end: int
    walk: Walk


class LogView:
    """A log directory while a load is planned; close it after use."""

    def __init__(self, path: str, *, strict: bool = True) -> None:
        """Open the log at `path`.

        Args:
            path: a directory or a URI.
            strict: whether damage at the end of the log is an error; otherwise tasks handle it as
                the mode says.
        """
        disk, inside = open_storage(path)
        self.path = path
        self.log = LogDirectory(inside, disk)
        self.strict = strict
        self._tails: dict[Position, _Tail] = {}
        self._bad_frames = BadFrames(self.log)

    def refresh(self) -> bool:
        """Look again; return whether the log exists."""
        self.log.refresh()
        return self.log.is_there

    @property
    def log_id(self) -> str:
        """The id of the log; "" if it has none yet."""
        identity = self.log.manifest.identity
        return identity.id if identity else ""

    @property
    def stream(self) -> str:
        """Return the stream whose messages the log holds; "" if not known yet."""
        identity = self.log.manifest.identity
        return identity.stream if identity else ""

    def files(self) -> Iterator[tuple[Position, int]]:
        """Yield unarchived files and their ends, up to the first that still grows."""
        for start in self.log.files():
            end = self.log.manifest.rolled_end(start)
            yield start, self.tail_end(start) if end is None else end
            if end is None:
                return

    def end(self) -> Position:
        """Return the position after the last whole frame."""
        order = self.log.manifest.order
        rolled = order[-1] + self.log.manifest.rolled[order[-1]].end if order else 0
        return max((Position(start + end) for start, end in self.files()), default=Position(rolled))

    def tail_end(self, start: Position) -> int:
        """Return where the whole frames of a growing file end; the rest is not written yet."""
        file = self.log.open_file(start)
        try:
            size = file.size()
            known = self._tails.get(start)
            if known is None or known.size != size:
                known = self._tails[start] = self._scan_tail(file, start, size, known)
            return known.end
        finally:
            file.close()

    def walk_to(self, file: File, start: Position, is_past: Callable[[IndexEntry], bool]) -> Walk:
        """Return a walk at the last indexed frame that is not past the sought place."""
        log = self.log
        index = self.index(file, start)
        return walk_before(
            file.pread, index, start, is_past, merged=log.merged, session=log.session
        )

    def index(self, file: File, start: Position) -> Index:
        """Return a file's index, in memory; rebuilds it if it is missing."""
        try:
            index_file = self.log.disk.open_read(self.log.file_path(start) + SUFFIX)
        except FileNotFoundError:
            data = self._made_index(file, start)
        else:
            with closing(index_file):
                size = index_file.size()
                is_ours = size <= _INDEX_BYTES_MAX  # a file too large to be ours is ignored
                data = index_file.pread(size, 0) if is_ours else self._made_index(file, start)
        return Index(lambda length, offset: data[offset : offset + length], len(data))

    def numbered(self, start: Position, offset: int) -> tuple[int, int]:
        """Return the number of the first message from an offset on, and the number after the last.

        Reads only headers after an index entry. Numbers that a session skipped count too.
        """
        with closing(self.log.open_file(start)) as file:
            end, begin, last = self.tail_end(start), Facts(), Facts()
            for at, header in headers(
                file, self.walk_to(file, start, lambda e: e.offset > offset), end
            ):
                if self._numbers(header) and at.offset >= offset:
                    begin.take(header)
                    break
            for _, header in headers(file, self.walk_to(file, start, lambda _entry: False), end):
                if self._numbers(header):
                    last.take(header)
            return (begin.first, last.next) if begin.frames else (0, 0)

    def _numbers(self, header: Header) -> bool:
        return header.kind == (FrameKind.RANGE if self.log.merged else FrameKind.MESSAGES)

    def close(self) -> None:
        """Release the manifest."""
        self.log.close()

    def _made_index(self, file: File, start: Position) -> bytes:
        walk = Walk(start, merged=self.log.merged, session=self.log.session)
        end = self.log.manifest.rolled_end(start) or file.size()
        entries: list[IndexEntry] = []
        wanted, offset = FrameKind.RANGE if self.log.merged else FrameKind.MESSAGES, 0
        for at, header in headers(file, walk, end):
            if header.kind == wanted and (self.log.merged or at.offset >= offset):
                entries.append(IndexEntry(at.offset, header.time_ns, header.sequence))
                offset = at.offset + INDEX_EVERY_BYTES
        return encode_index(entries)

    def _scan_tail(self, file: File, start: Position, size: int, known: "_Tail | None") -> "_Tail":
        if known is not None and known.walk.position.offset <= size:
            walk = known.walk
        else:
            walk = self.walk_to(file, start, lambda entry: entry.offset >= size)
        scan = Scan(file.pread, walk)
        try:
            while scan.next(size):
                pass
        except FrameError as error:
            return self._bad_tail(file, walk, size, str(error))
        return _Tail(size, walk.position.offset, walk)

    def _bad_tail(self, file: File, walk: Walk, size: int, reason: str) -> _Tail:
        """End before an incomplete frame, or after damage that tasks may skip."""
        at = walk.position
        if not isinstance(self._bad_frames.explain(file, walk), DamagedFrame):
            return _Tail(size, at.offset, walk)
        if self.strict:
            raise CorruptLog(self.log.file_path(at), at, reason)
        return _Tail(size, size, walk)


def take_snapshots(options: ReadOptions) -> tuple[LogSnapshot, ...]:
    """Fix what a load reads of each of its logs.

    Raises:
        Misuse: there is no log, two hold the same messages, or the start is after the end.
        GapError: part of it was archived.
        CorruptLog: something that had to be read for this is damaged.
    """
    with ExitStack() as stack:
        views = []
        for path in log_paths(options.paths):
            view = stack.enter_context(closing(LogView(path, strict=options.mode == FAILFAST)))
            if not view.refresh():
                raise no_log(path)
            if is_selected(view, options.selection):
                views.append(view)
        edges = options.edges
        if len(views) > 1 and any(isinstance(e, Position) for e in (edges.start, edges.end)):
            raise Misuse(
                f"a position belongs to one log, and the load names {len(views)}; use times"
            )
        check_no_copies(tuple(between(view, START, START) for view in views))
        return tuple(_snapshot(view, options) for view in views)


def check_no_copies(snapshots: tuple[LogSnapshot, ...]) -> None:
    """Refuse logs that hold the same messages, which a load would return twice.

    Raises:
        Misuse: two are copies of one log, or one is merged from sessions that others hold.
    """
    logs: dict[str, LogSnapshot] = {}
    for each in snapshots:
        other = logs.setdefault(each.log_id, each)
        if other is not each:
            raise Misuse(
                f"{other.path} and {each.path} are copies of one log, whose messages the load "
                "would give twice: name one of them"
            )
    merged: dict[str, list[LogSnapshot]] = {}
    for each in snapshots:
        if each.merged:
            merged.setdefault(each.stream, []).append(each)
    for each in snapshots:
        for other in merged.get(each.stream, ()):
            if not each.merged or (each is not other and _digests(each) & _digests(other)):
                raise Misuse(
                    f"{other.path} and {each.path} hold the same messages of the stream "
                    f"{each.stream}, which the load would give twice: name one of them"
                )


def _digests(snapshot: LogSnapshot) -> set[tuple[Position, str]]:
    """Return the digests of a merged log's rolled files, which copies of it share."""
    with closing(LogView(snapshot.path, strict=False)) as view:
        view.refresh()
        lines = view.log.manifest.rolled.values()
        return {(line.file, line.digest) for line in lines if line.digest}


def is_selected(view: LogView, selection: Selection) -> bool:
    """Whether a load reads any part of a log."""
    if not selection.has_stream(view.stream):
        return False
    return view.log.merged or selection.has_session(view.log.session)


def check_nothing_archived(snapshots: tuple[LogSnapshot, ...], options: ReadOptions) -> None:
    """Refuse a load from `earliest` that may have begun before files were archived.

    Raises:
        Misuse: files were archived, and nothing says whether the load was made before that.
    """
    if options.edges.start != "earliest" or options.edges.start_ns is not None:
        return
    for snapshot in snapshots:
        with closing(LogView(snapshot.path, strict=False)) as view:
            view.refresh()
            for gap in gaps_between(view.log, START, snapshot.start):
                if gap.reason.startswith("not copied"):
                    continue  # this copy never had the file
                raise Misuse(
                    f"{snapshot.path}: {gap}. That may have been after this load: Spark plans a "
                    "load with .schema(...) at its first action. Name the columns by "
                    '.option("columns", "session, payload") instead, so that load() fixes what is '
                    f"read, or give startingPosition={snapshot.start} or failOnDataLoss=false"
                )


def between(view: LogView, start: Position, stop: Position) -> LogSnapshot:
    """Return the messages from `start` up to `stop` as a snapshot, including gaps."""
    files = tuple(
        (file, min(end, stop - file))
        for file, end in view.files()
        if file < stop and start < file + max(1, end)
    )
    return LogSnapshot(
        view.path, view.log_id, view.stream, view.log.merged,
        start, stop, files, tuple(gaps_between(view.log, start, stop)),
    )  # fmt: skip


def _snapshot(view: LogView, options: ReadOptions) -> LogSnapshot:
    there = view.end()
    edges = options.edges
    start, stop = edge(view, edges.start, edges.start_ns), there
    if edges.end_ns is not None or isinstance(edges.end, Position):
        stop = min(edge(view, edges.end, edges.end_ns, is_end=True), there)
    named = edges.start if isinstance(edges.start, Position) else None
    if named is not None and named > there:
        raise Misuse(f"{view.path}: the log ends at {there}, before the start {named}")
    if options.fail_on_data_loss:
        check_not_all_archived(view, options)
    found = between(view, start, max(start, stop))
    if found.gaps and options.fail_on_data_loss:
        raise GapError(found.gaps[0])
    return found


def check_not_all_archived(view: LogView, options: ReadOptions) -> None:
    """Refuse `earliest` for a log whose messages are all gone: it would silently read nothing.

    Raises:
        GapError: all messages of the log were archived.
    """
    if options.edges.start != "earliest" or options.edges.start_ns is not None:
        return
    end = view.end()
    if end and resolve(view.log, "earliest") >= end:
        for gap in gaps_between(view.log, Position(0), end):
            raise GapError(gap)


def edge(
    view: LogView, place: Position | str, time_ns: int | None, *, is_end: bool = False
) -> Position:
    """Return the position that a start or end option names."""
    if isinstance(place, Position):
        return place
    if time_ns is None:
        return view.end() if place == "latest" else resolve(view.log, "earliest")
    manifest = view.log.manifest
    seek = end_before if is_end else readable_at
    try:
        found = seek(view.log, time_ns) if view.log.files() else view.end()
    except CorruptLog as error:  # damage in a session, which is read up to there
        if view.strict:
            raise
        found = view.end() if is_end else error.position
    # Archived messages in the window must count as a gap, not be skipped silently. So a window
    # begins at the first archived file that may hold one, and ends at the first that is too late.
    lines = (manifest.rolled[file] for file in manifest.order if file in manifest.archived)
    times = ((line.file, line.first_time_ns if is_end else line.last_time_ns) for line in lines)
    return min(found, next((file for file, ns in times if ns >= time_ns), found))


def parsed_edge(paths: tuple[str, ...], given: Start | str) -> tuple[Position | str, int | None]:
    """Parse a start or end given in Python: a position or a word, and a time in ns.

    Raises:
        Misuse: it is none of these, or counts messages of several logs.
    """
    place = checked_start(given)
    if isinstance(place, AtTime | datetime):
        return "", place.ns if isinstance(place, AtTime) else nanoseconds(place)
    if isinstance(place, Last):
        paths = log_paths(paths)
        if len(paths) > 1:
            words = f"last:{place.messages} counts in one log, and the load names {len(paths)}"
            raise Misuse(f"{words}; use times")
        with closing(LogView(paths[0])) as view:
            view.refresh()
            return resolve(view.log, place), None
    return place, None


def headers(file: File, walk: Walk, end: int) -> Iterator[tuple[Position, Header]]:
    """Yield the headers of the frames from `walk` on, with their positions; reads no body."""
    while True:
        at = walk.position
        header = next_header(file.pread, walk, end)
        if header is None:
            return
        yield at, header


def all_gaps(path: str) -> list[Gap]:
    """Return the ranges of a log that were archived or are missing."""
    view = LogView(path)
    try:
        if not view.refresh():
            raise no_log(path)
        order = view.log.manifest.order
        stop = order[-1].next_file() if order else Position(0)
        return list(gaps_between(view.log, Position(0), stop))
    finally:
        view.close()
