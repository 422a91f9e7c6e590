"""NodeSweeper: frees the space of a node's archived files, by running a `Sweep` when needed."""

import logging
import time
from collections import deque
from collections.abc import Callable
from typing import Final

from rt.errors import DiskFailed
from rt.log.write.appender import Appender
from rt.net.loop.chore import Chore
from rt.net.loop.event_loop import EventLoop
from rt.node.retain.sweep import Sweep
from rt.position import START, Position
from sequencer.ledger.ledger import MergedEnds

_log: Final = logging.getLogger("rt.archiver")
_SAVED_MAX: Final = 8  # snapshots remembered; a majority lags by one or two
_RETRY_S: Final = 5.0


class NodeSweeper:
    """NodeSweeper: runs a `Sweep` after each turn of retention and each snapshot.

    A merged file is emptied only once a snapshot covers it. Before that, a restart would repeat the
    instructions that wrote the file, and compare their result with it.

    Threads: The thread that steps the duties calls `turn` and `saved`, and alone appends to
        `_saved`; a turn of the chore, in the loop's pool, takes a copy. The thread of the duties
        replaces `_last`, which a turn of the chore reads once. `_sweep` and `_retry_s` belong to
        those turns, except that any thread may read `_sweep.emptied_to`, and `stop` sets its
        `is_stopping`. `start` and `stop` are called by the threads that start and stop the node.
    """

    def __init__(self, sweep: Sweep) -> None:
        """Prepare; nothing is swept before `start`."""
        self._sweep = sweep
        self._saved: deque[MergedEnds] = deque(maxlen=_SAVED_MAX)
        self._last: tuple[Appender, int] | None = None  # the last arguments of `turn`
        self._chore: Chore | None = None
        self._retry_s = float("-inf")  # no earlier than this

    @property
    def emptied_to(self) -> Position:
        """The archived files of the merged log before this position are empty."""
        return self._sweep.emptied_to

    @property
    def snapshot_index(self) -> int:
        """The instruction up to which everything is durable here."""
        return self._saved[-1].instruction if self._saved else 0

    def lacks_snapshot(self, active: Position) -> bool:
        """Whether the files before the active one can be emptied only after a new snapshot."""
        return (self._saved[-1].end if self._saved else START) < active

    def settled_end(self, settled_index: int) -> Position:
        """Return the end up to which a majority has both merged log and state durably.

        Only files before it may be archived. Otherwise the loss of one disk could destroy the only
        state, which the other nodes could not rebuild without the archived files.
        """
        ends = [saved.end for saved in self._saved if saved.instruction <= settled_index]
        return max(ends, default=START)

    def durable_index(self, end: Position) -> int:
        """Return the last saved instruction whose output ends at or before `end`."""
        return max((saved.instruction for saved in self._saved if saved.end <= end), default=0)

    def start(self, loop: EventLoop, failed: Callable[[Exception], None]) -> None:
        """Begin to free the space of archived files.

        Args:
            loop: its pool does the work.
            failed: called if a sync has failed. It has to end the node, since what the disk holds
                is unknown until a restart.
        """
        self._chore = Chore(loop, self._run, failed)
        self._ask()

    def stop(self) -> None:
        """Empty no more files; wait for the one that is being emptied."""
        self._sweep.is_stopping = True
        if self._chore is not None:
            self._chore.stop()

    def saved(self, ends: MergedEnds) -> None:
        """Record the ends in a snapshot that this node saved, or found when it started."""
        self._saved.append(ends)
        self._ask()

    def turn(self, merged: Appender, settled_index: int) -> None:
        """Have a sweep run soon.

        Args:
            merged: the merged log.
            settled_index: the instruction up to which a majority has everything durably.
        """
        self._forget_inputs(settled_index)
        self._last = merged, settled_index
        self._ask()

    def _ask(self) -> None:
        if self._chore is not None and self._last is not None:
            self._chore.ask()

    def _forget_inputs(self, settled_index: int) -> None:
        """Forget the session ends of older snapshots, since the last settled one has later ends."""
        settled = [nth for nth, each in enumerate(self._saved) if each.instruction <= settled_index]
        for nth in settled[:-1]:
            self._saved[nth] = self._saved[nth]._replace(sessions={})

    def sweep(self, merged: Appender, settled_index: int) -> None:
        """Sweep once, with the arguments of `turn`.

        Raises:
            DiskFailed: a sync failed.
            OSError: another operation failed, and may be tried again.
        """
        saved = list(self._saved)
        self._sweep.sweep_merged(merged, saved[-1].end if saved else START)
        settled = [each for each in saved if each.instruction <= settled_index]
        if settled:
            self._sweep.sweep_inputs(settled[-1].sessions, settled[-1].instruction)

    def _run(self) -> float | None:
        pause_s = self._retry_s - time.monotonic()
        if pause_s > 0:
            return pause_s
        if self._last is not None and not self._sweep.is_stopping:
            try:
                self.sweep(*self._last)
            except DiskFailed:
                raise  # the manifest's content is unknown until a restart
            except OSError as error:
                _log.error("archived files are not emptied: %s; it is tried again", error)
                self._retry_s = time.monotonic() + _RETRY_S
                return _RETRY_S
        return None
