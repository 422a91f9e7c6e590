"""InboxSyncer: makes durable what connections have appended to a node's inboxes."""

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from rt.errors import CorruptLog
from rt.limits import KIB
from rt.log.write.appender import Durable
from rt.node.ingest.inbox import NodeInbox
from rt.position import START
from sequencer.ledger.instruction import CARRIED_BYTES_MAX

# One journal commit of the file system serves all waiting syncs, so files are synced in parallel;
# more threads than this did not make 1,000 files faster.
_SYNC_THREADS: Final = 8  # with the one that syncs the batch
# Up to this much is synced by the connection that wrote it: for a lone message, waking the syncer
# and being woken costs as much as the sync. With more, the connection keeps receiving.
_SETTLE_BYTES: Final = 64 * KIB
# After a sync that took longer, all are left to the syncer for a second: a connection is served by
# the event loop, which all streams and nodes wait for.
_SLOW_S: Final = 0.01
_SLOW_HOLD_S: Final = 1.0
# Carried updates are synced later, many at once; those not carried within this time are synced.
_CARRIED_WITHIN_S: Final = 0.02
_CARRIED_SYNC_S: Final = 1.0
_PUT_OFF_MAX: Final = 32  # inboxes; each update checks them all


class PutOff:
    """PutOff: defers syncing small updates that instructions should carry."""

    def __init__(self, written: Mapping[str, NodeInbox]) -> None:
        """Wait for these inboxes' bytes to be merged."""
        self._last_s = time.monotonic() + _CARRIED_SYNC_S
        self._begin(written)

    def _begin(self, written: Mapping[str, NodeInbox]) -> None:
        self._due_s = time.monotonic() + _CARRIED_WITHIN_S
        self._ends = {name: inbox.appender.end for name, inbox in written.items()}

    def pause_s(self) -> float:
        """How long until the next check."""
        return max(0.0, self._due_s - time.monotonic())

    def is_over(self, written: Mapping[str, NodeInbox]) -> bool:
        """Whether some update was not carried in time, or all have waited long enough."""
        now_s = time.monotonic()
        if now_s < self._due_s:
            return False
        if now_s >= self._last_s:
            return True
        ends = self._ends
        late = [each for name, each in written.items() if each.merged < ends.get(name, START)]
        for inbox in late:
            inbox.passed_over_s = now_s
        if not late:
            self._begin(written)
        return bool(late)


