"""Receipts: futures of published messages, resolved as the session's confirmations grow."""

import logging
import threading
from collections import deque
from concurrent.futures import Future
from typing import Final

from rt.errors import RtError, Stopped, WriterFailed, spoken
from rt.log.confirmations import Confirmations, ConfirmationsFile, Level
from rt.position import Position
from rt.publisher import Confirmed, Publisher

_log: Final = logging.getLogger("rt.client")
# Between two looks at the confirmations: short at first, since most waits are; then longer.
_POLL_FIRST_S: Final = 0.0002
_POLL_LAST_S: Final = 0.005
_POLL_GROWTH: Final = 1.3
_FULL_DISK_S: Final = 0.1
_OF_NODES: Final = (Level.RECEIVED, Level.REPLICATED, Level.MERGED)

Receipt = Future[Confirmed]


class Receipts:
    """Resolves futures in the order of publishing, many at a time.

    One write, one sync and one look at the confirmations serve every message that was published
    meanwhile, so a thousand threads that wait cost little more than one.

    Threads:
        `_new` and `_closing` are guarded by `_news`, which any thread may take through `future`,
        `wait_idle` and `close`. `_waiting` belongs to the thread of `_run` alone. A future is
        completed by that thread, outside the lock, so a callback may publish again.
    """

    def __init__(self, publisher: Publisher, confirmations: ConfirmationsFile) -> None:
        self._publisher = publisher
        self._confirmations = confirmations
        self._news = threading.Condition()
        self._new: list[tuple[Level, Receipt]] = []
        self._closing = False
        self._is_idle = True
        self._waiting: dict[Level, deque[tuple[Position, Receipt]]] = {
            level: deque() for level in _OF_NODES
        }
        self._thread = threading.Thread(
            target=self._run, name=f"receipts {publisher.name}", daemon=True
        )
        self._thread.start()

    def future(self, level: Level) -> Receipt:
        """Return a future that resolves once everything published so far has reached `level`.

        Raises:
            Stopped: the publisher is closed.
        """
        receipt: Receipt = Future()
        with self._news:
            if self._closing:
                raise Stopped(f"publisher {self._publisher.name!r} is closed")
            self._new.append((level, receipt))
            self._is_idle = False
            self._news.notify_all()
        return receipt

    def wait_idle(self, timeout_s: float) -> bool:
        """Wait until no future is open; False if the time ran out first."""
        with self._news:
            return self._news.wait_for(lambda: self._is_idle, timeout_s)

    def close(self) -> None:
        """Fail every future that is still open with `Stopped`, and end."""
        with self._news:
            self._closing = True
            self._news.notify_all()
        if self._thread is not threading.current_thread():
            self._thread.join()

    def _run(self) -> None:
        pause_s = _POLL_FIRST_S
        while (new := self._next(pause_s)) is not None:
            try:
                self._write(new)
                progressed = self._resolve(self._confirmations.read())
            except (WriterFailed, RtError) as error:
                self._fail(error, new)
                continue
            except OSError as error:
                pause_s = self._put_back(new, error)
                continue
            pause_s = min(_POLL_LAST_S, pause_s * _POLL_GROWTH)
            if new or progressed:
                pause_s = _POLL_FIRST_S
        self._fail(Stopped(f"publisher {self._publisher.name!r} was closed before that"), [])

    def _next(self, pause_s: float) -> list[tuple[Level, Receipt]] | None:
        """Wait for futures, or for the next look; None once closed."""
        with self._news:
            if not self._new and not self._closing:
                self._is_idle = not any(self._waiting.values())
                if self._is_idle:
                    self._news.notify_all()
                self._news.wait(None if self._is_idle else pause_s)
            if self._closing:
                return None
            new, self._new = self._new, []
            return new

    def _write(self, new: list[tuple[Level, Receipt]]) -> None:
        """Write new messages to the disk, and resolve the futures that need no node."""
        if not new:
            return
        highest = max(level for level, _ in new)
        local = self._publisher.flush(min(highest, Level.SYNCED))
        for level, receipt in new:
            if level in self._waiting:
                self._waiting[level].append((local.position, receipt))
            else:
                _complete(receipt, Confirmed(level, local.position, None))

    def _resolve(self, confirmed: Confirmations) -> bool:
        """Complete what the nodes have confirmed; return whether that was any."""
        progressed = False
        for level, waiting in self._waiting.items():
            reached = confirmed.reached(level)
            merged_at = confirmed.merged_at if level is Level.MERGED else None
            while waiting and waiting[0][0] <= reached:
                position, receipt = waiting.popleft()
                _complete(receipt, Confirmed(level, position, merged_at))
                progressed = True
        return progressed

    def _put_back(self, new: list[tuple[Level, Receipt]], error: OSError) -> float:
        """The disk is full, for now: the messages are kept, and tried again."""
        _log.warning("session %s waits: %s", self._publisher.name, spoken(error))
        with self._news:
            self._new[:0] = new
            self._news.wait_for(lambda: self._closing, _FULL_DISK_S)
        return _POLL_FIRST_S

    def _fail(self, error: Exception, new: list[tuple[Level, Receipt]]) -> None:
        with self._news:
            left = [*new, *self._new]
            self._new = []
        receipts = [receipt for _, receipt in left]
        for waiting in self._waiting.values():
            receipts += [receipt for _, receipt in waiting]
            waiting.clear()
        for receipt in receipts:
            if not receipt.done() and receipt.set_running_or_notify_cancel():
                receipt.set_exception(error)


def _complete(receipt: Receipt, confirmed: Confirmed) -> None:
    if not receipt.done() and receipt.set_running_or_notify_cancel():
        receipt.set_result(confirmed)
