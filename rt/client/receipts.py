"""Receipts: futures of published messages, resolved as the session's confirmations grow."""

import logging
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from functools import cache, partial
from typing import Final, NamedTuple

from replicator.wire.backoff import Complaint
from rt.errors import FlushTimeout, MessagesDropped, RtError, Stopped, WriterFailed, spoken
from rt.format.dropped_notice import DroppedSpan
from rt.log.notify.confirmations import Confirmations, ConfirmationsFile, Confirmed, Level
from rt.position import START, Position
from rt.publisher import Publisher

_log: Final = logging.getLogger("rt.client")
# Between two looks at the confirmations without being told of them: another program may ship the
# session, and a full disk may keep the pusher from noting them.
_POLL_FIRST_S: Final = 0.005
_POLL_LAST_S: Final = 0.05
_POLL_GROWTH: Final = 1.3
_FULL_DISK_S: Final = 0.1
_OF_NODES: Final = (Level.RECEIVED, Level.REPLICATED, Level.MERGED)


class Receipt(Future[Confirmed]):
    """A future of a message's confirmation; its timeout error says what the message waits for.

    Attributes:
        end: the latest position in its session at which the message ends; the start until synced.
    """

    def __init__(self, late: Callable[[Position, float], FlushTimeout]) -> None:
        """Wait for a confirmation; made by `Receipts.future`."""
        super().__init__()
        self.end = START
        self._late = late

    def late(self, timeout_s: float) -> FlushTimeout:
        """Return the error for a confirmation that has not come within this time."""
        return self._late(self.end, timeout_s)

    def result(self, timeout: float | None = None) -> Confirmed:
        """Return the confirmation, or raise what prevents it; otherwise as any future."""
        try:
            return super().result(timeout)
        except TimeoutError:
            if timeout is None or self.done():
                return super().result(0)
            raise self.late(timeout) from None

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Return the error that it ended with, None if there is none; otherwise as any future."""
        try:
            return super().exception(timeout)
        except TimeoutError:
            if timeout is None or self.done():
                return super().exception(0)
            raise self.late(timeout) from None


class Pledge(NamedTuple):
    """A future, and the number of its message."""

    level: Level
    receipt: Receipt
    sequence: int


class Receipts:
    """Resolves futures in the order of publishing, many at a time.

    One write, one sync and one check of the confirmations serve every message published meanwhile,
    so a thousand waiting threads cost little more than one.

    Threads:
        `_new`, `_closing`, `_is_idle` and `_is_told` are guarded by `_news`, which any thread may
        take through `future`, `heard`, `wait_idle` and `close`. `_waiting`, `_drops` and
        `_complaint` belong to the thread of `_run` alone. It alone sets a future's `end`, and
        completes the future outside the lock, so a callback may publish again.
    """

    def __init__(self, publisher: Publisher, confirmations: ConfirmationsFile) -> None:
        self._publisher = publisher
        self._confirmations = confirmations
        self._news = threading.Condition()
        self._new: list[Pledge] = []
        self._closing = False
        self._is_idle = True
        self._is_told = False  # that more is confirmed
        self._errors = {level: partial(self._late, level) for level in Level}
        self._waiting: dict[Level, deque[Pledge]] = {level: deque() for level in _OF_NODES}
        self._drops: tuple[DroppedSpan, ...] = ()  # spans whose futures have failed
        self._complaint = Complaint(_log, f"session {publisher.name} waits")
        self._thread = threading.Thread(
            target=self._run, name=f"receipts {publisher.name}", daemon=True
        )
        self._thread.start()

    def future(self, level: Level, sequence: int) -> Receipt:
        """Return a future that resolves once a message, and all before it, has reached `level`.

        Args:
            level: the level to reach.
            sequence: the message's number.

        Raises:
            Stopped: the publisher is closed.
        """
        receipt = Receipt(self._errors[level])
        with self._news:
            if self._closing:
                raise Stopped(f"publisher {self._publisher.name!r} is closed")
            self._new.append(Pledge(level, receipt, sequence))
            self._is_idle = False
            self._news.notify_all()
        return receipt

    def _late(self, level: Level, end: Position, timeout_s: float) -> FlushTimeout:
        """Return the error for a level that a message has not reached in time."""
        reached, reason = self._reached(end).name, self._publisher.shipping_note
        return shipped(FlushTimeout(reached, level.name, timeout_s, reason))

    def _reached(self, end: Position) -> Level:
        """Return the highest level of a message that ends there; the start if unsynced."""
        here = Level.SYNCED if end else Level.WRITTEN
        end = end or self._publisher.flush(Level.WRITTEN).position  # it includes the message
        known = self._confirmations.read()
        return max((each for each in _OF_NODES if known.reached(each) >= end), default=here)

    def heard(self) -> None:
        """Look at the confirmations: there are more."""
        if not self._is_idle:
            with self._news:
                self._is_told = True
                self._news.notify_all()

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
            had_new = bool(new)
            try:
                self._write(new)
                new = []  # they are waited for now
                progressed = self._resolve(self._confirmations.read())
                self._publisher.demand_name()
            except (WriterFailed, RtError) as error:
                self._fail(error, new)
                continue
            except OSError as error:
                pause_s = self._put_back(new, error)
                continue
            self._complaint.reset()
            pause_s = min(_POLL_LAST_S, pause_s * _POLL_GROWTH)
            if had_new or progressed:
                pause_s = _POLL_FIRST_S
        reason = self._publisher.shipping_note
        words = f"publisher {self._publisher.name!r} was closed before that"
        self._fail(Stopped(f"{words}: {reason}" if reason else words), [])

    def _next(self, pause_s: float) -> list[Pledge] | None:
        """Wait for futures, or for the next check; None once closed."""
        with self._news:
            if not (self._new or self._closing or self._is_told):
                self._is_idle = not any(self._waiting.values())
                if self._is_idle:
                    self._news.notify_all()
                self._news.wait(None if self._is_idle else pause_s)
            self._is_told = False
            if self._closing:
                return None
            new, self._new = self._new, []
            return new

    def _write(self, new: list[Pledge]) -> None:
        """Write new messages to the disk, and resolve the futures that need no node."""
        if not new:
            return
        highest = max(each.level for each in new)
        local = self._publisher.flush(min(highest, Level.SYNCED))
        for each in new:
            if each.level not in self._waiting:
                _complete(each.receipt, Confirmed(each.level, local.position, None))
            elif not self._was_dropped(each):
                each.receipt.end = local.position
                self._waiting[each.level].append(each)

    def _resolve(self, confirmed: Confirmations) -> bool:
        """Complete what the nodes have confirmed; return whether there was any."""
        progressed = False
        self._fail_dropped()  # before this, so that nothing dropped is confirmed
        for level, waiting in self._waiting.items():
            reached = confirmed.reached(level)
            merged_at = confirmed.merged_at if level is Level.MERGED else None
            while waiting and waiting[0].receipt.end <= reached:
                receipt = waiting.popleft().receipt
                _complete(receipt, Confirmed(level, receipt.end, merged_at))
                progressed = True
        return progressed

    def _fail_dropped(self) -> None:
        """Fail the futures of messages that a full session has dropped.

        A kept message may have waited for later ones that were published with it. `kept` may know
        of more drops than `drops` did, so both are read until there is nothing new; otherwise a
        message dropped meanwhile might be confirmed.
        """
        while (drops := self._publisher.drops) is not self._drops:
            self._drops, kept = drops, cache(self._publisher.kept)
            for level, waiting in self._waiting.items():
                left = self._waiting[level] = deque(
                    each for each in waiting if not self._was_dropped(each)
                )
                for each in left:
                    each.receipt.end = kept(each.receipt.end)

    def _was_dropped(self, pledge: Pledge) -> bool:
        """Whether a message was dropped, so that its future has failed now."""
        span = next((one for one in self._drops if one.first <= pledge.sequence < one.next), None)
        if span is not None:
            _fail(pledge.receipt, MessagesDropped([span.event(self._publisher.name)]))
        return span is not None

    def _put_back(self, new: list[Pledge], error: OSError) -> float:
        """Keep messages that a full disk refused, and try them again later."""
        self._complaint.say(spoken(error))
        with self._news:
            self._new[:0] = new
            self._news.wait_for(lambda: self._closing, _FULL_DISK_S)
        return _POLL_FIRST_S

    def _fail(self, error: Exception, new: list[Pledge]) -> None:
        with self._news:
            left = [*new, *self._new]
            self._new = []
        for waiting in self._waiting.values():
            left += waiting
            waiting.clear()
        for each in left:
            _fail(each.receipt, error)


def shipped(error: FlushTimeout) -> FlushTimeout:
    """Return the error without the hint to ship the session, since this process does it."""
    if not error.reason:
        error.reason = "the nodes have not confirmed it yet"
    return error


def _fail(receipt: Receipt, error: Exception) -> None:
    if not receipt.done() and receipt.set_running_or_notify_cancel():
        receipt.set_exception(error)


def _complete(receipt: Receipt, confirmed: Confirmed) -> None:
    if not receipt.done() and receipt.set_running_or_notify_cancel():
        receipt.set_result(confirmed)
