"""NodeSweeper: gives up the bytes that a node's lines say are given up, by a thread of its own."""

import logging
import os
import threading
import time
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Collection
from typing import Final, NamedTuple, Protocol

from rt.errors import DiskFailed
from rt.format.index import SUFFIX
from rt.format.manifest import Archived
from rt.log.appender import Appender
from rt.log.archived import empty_files, finish_archiving
from rt.log.disk import Disk
from rt.position import START, Position
from sequencer.ledger import decode_ledger

_log: Final = logging.getLogger("rt.archiver")
MERGED: Final = "merged"  # why an input was archived
_SAVED_MAX: Final = 8  # snapshots remembered; a majority is within one or two of ours
_RETRY_S: Final = 5.0


class Input(Protocol):
    """A session's copy on this node."""

    @property
    def session(self) -> str:
        """Its name."""

    @property
    def appender(self) -> Appender:
        """Its end."""


class Inputs(Protocol):
    """All of them."""

    def every(self) -> Collection[Input]:
        """Return all copies."""


class Saved(NamedTuple):
    """What is durable with one snapshot."""

    instruction: int
    end: Position  # of the merged log
    sessions: dict[str, Position]


class NodeSweeper:
    """Empties archived files of the merged log, archives merged inputs, folds what is old.

    The bytes of a merged file go only when a snapshot lies behind it: before that, a restart
    would repeat the instructions that wrote it, and compare.
    """

    def __init__(
        self,
        disk: Disk,
        inputs: Inputs,
        *,
        fold_s: float,
        now_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        """Prepare; nothing is swept before `start`.

        Args:
            disk: where.
            inputs: the copies of sessions.
            fold_s: how long after it was archived an empty file goes too; 0 is never.
            now_ns: the clock that lines are dated by.
        """
        self.emptied_to = START
        self._disk = disk
        self._inputs = inputs
        self._fold_s = fold_s
        self._now_ns = now_ns
        self._saved: deque[Saved] = deque(maxlen=_SAVED_MAX)
        # inputs, and up to where there is nothing to be done; one set aside is another, made anew
        self._swept: dict[str, tuple[Appender, Position]] = {}
        self._folded_to = START
        self._finished: set[str] = set()  # directories that the last life's work was finished in
        self._work: tuple[Appender, int] | None = None
        self._last: tuple[Appender, int] | None = None
        self._changed = threading.Condition()
        self._stopping = False
        self._thread: threading.Thread | None = None

    @property
    def snapshot_index(self) -> int:
        """All up to this instruction is durable here."""
        return self._saved[-1].instruction if self._saved else 0

    def lacks_snapshot(self, active: Position) -> bool:
        """Whether files before the active one wait for the next snapshot to be given up."""
        return (self._saved[-1].end if self._saved else START) < active

    def settled_end(self, settled_index: int) -> Position:
        """Up to where a majority has the merged log durably, and the state that it led to.

        What lies before it may be archived: with fewer, a lost disk could take the only state, and
        the others could neither make nor copy what led there.
        """
        ends = [saved.end for saved in self._saved if saved.instruction <= settled_index]
        return max(ends, default=START)

    def start(self, failed: Callable[[Exception], None]) -> None:
        """Begin to sweep; `failed` is to end the node, after a sync that failed."""
        self._thread = threading.Thread(target=self._run, args=(failed,), name="sweep", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End with the file that is being emptied."""
        with self._changed:
            self._stopping = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join()

    def saved(self, data: bytes) -> None:
        """A snapshot of this node was saved, or found at its start."""
        ledger = decode_ledger(data)
        self._saved.append(Saved(ledger.index, ledger.end, dict(ledger.sessions)))
        with self._changed:
            self._work = self._work or self._last
            self._changed.notify()

    def turn(self, merged: Appender, settled_index: int) -> None:
        """Look again, soon.

        Args:
            merged: the merged log.
            settled_index: up to which instruction a majority has all durably.
        """
        with self._changed:
            self._work = self._last = (merged, settled_index)
            self._changed.notify()

    def _run(self, failed: Callable[[Exception], None]) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._work or self._stopping)
                work, self._work = self._work, None
                if self._stopping or work is None:
                    return
            try:
                self._sweep(*work)
            except DiskFailed as error:
                failed(error)  # what a manifest holds is unknown until a restart
                return
            except OSError as error:
                _log.error("archived files are not emptied: %s; it is tried again", error)
                with self._changed:
                    self._changed.wait_for(lambda: self._stopping, _RETRY_S)

    def _sweep(self, merged: Appender, settled_index: int) -> None:
        self._finish(merged)
        self._empty(merged)
        self._fold(merged)
        settled = [saved for saved in list(self._saved) if saved.instruction <= settled_index]
        if settled:
            self._archive_inputs(settled[-1].sessions)

    def _finish(self, log: Appender) -> None:
        """Empty what the last life did not come to, once for each log."""
        if log.directory not in self._finished and not log.identity.merged:
            finish_archiving(self._disk, log.directory, log.manifest)
        self._finished.add(log.directory)

    def _empty(self, merged: Appender) -> None:
        known, end = merged.manifest, self._saved[-1].end if self._saved else START
        for file in known.order[bisect_left(known.order, self.emptied_to) :]:
            if file not in known.archived or file + known.rolled[file].end > end or self._stopping:
                break
            if empty_files(self._disk, merged.directory, [file]):
                _log.info("%s is archived (%s)", file.file_name, known.archived[file].reason)
            self.emptied_to = file.next_file()

    def _fold(self, merged: Appender) -> None:
        """Remove the empty files of long ago; their lines in the manifest tell of them."""
        if not self._fold_s:
            return
        known, before_ns = merged.manifest, self._now_ns() - int(self._fold_s * 1e9)
        for file in known.order[bisect_left(known.order, self._folded_to) :]:
            line = known.archived.get(file)
            if line is None or line.at_ns > before_ns or file >= self.emptied_to or self._stopping:
                break
            fold_file(os.path.join(merged.directory, file.file_name))
            self._folded_to = file.next_file()

    def _archive_inputs(self, merged_to: dict[str, Position]) -> None:
        for each in self._inputs.every():
            target = merged_to.get(each.session, START)
            log, swept_to = self._swept.get(each.session, (None, START))
            is_new = log is not each.appender or target > swept_to
            if target > START and is_new and not self._stopping:
                self._finish(each.appender)
                self._archive_input(each.appender, target)
                self._swept[each.session] = (each.appender, target)

    def _archive_input(self, log: Appender, merged_to: Position) -> None:
        known, at_ns = log.manifest, self._now_ns()
        files = known.order[: bisect_right(known.order, merged_to)]
        first = bisect_left(files, max(known.archived, default=START))
        gone = [
            Archived(file, at_ns, MERGED)
            for file in files[first:]
            if file not in known.archived and file + known.rolled[file].end <= merged_to
        ]
        if gone:
            log.archive_all(gone)


def fold_file(path: str) -> None:
    """Remove a file that is empty, and its index; one that is not is left alone."""
    for each in (path, path + SUFFIX):
        try:
            if os.stat(each).st_size == 0:
                os.unlink(each)
        except FileNotFoundError:
            continue
