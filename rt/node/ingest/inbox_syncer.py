"""InboxSyncer: syncs the bytes that connections have appended to a node's inboxes."""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from functools import partial
from typing import Final, NamedTuple

from rt.errors import CorruptLog
from rt.latencies import RunningMean
from rt.limits import KIB
from rt.log.write.appender import Durable
from rt.net.loop.event_loop import EventLoop
from rt.node.ingest.inbox import NOTHING_WAITS, NodeInbox
from sequencer.ledger.instruction import CARRIED_BYTES_MAX

# One journal commit of the file system serves all waiting syncs, so files are synced in parallel;
# more threads than this did not make 1,000 files faster.
_SYNC_THREADS: Final = 8  # with the one that syncs the batch
# A connection that wrote at most this much syncs it itself: for a lone message, waking the syncer
# and being woken costs as much as the sync. Larger amounts are left to a thread, and the connection
# keeps receiving.
_SETTLE_BYTES: Final = 64 * KIB
# While syncs take longer than this on average, in seconds, connections leave them to a thread: the
# event loop serves the connections, and a slow sync in it would delay all streams and nodes.
_SLOW_S: Final = 0.01
# Small updates that instructions carry are synced later, many at once: after the third of these
# times. If nothing of a session is merged within the first, its updates are synced then, since the
# leader may not receive them. If the leader carried the session's last updates, it is only slow, so
# the second applies instead of the first.
_CARRIED_WITHIN_S: Final = 0.02
_CARRIED_AGAIN_WITHIN_S: Final = 0.2
_CARRIED_SYNC_S: Final = 1.0
_PUT_OFF_MAX: Final = 32  # inboxes; each update checks them all


class PutOff:
    """PutOff: how long small updates stay unsynced so that an instruction can carry them."""

    def __init__(self) -> None:
        """Begin to wait for the bytes of inboxes to be merged."""
        self._began_s = time.monotonic()
        self._last_s = self._began_s + _CARRIED_SYNC_S
        self.due_s = self._began_s + _CARRIED_WITHIN_S  # when to look next

    def pause_s(self) -> float:
        """Seconds until the next check."""
        return max(0.0, self.due_s - time.monotonic())

    def is_over(self, written: Iterable[NodeInbox]) -> bool:
        """Whether to sync now: a session's updates were not merged in time, or 1 s has passed."""
        now_s = time.monotonic()
        if now_s < self.due_s:
            return False
        if now_s >= self._last_s:
            return True
        self.due_s, has_late = self._last_s, False
        for inbox in written:
            if inbox.merged >= inbox.appender.end:
                continue
            since_s = max(self._began_s, inbox.waits_since_s)
            if since_s == NOTHING_WAITS:  # bytes came while others were merged
                since_s = inbox.waits_since_s = now_s
            late_s = since_s + (_CARRIED_AGAIN_WITHIN_S if inbox.is_carried else _CARRIED_WITHIN_S)
            if late_s <= now_s:
                inbox.passed_over(now_s)
                has_late = True
            self.due_s = min(self.due_s, late_s)
        return has_late


class Started(NamedTuple):
    """Started: what a syncer uses from `start` on.

    Attributes:
        loop: the event loop that calls the syncer when a sync is due.
        work: runs a thread's work; an error in it ends the node.
        fail: ends the node with an error.
        synced: called after each batch, once all its inboxes were reported.
    """

    loop: EventLoop
    work: Callable[[Callable[[], None]], None]
    fail: Callable[[Exception], None]
    synced: Callable[[], None]


