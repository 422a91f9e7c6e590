"""Summary: how many messages a load has and where they begin and end, from headers alone."""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import NamedTuple

from rt.errors import CorruptLog, FrameError, Misuse
from rt.format.frame import Header
from rt.format.scan import next_header
from rt.format.walk import Walk
from rt.log.files.disk import File
from rt.position import Position
from rt.spark.options import ReadOptions
from rt.spark.plan import LogSnapshot, LogView, take_snapshots
from rt.spark.steps import message_frames


@dataclass(frozen=True, slots=True)
class Summary:
    """What is selected of a log; where there is no message, all but the count is None.

    Attributes:
        messages: how many there are; of merged messages, repeats are not counted.
        position_min: position of the first message.
        position_max: position of the last message.
        number_min: number of the first message in the merged stream; in a session, its sequence
            number.
        number_max: the same of the last message.
        merge_time_ns_min: when the first message was merged, ns since the epoch; None in a session.
        merge_time_ns_max: when the last message was merged.
    """

    messages: int = 0
    position_min: Position | None = None
    position_max: Position | None = None
    number_min: int | None = None
    number_max: int | None = None
    merge_time_ns_min: int | None = None
    merge_time_ns_max: int | None = None


class _Run(NamedTuple):
    """Messages with consecutive positions and numbers."""

    position: int
    number: int
    messages: int
    merge_time_ns: int | None


class _Stretch(NamedTuple):
    """Messages whose count is known before their frames are read.

    Attributes:
        file: they are in.
        walk: before their first frame.
        end: offset after their last frame.
        messages: how many there are.
    """

    file: Position
    walk: Walk
    end: int
    messages: int


def summarize(options: ReadOptions) -> Summary:
    """Count the messages of a load, and find the first and the last.

    Whole files cost a line of the manifest, other ranges of a merged log a header each; a session
    costs a header for each frame. No body of messages is read, so damage in one is not noticed.

    Raises:
        Misuse: the load is of several logs, or selects keys, which are in bodies.
        GapError: some of it was archived.
        CorruptLog: a header is damaged.
    """
    if options.selection.keys is not None:
        raise Misuse("a summary is made from headers, and keys are not in them")
    snapshots = take_snapshots(options)
    if len(snapshots) > 1:
        raise Misuse(f"a summary is of one log, and the load names {len(snapshots)}")
    for snapshot in snapshots:
        with closing(LogView(snapshot.path)) as view:
            view.refresh()
            return _Summing(view, snapshot, options).summary()
    return Summary()


class _Summing:
    """Adds up one log."""

    def __init__(self, view: LogView, snapshot: LogSnapshot, options: ReadOptions) -> None:
        self._view = view
        self._snapshot = snapshot
        self._selection = options.selection
        self._selects = self._selection.sessions is not None

    def summary(self) -> Summary:
        """Add up the stretches; only the first and the last are read frame by frame."""
        messages, first, last = 0, None, None
        for stretch in self._stretches():
            if stretch.messages:
                messages += stretch.messages
                first = first or stretch
                last = stretch
        if first is None or last is None:
            return Summary()
        begin, end = next(self._runs(first)), self._last_run(last)
        return Summary(
            messages, Position(begin.position), Position(end.position + end.messages - 1),
            begin.number, end.number + end.messages - 1, begin.merge_time_ns, end.merge_time_ns,
        )  # fmt: skip

    def _stretches(self) -> Iterator[_Stretch]:
        ends = dict(self._view.files())  # the snapshot's last one may be inside a frame
        for file, cut in self._snapshot.files:
            end = ends.get(file, cut)
            line = self._view.log.manifest.rolled.get(file)
            is_whole = self._snapshot.start <= file and file + end <= self._snapshot.stop
            merged = self._view.log.merged
            if line is not None and is_whole and merged and not self._selects:
                walk = Walk(file, merged=True)
                yield _Stretch(file, walk, end, line.next - line.first)
            elif merged:
                yield from self._ranges(file, end)
            else:
                yield self._counted(_Stretch(file, self._walk(file), end, 0))

    def _ranges(self, file: Position, end: int) -> Iterator[_Stretch]:
        walk = self._walk(file)
        opened = self._view.log.open_file(file)
        try:
            while walk.position < self._snapshot.stop and self._next(opened, file, walk, end):
                found = walk.range
                if found is None or not self._selection.has_session(found.session):
                    walk.skip_range()
                    continue
                stop = min(end, walk.position.offset + walk.left)
                stretch = _Stretch(file, walk.copy(), stop, found.messages)
                yield stretch if self._holds(stretch) else self._counted(stretch)
                walk.skip_range()
        finally:
            opened.close()

    def _walk(self, file: Position) -> Walk:
        offset = max(0, self._snapshot.start - file)
        opened = self._view.log.open_file(file)
        try:
            return self._view.walk_to(opened, file, lambda entry: entry.offset > offset)
        finally:
            opened.close()

    def _last_run(self, stretch: _Stretch) -> _Run:
        opened = self._view.log.open_file(stretch.file)
        try:
            near = self._view.walk_to(
                opened, stretch.file, lambda entry: entry.offset >= stretch.end
            )
        finally:
            opened.close()
        if near.position > stretch.walk.position:
            found = list(self._runs(stretch._replace(walk=near)))
            if found:  # else the last range has repeats only
                return found[-1]
        return list(self._runs(stretch))[-1]

    def _holds(self, stretch: _Stretch) -> bool:
        """Whether all of it is selected."""
        begin, end = stretch.walk.position, stretch.walk.position + stretch.walk.left
        return (
            self._snapshot.start <= begin
            and end <= stretch.file + stretch.end
            and end <= self._snapshot.stop
        )

    def _counted(self, stretch: _Stretch) -> _Stretch:
        return stretch._replace(messages=sum(run.messages for run in self._runs(stretch)))

    def _runs(self, stretch: _Stretch) -> Iterator[_Run]:
        """The selected messages of a stretch, frame by frame."""
        walk = stretch.walk.copy()
        start, stop = self._snapshot.start, self._snapshot.stop
        with closing(self._view.log.open_file(stretch.file)) as opened:
            try:
                for step, _ in message_frames(self._view, opened, walk, stretch.end):
                    at = step.position
                    first, last = max(step.first, start - at), min(step.messages, stop - at)
                    if first < last:
                        number = step.number + first - step.first
                        time_ns = step.time_ns if self._view.log.merged else None
                        yield _Run(at + first, number, last - first, time_ns)
                    if at >= stop:
                        return
            except FrameError as error:
                raise self._damaged(stretch.file, walk, error) from None

    def _next(self, opened: File, file: Position, walk: Walk, end: int) -> Header | None:
        try:
            return next_header(opened.pread, walk, end)
        except FrameError as error:
            raise self._damaged(file, walk, error) from None

    def _damaged(self, file: Position, walk: Walk, error: FrameError) -> CorruptLog:
        return CorruptLog(self._view.log.file_path(file), walk.position, str(error))
