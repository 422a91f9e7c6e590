"""Plan: fixes what one load reads of its logs."""

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import (
    AbstractContextManager,
    ExitStack,
    closing,
    contextmanager,
    nullcontext,
)
from dataclasses import dataclass
from datetime import datetime
from typing import Final, NamedTuple

from rt.errors import CorruptLog, FrameError, GapError, Misuse
from rt.events import Gap
from rt.format.frame import Header
from rt.format.index import Index, IndexEntry, encode_index
from rt.format.scan import Scan, next_header
from rt.format.seek import walk_before
from rt.format.walk import Walk
from rt.limits import MIB
from rt.log.files.absent import no_log
from rt.log.files.disk import File
from rt.log.files.indexing import entries
from rt.log.read.gaps import gaps_between
from rt.log.read.growth import BadFrames, DamagedFrame
from rt.log.read.start import (
    AtSequence,
    AtTime,
    Last,
    Start,
    checked_start,
    end_before,
    nanoseconds,
    parse_start,
    readable_at,
    resolve,
)
from rt.position import START, Position
from rt.spark.reading.log_paths import LogPlace, log_paths
from rt.spark.reading.options import FAILFAST, ReadOptions, Selection
from rt.spark.reading.storage import open_directory

_INDEX_BYTES_MAX: Final = 192 * MIB  # 24 bytes for each range of at least 128 bytes in a 1 GiB file


@dataclass(frozen=True, slots=True)
class LogSnapshot:
    """The part of a log that a load reads, which later appends do not change."""

    place: LogPlace  # where a task finds the log
    start: Position  # where to begin
    stop: Position  # where to stop, exclusive
    # where each file with wanted messages begins and ends, oldest first
    files: tuple[tuple[Position, int], ...]
    gaps: tuple[Gap, ...]  # the archived parts


class _Tail(NamedTuple):
    """What a scan of a growing file found: size, end of whole frames, and where to continue."""

    size: int
    end: int
    walk: Walk


class LogView:
    """A log directory while a load is planned; close it after use."""

    def __init__(self, path: str, *, strict: bool = True, copies: str = "") -> None:
        """Open the log at a path or URI.

        If `strict`, damage at the end of the log is an error; if not, the tasks that read the
        damaged frames handle it by the option `mode`. Archived files are read from the store
        `copies`, unless it is "".
        """
        self.path, self.copies = path, copies
        self.log = open_directory(path, copies)
        self.strict = strict
        self._tails: dict[Position, _Tail] = {}
        self._bad_frames = BadFrames(self.log)

    def refresh(self) -> bool:
        """Read what has changed in the directory; return whether the log exists."""
        self.log.refresh()
        return self.log.is_there

    @property
    def place(self) -> LogPlace:
        """Return what a task needs to open the log; id and stream are "" while there is no log."""
        identity = self.log.manifest.identity
        names = (identity.id, identity.stream) if identity else ("", "")
        return LogPlace(self.path, *names, self.copies)

    def files(self) -> Iterator[tuple[Position, int]]:
        """Yield the start and length of each file that is not archived, up to the active file."""
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
        """Return where the whole frames of a growing file end; raises `CorruptLog` if strict."""
        with closing(self.log.open_file(start)) as file:
            size = file.size()
            known = self._tails.get(start)
            if known is None or known.size != size:
                known = self._tails[start] = self._scan_tail(file, start, size, known)
            return known.end

    def walk_to(
        self,
        file: File,
        start: Position,
        is_past: Callable[[IndexEntry], bool],
        index: Index | None = None,
    ) -> Walk:
        """Return a walk over a file's frames that begins at or before a place to find.

        `is_past` says whether an index entry is after that place; the walk begins at the last
        indexed frame that is not.
        """
        return walk_before(
            file.pread, self.index(start) if index is None else index, start, is_past,
            merged=self.log.merged, session=self.log.session,
        )  # fmt: skip

    def index(self, start: Position) -> Index:
        """Read a file's index into memory; if it is missing or too large, make it from the file."""
        _, file = self.log.open_index(start)
        with closing(file) if file else nullcontext():
            if file is None or (size := file.size()) > _INDEX_BYTES_MAX:
                data = encode_index([*entries(self.log, start)])
            else:
                data = file.pread(size, 0)
        return Index(lambda length, offset: data[offset : offset + length], len(data))

    def close(self) -> None:
        """Release the manifest."""
        self.log.close()

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
        """Return the tail of a file whose scan has met a frame that cannot be read.

        An incomplete frame ends the tail. A damaged frame raises `CorruptLog` if `strict`;
        otherwise the tail has the rest of the file, and the tasks that read it handle the damage.
        """
        at = walk.position
        if not isinstance(self._bad_frames.explain(file, walk), DamagedFrame):
            return _Tail(size, at.offset, walk)
        if self.strict:
            raise CorruptLog(self.log.file_path(at), at, reason)
        return _Tail(size, size, walk)


