"""InboxSyncer: makes durable what connections have appended to a node's inboxes."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from rt.limits import KIB
from rt.log.appender import Durable
from rt.node.inbox import NodeInbox

# One journal commit of the file system serves all syncs that wait for it, so many files are
# synced side by side; more threads than this did not make 1,000 files faster.
_SYNC_THREADS: Final = 8
# Up to this much is synced by the connection that wrote it: for a lone message, waking the syncer
# and being woken by it costs as much as the sync. With more, a connection receives meanwhile.
_SETTLE_BYTES: Final = 64 * KIB


class InboxSyncer:
    """Syncs inboxes in batches, one batch at a time. A failed sync ends it and is never retried.

    Threads:
        `_lock` guards `_dirty`, `_syncing`, `_stopping` and `_has_failed`, and is not held
        during a sync or while `_synced` is called; `_changed` is the condition over it.
        Connections call `mark` and `settle`, one thread calls `run`, and any thread may call
        `forget` and `stop`. Whichever thread sets `_syncing` syncs the batch. After a failure
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
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._stopping = self._syncing = self._has_failed = False
        self._pool = ThreadPoolExecutor(_SYNC_THREADS, "sync")

    def mark(self, inbox: NodeInbox) -> None:
        """Have an inbox synced: bytes were appended to it."""
        with self._lock:
            self._dirty[inbox.session] = inbox
            if inbox.unsynced > _SETTLE_BYTES:
                self._changed.notify()

    def forget(self, session: str) -> None:
        """Drop a session whose copy is set aside."""
        with self._lock:
            self._dirty.pop(session, None)

    def run(self, synced: Callable[[], None]) -> None:
        """Sync what is marked, until stopped. For a thread of its own.

        Args:
            synced: called after each batch, once every inbox of it has been reported.

        Raises:
            OSError: a sync failed. The node must end: nothing may be acknowledged after it.
        """
        while True:
            with self._changed:
                self._changed.wait_for(self._is_to_go_on)
                if self._has_failed or not self._dirty:
                    return
                batch = self._begin_sync()
            self._sync_and_end(batch)
            synced()

    def settle(self) -> bool:
        """Sync a little that one connection has written, or leave it to `run`.

        Returns:
            Whether it was synced here.

        Raises:
            OSError: as for `run`.
        """
        with self._lock:
            if not self._dirty:
                return False
            [first, *others] = self._dirty.values()
            if self._syncing or others or first.unsynced > _SETTLE_BYTES:
                self._changed.notify()
                return False
            batch = self._begin_sync()
        self._sync_and_end(batch)
        return True

    def stop(self) -> None:
        """Let `run` sync what is marked, and end."""
        with self._changed:
            self._stopping = True
            self._changed.notify()

    def close(self) -> None:
        """Release the threads."""
        self._pool.shutdown()

    def _is_to_go_on(self) -> bool:
        """Whether `run` has something to sync, or has to end."""
        return self._has_failed or (not self._syncing and bool(self._dirty or self._stopping))

    def _begin_sync(self) -> list[NodeInbox]:
        """Take the marked inboxes as a batch; the caller holds the lock."""
        batch, self._dirty = list(self._dirty.values()), {}
        self._syncing = True
        return batch

    def _sync_and_end(self, batch: list[NodeInbox]) -> None:
        try:
            self._sync(batch)
        except OSError:
            with self._changed:  # `_syncing` remains set: nothing is synced after a failure
                self._has_failed = True
                self._changed.notify()
            raise
        with self._lock:
            self._syncing = False
            if self._dirty or self._stopping:
                self._changed.notify()

    def _sync(self, batch: list[NodeInbox]) -> None:
        if len(batch) == 1:
            ends = [batch[0].appender.sync()]
        else:
            ends = list(self._pool.map(lambda inbox: inbox.appender.sync(), batch))
        for inbox, end in zip(batch, ends, strict=True):
            inbox.durable = end
            self._synced(inbox, end)