class InboxSyncer:
    """Syncs inboxes in batches, one batch at a time. A failed sync ends it and is never retried.

    Threads:
        `_changed` guards `_dirty`, `_put_off`, `_syncing`, `_stopping`, `_has_failed` and `_taken`.
        It is not held during a sync or a call of `_synced`, and is notified when a sync ends.
        Connections, in the loop or in its pool, call `mark`, `sync_if_small` and `put_off`; any
        thread may call `forget` and `stop`; the owner calls `start`, `finish` and `close`. The loop
        calls `ready`, which has a thread of `pool` sync a batch. Whichever thread sets `_syncing`
        syncs the batch. After a failure `_syncing` remains set, so that nothing else is synced.
    """

    is_urgent = False

    def __init__(self, synced: Callable[[NodeInbox, Durable], None]) -> None:
        """Prepare; before `start`, only `sync_if_small` syncs.

        Args:
            synced: called with an inbox and its durable end, by the thread that synced it.
        """
        self._synced = synced
        self._dirty: dict[str, NodeInbox] = {}
        self._put_off: PutOff | None = None  # how long their sync is delayed
        self._changed = threading.Condition()
        self._stopping = self._syncing = self._has_failed = False
        self._taken = RunningMean()  # by a batch
        # three more, so that a step, a sync of the merged log and a scrub need not wait for one
        self.pool = ThreadPoolExecutor(_SYNC_THREADS + 3, "disk")
        self._started: Started | None = None
        self._about = copy_context()

    def start(self, started: Started) -> None:
        """Have the loop sync scheduled inboxes when they are due."""
        self._started, self._about = started, copy_context()  # its log lines name the stream
        self._rouse()

    @property
    def scheduled(self) -> list[NodeInbox]:
        """The inboxes that the next batch will sync."""
        with self._changed:
            return list(self._dirty.values())

    def mark(self, inbox: NodeInbox) -> None:
        """Schedule an inbox for syncing: bytes were appended to it."""
        with self._changed:
            self._dirty[inbox.session] = inbox
            if inbox.appender.end - inbox.durable > _SETTLE_BYTES:
                self._put_off = None
                self._rouse()

    def forget(self, session: str) -> None:
        """Unschedule a session whose copy is set aside."""
        with self._changed:
            self._dirty.pop(session, None)
            if not self._dirty:
                self._put_off = None

    def ready(self) -> None:
        """Have a thread sync the scheduled inboxes if it is time; otherwise look again later.

        A sync that fails ends the node: nothing may be acknowledged after it.
        """
        started = self._started
        if started is None:
            return
        batch, pause_s = self.due()
        if batch:
            sync = partial(self._sync_and_tell, batch, started.synced)
            # a copy, since the last batch may still be reporting in its own context
            under_way = self.pool.submit(self._about.copy().run, started.work, sync)
            under_way.add_done_callback(self._demand_done)
        elif pause_s is not None:
            started.loop.deadlines.set(self, started.loop.clock() + pause_s)

    def failed(self, error: Exception) -> bool:
        """End the node, because no thread could be started for a sync.

        Return True: the process goes on.
        """
        if self._started is not None:
            self._started.fail(error)
        return True

    def _demand_done(self, batch: Future[None]) -> None:
        if isinstance(error := batch.exception(), Exception):
            with self._changed:
                self._has_failed = True  # nothing is synced any more, and nothing waited for
                self._changed.notify_all()
            self.failed(error)

    def due(self) -> tuple[list[NodeInbox], float | None]:
        """Take the inboxes to sync now.

        Returns:
            The inboxes, which the caller must sync, and the seconds until the next call; None if no
            call is needed.
        """
        with self._changed:
            if self._has_failed or self._syncing or not self._dirty:
                return [], None
            put_off = None if self._stopping else self._put_off
            if put_off is not None and not put_off.is_over(self._dirty.values()):
                return [], put_off.pause_s()
            return self._begin_sync(), None

    def sync_if_small(self) -> bool:
        """Sync a small update of one connection now, or leave it to the loop.

        Returns:
            Whether it was synced here.

        Raises:
            OSError: the sync failed. The node must stop: nothing may be acknowledged after it.
            CorruptLog: as for `NodeInbox.sync`.
        """
        with self._changed:
            if not self._dirty:
                return False
            self._put_off = None
            [first, *others] = self._dirty.values()
            is_slow = self._taken.mean_s > _SLOW_S
            if self._syncing or others or is_slow or first.unsynced > _SETTLE_BYTES:
                self._rouse()
                return False
            batch = self._begin_sync()
        self._sync_and_end(batch)
        return True

    def put_off(self) -> list[str] | None:
        """Defer syncing small updates that an instruction should carry.

        Returns:
            The sessions with small updates that are neither durable nor merged; None if all must be
            synced.
        """
        with self._changed:
            little, waiting, look_s = 0, [], _CARRIED_AGAIN_WITHIN_S
            for each in self._dirty.values():
                open_bytes = each.appender.end - max(each.durable, each.merged)
                # copies without a durable byte are not carried
                is_little = each.durable and open_bytes <= CARRIED_BYTES_MAX
                if is_little and (each.is_carried or not each.is_passed_over):
                    little += 1
                    if open_bytes > 0:
                        waiting.append(each.session)
                        if not each.is_carried:
                            look_s = _CARRIED_WITHIN_S
            if little == len(self._dirty) <= _PUT_OFF_MAX:
                put_off = self._put_off
                if put_off is None and little:
                    self._put_off = PutOff()
                    self._rouse()
                elif waiting and put_off is not None:
                    at_s = time.monotonic() + look_s
                    if at_s < put_off.due_s:
                        put_off.due_s = at_s
                        self._rouse()
            elif little:
                self._put_off = None
                self._rouse()
            else:
                return None
            return waiting

    def stop(self) -> None:
        """Have all scheduled inboxes synced without further delay."""
        with self._changed:
            self._stopping = True
            self._rouse()

    def finish(self) -> None:
        """Sync all scheduled inboxes in this thread; the loop syncs no more.

        Raises:
            OSError, CorruptLog: as for `sync_if_small`.
        """
        self.stop()
        if (started := self._started) is not None:
            started.loop.call(lambda: started.loop.forget(self))
            self._started = None
        while True:
            with self._changed:
                self._changed.wait_for(lambda: not self._syncing or self._has_failed)
            batch, _ = self.due()
            if not batch:
                return
            self._sync_and_end(batch)

    def close(self) -> None:
        """Release the threads."""
        self.pool.shutdown()

    def _rouse(self) -> None:
        if self._started is not None:
            self._started.loop.rouse(self)

    def _begin_sync(self) -> list[NodeInbox]:
        """Take the scheduled inboxes as a batch; the caller holds the lock."""
        batch, self._dirty, self._put_off = list(self._dirty.values()), {}, None
        self._syncing = True
        return batch

    def _sync_and_tell(self, batch: list[NodeInbox], synced: Callable[[], None]) -> None:
        self._sync_and_end(batch)
        synced()

    def _sync_and_end(self, batch: list[NodeInbox]) -> None:
        began_s = time.monotonic()
        try:
            self.sync(batch)
        except (OSError, CorruptLog):
            with self._changed:  # `_syncing` remains set: nothing is synced after a failure
                self._has_failed = True
                self._changed.notify_all()
            raise
        taken_s = time.monotonic() - began_s
        with self._changed:
            self._syncing = False
            self._changed.notify_all()
            self._taken.observe(taken_s)
            if self._dirty:
                self._rouse()

    def sync(self, batch: list[NodeInbox]) -> None:
        """Sync these inboxes, one batch at a time, and report each; errors as `sync_if_small`."""
        [inbox, *others] = batch
        ends = self._sync_together(batch) if others else [(inbox, inbox.sync())]
        for inbox, end in ends:
            if end is not None:
                inbox.durable = end
                self._synced(inbox, end)

    def _sync_together(self, batch: list[NodeInbox]) -> list[tuple[NodeInbox, Durable | None]]:
        """Sync several inboxes in parallel; return each with its durable end, in any order."""
        left, threads = deque(batch), min(len(batch), _SYNC_THREADS)
        shares = [self.pool.submit(_sync_left, left) for _ in range(threads - 1)]
        ends = _sync_left(left)
        for share in shares:
            if not share.cancel():  # one that no thread has begun finds nothing left
                ends += share.result()
        return ends


def _sync_left(left: deque[NodeInbox]) -> list[tuple[NodeInbox, Durable | None]]:
    """Sync inboxes from a queue that several threads share; return those synced here.

    Raises:
        OSError, CorruptLog: as `NodeInbox.sync`; the queue is then empty, so the other threads
            stop.
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