@contextmanager
def open_log(path: str, *, strict: bool = True, copies: str = "") -> Iterator[LogView]:
    """Open the log at `path` for the block, and read its state; `Misuse` if there is no log."""
    with closing(LogView(path, strict=strict, copies=copies)) as view:
        if not view.refresh():
            raise no_log(path)
        yield view


def take_snapshots(options: ReadOptions) -> tuple[LogSnapshot, ...]:
    """Return the part of each log that a load reads, which later appends do not change.

    Raises:
        Misuse: there is no log, two logs have the same messages, or the start is after the end.
        GapError: part of a log was archived, and failOnDataLoss is set.
        CorruptLog: damage was met in finding where the load begins and ends.
    """
    with ExitStack() as stack:
        views = []
        for path in log_paths(options.paths):
            strict = options.mode == FAILFAST
            view = stack.enter_context(open_log(path, strict=strict, copies=options.copies))
            if is_selected(view, options.selection):
                views.append(view)
        edges = options.edges
        if len(views) > 1 and any(isinstance(e, Position) for e in (edges.start, edges.end)):
            raise Misuse(
                f"a position belongs to one log, and the load names {len(views)}; use times"
            )
        check_no_copies(views)
        check_one_has_copies(views, options)
        return tuple(_snapshot(view, options) for view in views)


def check_no_copies(views: Sequence[LogView]) -> None:
    """Refuse logs that have the same messages, which a load would return twice.

    Raises:
        Misuse: two logs are copies of one log, or one is a merged log and another a session's log
            of the same stream.
    """
    seen: dict[str, LogView] = {}
    for each in views:
        other = seen.setdefault(each.place.log_id, each)
        if other is not each:
            raise Misuse(
                f"{other.path} and {each.path} are copies of one log, whose messages the load "
                "would give twice: name one of them"
            )
    for one in (view for view in views if view.log.merged):
        for each in (view for view in views if view.place.stream == one.place.stream):
            if not each.log.merged or (each is not one and _digests(each) & _digests(one)):
                raise Misuse(
                    f"{one.path} and {each.path} hold the same messages of the stream "
                    f"{each.place.stream}, which the load would give twice: name one of them"
                )


def check_one_has_copies(views: Sequence[LogView], options: ReadOptions) -> None:
    """Raise `Misuse` if the load has several logs and the option `copies`, which is for one log."""
    if options.copies and len(views) > 1:
        raise Misuse(f"{options.copies} holds copies of one log, and the load names {len(views)}")


def _digests(view: LogView) -> set[tuple[Position, str]]:
    """Return the start and digest of each rolled file of a merged log.

    Two logs that have one of these in common are copies of one log.
    """
    lines = view.log.manifest.rolled.values()
    return {(line.file, line.digest) for line in lines if line.digest}


def is_selected(view: LogView, selection: Selection) -> bool:
    """Whether a load reads any part of a log."""
    if not selection.has_stream(view.place.stream):
        return False
    return view.log.merged or selection.has_session(view.log.session)


def check_nothing_archived(snapshots: tuple[LogSnapshot, ...], options: ReadOptions) -> None:
    """Refuse a load from `earliest` if files before its start were archived.

    It is for loads that Spark has planned only at the first action: the user may have made the load
    before the files were archived, and must not miss their messages silently.

    Raises:
        Misuse: files were archived, perhaps since the user made the load.
    """
    for snapshot in snapshots if options.edges.are_from_earliest else ():
        place = snapshot.place
        with open_log(place.path, strict=False, copies=place.copies) as view:
            for gap in gaps_between(view.log, START, snapshot.start):
                if gap.reason.startswith("not copied"):
                    continue  # this copy never had the file
                raise Misuse(
                    f"{view.path}: {gap}. That may have been after this load: Spark plans a "
                    "load with .schema(...) at its first action. Name the columns by "
                    '.option("columns", "session, payload") instead, so that load() fixes what is '
                    f"read, or give startingPosition={snapshot.start} or failOnDataLoss=false"
                )


