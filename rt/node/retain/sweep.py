"""Sweep: frees the space of archived files on one node."""

import logging
import os
import time
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping
from typing import Final

from rt.format.index import SUFFIX
from rt.format.manifest import Archived
from rt.log.files.archived import MERGED, empty_files
from rt.log.files.disk import Disk
from rt.log.write.appender import Appender
from rt.node.ingest.inboxes import Inboxes
from rt.position import START, Position

_log: Final = logging.getLogger("rt.archiver")


class Sweep:
    """Sweep: frees the space of archived files of the merged log and of sessions' copies.

    Rolled files of copies are archived once they are merged. Files emptied long ago are removed. A
    sweep remembers its progress, so a round with nothing to do costs next to nothing.

    Threads: one thread at a time calls the methods. Any thread may read `emptied_to`, which only
    grows, and set `is_stopping`, which ends a round after the current file.
    """

    def __init__(
        self,
        disk: Disk,
        inputs: Inboxes,
        *,
        fold_s: float,
        now_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        """Prepare.

        Args:
            disk: the disk with the logs.
            inputs: the copies of sessions.
            fold_s: seconds for which an emptied file is kept before it is removed; 0 keeps it.
            now_ns: returns the time for the manifest's lines, ns since the epoch.
        """
        self.emptied_to = START
        self.is_stopping = False
        self._disk = disk
        self._inputs = inputs
        self._fold_s = fold_s
        self._now_ns = now_ns
        self._folded_to = START

    def sweep_merged(self, merged: Appender, snapshot_end: Position) -> None:
        """Empty the archived files of the merged log, and remove those emptied long ago.

        Args:
            merged: the merged log.
            snapshot_end: the log's end in this node's last snapshot; only files before it are
                emptied.
        """
        self._empty(merged, snapshot_end)
        self._fold(merged)

    def sweep_inputs(self, merged_to: Mapping[str, Position], index: int) -> None:
        """Archive the rolled files of sessions' copies, up to each session's merged end.

        Args:
            merged_to: merged ends by session, as of an instruction.
            index: that instruction; `merged_to` does not apply to copies begun after it.
        """
        for each in self._inputs.every():
            if not each.appender.manifest.order or self.is_stopping:
                continue  # most sessions have a single file, not rolled
            target = merged_to.get(each.session, START)
            # a file may end after all of it was merged, and the session may not grow again
            found = target, len(each.appender.manifest.order)
            if target and found != each.swept and self._inputs.begun_after(each.session) <= index:
                if not each.swept[0]:
                    each.appender.finish_archiving()  # what an earlier process left
                self._archive_input(each.appender, target, each.swept[0])
                each.swept = found

    def _empty(self, merged: Appender, end: Position) -> None:
        known = merged.manifest
        for file in known.order[bisect_left(known.order, self.emptied_to) :]:
            if file not in known.archived or file + known.rolled[file].end > end:
                break
            if self.is_stopping:
                break
            if empty_files(self._disk, merged.directory, [file]):
                _log.info("%s is archived (%s)", file.file_name, known.archived[file].reason)
            self.emptied_to = file.next_file()

    def _fold(self, merged: Appender) -> None:
        """Remove files that were emptied long ago; the manifest keeps their lines."""
        if not self._fold_s:
            return
        known, before_ns = merged.manifest, self._now_ns() - int(self._fold_s * 1e9)
        for file in known.order[bisect_left(known.order, self._folded_to) :]:
            line = known.archived.get(file)
            if line is None or line.at_ns > before_ns or file >= self.emptied_to:
                break
            if self.is_stopping:
                break
            fold_file(os.path.join(merged.directory, file.file_name))
            self._folded_to = file.next_file()

    def _archive_input(self, log: Appender, merged_to: Position, swept: Position) -> None:
        known, at_ns = log.manifest, self._now_ns()
        files = known.order[: bisect_right(known.order, merged_to)]
        first = bisect_left(files, swept.file)  # earlier ones were archived then
        gone = [
            Archived(file, at_ns, MERGED)
            for file in files[first:]
            if file not in known.archived and file + known.rolled[file].end <= merged_to
        ]
        if gone:
            log.archive_all(gone)


def fold_file(path: str) -> None:
    """Remove an empty file and its empty index; one that is not empty is left alone."""
    for each in (path, path + SUFFIX):
        try:
            if os.stat(each).st_size == 0:
                os.unlink(each)
        except FileNotFoundError:
            continue