class InboxSyncer:
    """Syncs inboxes in batches, one batch at a time. A failed sync ends it and is never retried.

    Threads:
        `_lock` guards `_dirty`, `_put_off`, `_syncing`, `_stopping`, `_has_failed` and `_quick_s`,
        and is not held during a sync or while `_synced` is called; `_changed` is its condition.
        Connections call `mark`, `settle` and `put_off`, one thread calls `run`, and any thread may
        call `forget` and `stop`. Whichever thread sets `_syncing` syncs the batch. After a failure
        `_syncing` remains set, so that nothing else is synced. Only that thread uses `_pool`;
        `close` is called once it has ended.
    """

    def __init__(self, synced: Callable[[NodeInbox, Durable], None]) -> None:
        """Prepare; `settle` and `run` sync.

        Args:
            synced: called with an inbox and its durable end, by the thread that synced it.
        """
        self._synced = synced
        self._dirty: dict[str, NodeInbox] = {}
        self._put_off: PutOff | None = None  # how long those wait
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._stopping = self._syncing = self._has_failed = False
        self._quick_s = float("-inf")  # until then the disk counts as slow
        self._pool = ThreadPoolExecutor(_SYNC_THREADS - 1, "sync")

    @property
    def scheduled(self) -> list[NodeInbox]:
        """The inboxes that the next batch will sync."""
        with self._lock:
            return list(self._dirty.values())

    def mark(self, inbox: NodeInbox) -> None:
        """Schedule an inbox for syncing: bytes were appended to it."""
        with self._lock:
            self._dirty[inbox.session] = inbox
            if inbox.unsynced > _SETTLE_BYTES:
                self._put_off = None
                self._changed.notify()

    def forget(self, session: str) -> None:
        """Unschedule a session whose copy is set aside."""
        with self._lock:
            self._dirty.pop(session, None)
            if not self._dirty:
                self._put_off = None

    def run(self, synced: Callable[[], None]) -> None:
        """Sync scheduled inboxes, until stopped. For a thread of its own.

        Args:
            synced: called after each batch, once every inbox of it has been reported.

        Raises:
            OSError: a sync failed. The node must stop: nothing may be acknowledged after it.
            CorruptLog: as `NodeInbox.sync`.
        """
        while True:
            with self._changed:
                while (pause_s := self.pause_s()) != 0:
                    self._changed.wait(pause_s)
                if self._has_failed or not self._dirty:
                    return
                batch = self._begin_sync()
            self._sync_and_end(batch)
            synced()

    def pause_s(self) -> float | None:
        """How long `run` has nothing to do; 0 if it has, None until something is scheduled."""
        with self._lock:
            if self._has_failed:
                return 0.0
            if self._syncing:
                return None
            waits = self._put_off is not None and not self._put_off.is_over(self._dirty)
            if self._stopping or (self._dirty and not waits):
                return 0.0
            return self._put_off.pause_s() if self._put_off is not None and self._dirty else None

    def settle(self) -> bool:
        """Sync a small update of one connection now, or leave it to `run`.

        Returns:
            Whether it was synced here.

        Raises:
            OSError, CorruptLog: as for `run`.
        """
        with self._lock:
            if not self._dirty:
                return False
            self._put_off = None
            [first, *others] = self._dirty.values()
            is_slow = self._quick_s > time.monotonic()
            if self._syncing or others or is_slow or first.unsynced > _SETTLE_BYTES:
                self._changed.notify()
                return False
            batch = self._begin_sync()
        self._sync_and_end(batch)
        return True

    def put_off(self) -> list[str] | None:
        """Defer syncing small updates that an instruction should carry.

        Returns:
            The sessions with small updates neither durable nor merged; None if only a sync helps.
        """
        with self._lock:
            little, waiting = 0, []
            for each in self._dirty.values():
                open_bytes = each.appender.end - max(each.durable, each.merged)
                # copies without a durable byte are not carried
                if each.durable and open_bytes <= CARRIED_BYTES_MAX and not each.is_passed_over:
                    little += 1
                    if open_bytes > 0:
                        waiting.append(each.session)
            if little == len(self._dirty) <= _PUT_OFF_MAX:
                if self._put_off is None and little:
                    self._put_off = PutOff(self._dirty)
                    self._changed.notify()
            elif little:
                self._put_off = None
                self._changed.notify()
            else:
                return None
            return waiting

    def stop(self) -> None:
        """Have `run` sync what is scheduled, then end."""
        with self._changed:
            self._stopping = True
            self._changed.notify()

    def close(self) -> None:
        """Release the threads."""
        self._pool.shutdown()

    def _begin_sync(self) -> list[NodeInbox]:
        """Take the scheduled inboxes as a batch; the caller holds the lock."""
        batch, self._dirty, self._put_off = list(self._dirty.values()), {}, None
        self._syncing = True
        return batch

    def _sync_and_end(self, batch: list[NodeInbox]) -> None:
        began_s = time.monotonic()
        try:
            self.sync(batch)
        except (OSError, CorruptLog):
            with self._changed:  # `_syncing` remains set: nothing is synced after a failure
                self._has_failed = True
                self._changed.notify()
            raise
        now_s = time.monotonic()
        with self._lock:
            self._syncing = False
            if now_s - began_s > _SLOW_S:
                self._quick_s = now_s + _SLOW_HOLD_S
            if self._dirty or self._stopping:
                self._changed.notify()

    def sync(self, batch: list[NodeInbox]) -> None:
        """Sync these inboxes and report each; one thread at a time. Errors as for `run`."""
        [inbox, *others] = batch
        ends = self._sync_together(batch) if others else [(inbox, inbox.sync())]
        for inbox, end in ends:
            if end is not None:
                inbox.durable = end
                self._synced(inbox, end)

    def _sync_together(self, batch: list[NodeInbox]) -> list[tuple[NodeInbox, Durable | None]]:
        """Sync several inboxes at once; return each with its durable end, in any order."""
        left, threads = deque(batch), min(len(batch), _SYNC_THREADS)
        shares = [self._pool.submit(_sync_left, left) for _ in range(threads - 1)]
        ends = _sync_left(left)
        for share in shares:
            ends += share.result()
        return ends


def _sync_left(left: deque[NodeInbox]) -> list[tuple[NodeInbox, Durable | None]]:
    """Sync inboxes from a queue that several threads share; return those synced here.

    Raises:
        OSError, CorruptLog: as `NodeInbox.sync`; the queue was emptied, to stop the other threads.
    """
    ends = list[tuple[NodeInbox, Durable | None]]()
    while left:
        try:
            inbox = left.popleft()  # atomic: each goes to one thread
        except IndexError:
            break  # another thread took the last one
        try:
            ends.append((inbox, inbox.sync()))
        except (OSError, CorruptLog):
            left.clear()
            raise
    return ends