def between(view: LogView, start: Position, stop: Position) -> LogSnapshot:
    """Return the messages from `start` up to `stop`, exclusive, as a snapshot with its gaps."""
    files = tuple(
        (file, min(end, stop - file))
        for file, end in view.files()
        if file < stop and start < file + max(1, end)
    )
    return LogSnapshot(view.place, start, stop, files, tuple(gaps_between(view.log, start, stop)))


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
    """Refuse a load from `earliest` of a log whose files are all archived: it would read nothing.

    Raises:
        GapError: all messages of the log were archived.
    """
    end = view.end() if options.edges.are_from_earliest else START
    if end and resolve(view.log, "earliest") >= end:
        for gap in gaps_between(view.log, START, end):
            raise GapError(gap)


def edge(
    view: LogView, place: Position | str, time_ns: int | None, *, is_end: bool = False
) -> Position:
    """Return the position that a start or end option names, by `time_ns` if that is not None."""
    if isinstance(place, Position):
        return place
    if time_ns is None:
        return view.end() if place == "latest" else resolve(view.log, "earliest")
    seek = end_before if is_end else readable_at
    try:
        found = seek(view.log, time_ns) if view.log.files() else view.end()
    except CorruptLog as error:  # damage in a session, which is read up to there
        if view.strict:
            raise
        found = view.end() if is_end else error.position
    # Archived messages in the window must count as a gap, not be skipped silently. So the window
    # begins no later than the first unreadable file that may hold one, and ends no later than the
    # first unreadable file after the window.
    lines = (view.log.manifest.rolled[file] for file in view.log.unreadable_files())
    times = ((line.file, line.first_time_ns if is_end else line.last_time_ns) for line in lines)
    return min(found, next((file for file, ns in times if ns >= time_ns), found))


def parsed_edge(
    paths: tuple[str, ...],
    given: Start | str,
    copies: str = "",
    sessions: Collection[str] | None = None,
) -> tuple[Position | str, int | None]:
    """Parse `given`, a start or end in a form that `Loading.between` takes.

    Returns:
        A position, `earliest` or `latest`, and None; for a time, "" and ns since the epoch.

    Raises:
        Misuse: `given` has no such form, or counts messages and the load has several logs.
    """
    place = parse_start(given) if isinstance(given, str) else given
    if not isinstance(place, AtSequence):
        checked_start(place)
    if isinstance(place, AtTime | datetime):
        return "", place.ns if isinstance(place, AtTime) else nanoseconds(place)
    if isinstance(place, Last | AtSequence):
        name = f"last:{place.messages}" if isinstance(place, Last) else f"sequence:{place.number}"
        with _only_log(paths, name, copies) as view:
            if isinstance(place, AtSequence) and view.log.merged:
                place = place.of(sessions)
            return resolve(view.log, place), None
    return place, None


def _only_log(paths: tuple[str, ...], start: str, copies: str) -> AbstractContextManager[LogView]:
    """Open a load's only log; `Misuse` if there are several, since `start` counts in one log."""
    paths = log_paths(paths)
    if len(paths) > 1:
        words = f"{start} counts in one log, and the load names {len(paths)}"
        raise Misuse(f"{words}; use times")
    return open_log(paths[0], copies=copies)


def headers(file: File, walk: Walk, end: int) -> Iterator[tuple[Position, Header]]:
    """Yield position and header of each frame from the position of `walk` to offset `end`."""
    at = walk.position
    while (header := next_header(file.pread, walk, end)) is not None:
        yield at, header
        at = walk.position


def gaps(path: str) -> list[Gap]:
    """Return the archived or missing ranges of a log, which a load with failOnDataLoss=false skips.

    Args:
        path: the log directory, or its URI.
    """
    with open_log(path) as view:
        order = view.log.manifest.order
        return list(gaps_between(view.log, START, order[-1].next_file() if order else START))
