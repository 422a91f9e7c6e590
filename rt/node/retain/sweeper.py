"""NodeSweeper: the thread that frees the space of a node's archived files."""

import logging
import threading
from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple

from rt.about import carried
from rt.errors import DiskFailed
from rt.log.write.appender import Appender
from rt.node.retain.sweep import Sweep
from rt.position import START, Position
from sequencer.ledger.ledger import decode_ledger

_log: Final = logging.getLogger("rt.archiver")
_SAVED_MAX: Final = 8  # snapshots remembered; a majority lags by one or two
_RETRY_S: Final = 5.0


class Saved(NamedTuple):
    """Saved: what one snapshot made durable."""

    instruction: int
    end: Position  # of the merged log
    sessions: dict[str, Position]


class NodeSweeper:
    """NodeSweeper: runs a `Sweep` after each turn of retention and each snapshot.

    A merged file is emptied only once a snapshot covers it: before that, a restart would repeat the
    instructions that wrote it, and compare the result with the file.

    Threads:
        `_changed` guards `_work` and `_last`, through which the sequencing thread hands over work.
        That thread alone appends to `_saved`, so it reads it without a lock; the sweeping thread
        takes a copy. `_sweep` belongs to the sweeping thread, except that any thread may read its
        `emptied_to`, and `stop` sets its `is_stopping` under `_changed`. `start` and `stop`, which
        use `_thread`, are called by the threads that start and stop the node.
    """

    def __init__(self, sweep: Sweep) -> None:
        """Prepare; nothing is swept before `start`."""
        self._sweep = sweep
        self._saved: deque[Saved] = deque(maxlen=_SAVED_MAX)
        self._work: tuple[Appender, int] | None = None
        self._last: tuple[Appender, int] | None = None
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    @property
    def emptied_to(self) -> Position:
        """The archived files of the merged log before this position are empty."""
        return self._sweep.emptied_to

    @property
    def snapshot_index(self) -> int:
        """The instruction up to which everything is durable here."""
        return self._saved[-1].instruction if self._saved else 0

    def lacks_snapshot(self, active: Position) -> bool:
        """Whether a new snapshot is needed before files before the active one can be emptied."""
        return (self._saved[-1].end if self._saved else START) < active

    def settled_end(self, settled_index: int) -> Position:
        """Return the end up to which a majority has both merged log and state durably.

        Only files before it may be archived. With fewer copies, a lost disk could take the only
        state, and the other nodes could neither rebuild nor copy what led to it.
        """
        ends = [saved.end for saved in self._saved if saved.instruction <= settled_index]
        return max(ends, default=START)

    def durable_index(self, end: Position) -> int:
        """Return the last saved instruction whose output ends by `end`."""
        return max((saved.instruction for saved in self._saved if saved.end <= end), default=0)

    def start(self, failed: Callable[[Exception], None]) -> None:
        """Start the thread; `failed` must end the node, since a sync has failed."""
        self._thread = threading.Thread(
            target=carried(self._run), args=(failed,), name="sweep", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        """End the thread after the file that it is emptying."""
        with self._changed:
            self._sweep.is_stopping = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join()

    def saved(self, data: bytes) -> None:
        """Record a snapshot that this node saved, or found when it started."""
        ledger = decode_ledger(data)
        self._saved.append(Saved(ledger.index, ledger.end, dict(ledger.sessions)))
        with self._changed:
            self._work = self._work or self._last
            self._changed.notify()

    def turn(self, merged: Appender, settled_index: int) -> None:
        """Have the thread sweep soon.

        Args:
            merged: the merged log.
            settled_index: the instruction up to which a majority has everything durably.
        """
        self._forget_inputs(settled_index)
        with self._changed:
            self._work = self._last = (merged, settled_index)
            self._changed.notify()

    def _forget_inputs(self, settled_index: int) -> None:
        """Drop older snapshots' session ends: the last settled snapshot has later ones."""
        settled = [nth for nth, each in enumerate(self._saved) if each.instruction <= settled_index]
        for nth in settled[:-1]:
            self._saved[nth] = self._saved[nth]._replace(sessions={})

    def sweep(self, merged: Appender, settled_index: int) -> None:
        """Sweep once, with the arguments of `turn`; the thread calls it.

        Raises:
            DiskFailed: a sync failed.
            OSError: another operation failed, and may be tried again.
        """
        saved = list(self._saved)
        self._sweep.sweep_merged(merged, saved[-1].end if saved else START)
        settled = [each for each in saved if each.instruction <= settled_index]
        if settled:
            self._sweep.sweep_inputs(settled[-1].sessions, settled[-1].instruction)

    def _run(self, failed: Callable[[Exception], None]) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._work or self._sweep.is_stopping)
                work, self._work = self._work, None
                if self._sweep.is_stopping or work is None:
                    return
            try:
                self.sweep(*work)
            except DiskFailed as error:
                failed(error)  # the manifest's content is unknown until a restart
                return
            except OSError as error:
                _log.error("archived files are not emptied: %s; it is tried again", error)
                with self._changed:
                    self._changed.wait_for(lambda: self._sweep.is_stopping, _RETRY_S)
