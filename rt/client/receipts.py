"""Receipts: futures of published messages, resolved as the session's confirmations grow."""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, wait
from contextlib import suppress
from functools import cache, partial
from typing import Final, NamedTuple

from replicator.wire.backoff import Complaint
from rt.errors import FlushTimeout, MessagesDropped, RtError, Stopped, spoken
from rt.format.dropped_notice import DroppedSpan
from rt.log.notify.confirmations import ConfirmationsFile, Confirmed, Level
from rt.net.loop.event_loop import EventLoop
from rt.net.loop.timer import Aside, Timer
from rt.position import START, Position
from rt.publisher import Flushing, Publisher

_log: Final = logging.getLogger("rt.client")
# Seconds between checks of the confirmations while no news of them comes: another program may ship
# the session, or a full disk may keep the pusher from recording them.
_POLL_FIRST_S: Final = 0.005
_POLL_LAST_S: Final = 0.05
_POLL_GROWTH: Final = 1.3
_FULL_DISK_S: Final = 0.1
_OF_NODES: Final = (Level.RECEIVED, Level.REPLICATED, Level.MERGED)


class Receipt(Future[Confirmed]):
    """A future of a message's confirmation; its timeout error says what the message waits for.

    Attributes:
        end: a position in the session at or after the message's end; `START` until the message is
            synced.
    """

    def __init__(
        self,
        late: Callable[[Position, float], FlushTimeout],
        defer: Callable[[Callable[[], None]], bool],
    ) -> None:
        """Made by `Receipts.future`; do not call it yourself."""
        super().__init__()
        self.end = START
        self._late = late
        self._defer = defer

    def add_done_callback(self, fn: Callable[[Future[Confirmed]], object]) -> None:
        """Call `fn` once this future is done, as any future does, but never in the event loop."""
        super().add_done_callback(partial(self._call, fn))

    def _call(self, fn: Callable[[Future[Confirmed]], object], _done: object) -> None:
        if not self._defer(partial(super().add_done_callback, fn)):  # it is done: calls it at once
            fn(self)

    def late(self, timeout_s: float) -> FlushTimeout:
        """Return the error for a confirmation that has not come within `timeout_s`."""
        return self._late(self.end, timeout_s)

    def result(self, timeout: float | None = None) -> Confirmed:
        """Return the confirmation, or raise the error that ended the wait, as any future does."""
        try:
            return super().result(timeout)
        except TimeoutError:
            if timeout is None or self.done():
                return super().result(0)
            raise self.late(timeout) from None

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Return the error that ended the wait; None if the message was confirmed."""
        try:
            return super().exception(timeout)
        except TimeoutError:
            if timeout is None or self.done():
                return super().exception(0)
            raise self.late(timeout) from None


class Pledge(NamedTuple):
    """A future, the level it waits for, and its message's sequence number."""

    level: Level
    receipt: Receipt
    sequence: int


class Receipts:
    """Resolves futures in the order of publishing, many at a time.

    One write, one sync and one check of the confirmations serve every message published meanwhile,
    so a thousand waiting threads cost little more than one. Work that may wait for the disk is done
    by the loop's pool; the thread that syncs reports what it has synced.

    Threads: any thread may call `future`, `wait_idle` and `close`; all else belongs to the loop,
    and after `close` to the caller of `close`. `_new` is a deque: any thread appends, and each
    entry is taken once. The thread that writes sets `_written`.
    """

    def __init__(
        self, publisher: Publisher, confirmations: ConfirmationsFile, loop: EventLoop
    ) -> None:
        """Prepare; nothing is waited for yet.

        Args:
            publisher: writes the messages, and reports its syncs to this object.
            confirmations: what the nodes have confirmed.
            loop: the event loop that resolves the futures.
        """
        self._publisher = publisher
        self._confirmations = confirmations
        self._loop = loop
        self._new: deque[Pledge] = deque()
        self._is_closed = False
        self._errors = {level: partial(self._late, level) for level in Level}
        self._writing: list[Pledge] = []
        self._written = Flushing(START, START)  # where the last write ended
        self._error: Exception | None = None  # why the last write failed
        self._unsynced: deque[tuple[Flushing, list[Pledge]]] = deque()
        self._waiting: dict[Level, deque[Pledge]] = {level: deque() for level in _OF_NODES}
        self._drops: tuple[DroppedSpan, ...] = ()  # spans whose futures have failed
        self._pause_s = _POLL_FIRST_S
        self._complaint = Complaint(_log, f"session {publisher.name} waits")
        self._calls: deque[Callable[[], None]] = deque()  # programs' callbacks, for a thread
        self._is_calling = self._has_no_thread = False
        self._caller = 0  # the thread that calls them
        self._all_called: Future[None] = Future()  # once all calls until now have returned
        self._all_called.set_result(None)
        self._timer = Timer(loop, self._turn, self._fail)
        publisher.hear_syncs(self._timer.set)

    def future(self, level: Level, sequence: int) -> Receipt:
        """Return a future that resolves once a message, and all before it, has reached `level`.

        Args:
            level: the level to reach.
            sequence: the message's number.

        Raises:
            Stopped: the publisher is closed.
        """
        if self._has_ended():
            raise Stopped(f"publisher {self._publisher.name!r} is closed")
        receipt = Receipt(self._errors[level], self._call_later)
        self._new.append(Pledge(level, receipt, sequence))
        self._timer.set()
        if self._has_ended():  # ended meanwhile: the future may have been missed
            self._fail_all(self._stopped(), self._taken())
        return receipt

    def _late(self, level: Level, end: Position, timeout_s: float) -> FlushTimeout:
        """Return the error for a level that a message has not reached in time."""
        reached, reason = self._reached(end).name, self._publisher.shipping_note
        return shipped(FlushTimeout(reached, level.name, timeout_s, reason))

    def _reached(self, end: Position) -> Level:
        """Return the level that a message has reached; `end` is `START` if it is not synced yet."""
        here = Level.SYNCED if end else Level.WRITTEN
        end = end or self._publisher.flush(Level.WRITTEN).position  # it includes the message
        known = self._confirmations.read()
        return max((each for each in _OF_NODES if known.reached(each) >= end), default=here)

    def heard(self) -> None:
        """Check the confirmations soon, because there are new ones. The loop calls this."""
        if any(self._waiting.values()):
            self._timer.set()

    def wait_idle(self, timeout_s: float) -> None:
        """Wait until all futures that are open now are done and their callbacks have returned.

        In the loop's thread, this returns without waiting; in a callback, it does not wait for
        other callbacks.
        """
        end_s = time.monotonic() + timeout_s
        left: list[Receipt] = []
        self._loop.call(
            lambda: left.extend(each.receipt for each in [*self._open(), *self._new.copy()])
        )
        if not self._loop.is_own_thread:
            wait([each for each in left if not each.done()], timeout_s)
            self._loop.call(lambda: None)  # the calls for the last ones are known now
            if self._caller != threading.get_ident():
                wait([self._all_called], max(0.0, end_s - time.monotonic()))

    def close(self) -> None:
        """End, and fail all open futures with `Stopped`."""
        self._is_closed = True
        self._timer.stop(0)
        self._fail(self._stopped())

    def _has_ended(self) -> bool:
        return self._is_closed or self._loop.has_ended

    def _stopped(self) -> Stopped:
        reason = self._publisher.shipping_note
        words = f"publisher {self._publisher.name!r} was closed before that"
        return Stopped(f"{words}: {reason}" if reason else words)

    def _turn(self) -> float | Aside | None:
        """Resolve the futures that are due; return the seconds to the next check, or a write."""
        if self._has_no_thread:
            self._has_no_thread = False  # it is tried again after a pause
        else:
            self._call()
        error, self._error = self._error, None
        self._writing += self._taken()
        has_new = is_aside = bool(self._writing)
        try:
            if error is not None:
                raise error
            if has_new and self._has_written():
                is_aside = False
                self._wrote(None)
            has_new |= self._take_synced()
            has_new |= self._resolve()
        except (RtError, OSError) as met:
            return self._met(met)
        if is_aside:  # after checking the others: in a flood every write is put aside
            return Aside(self._write, self._wrote, is_peer=False)
        self._complaint.reset()
        self._pause_s = min(_POLL_LAST_S, self._pause_s * _POLL_GROWTH)
        if has_new:
            self._pause_s = _POLL_FIRST_S
        return self._pause_s if any(self._waiting.values()) or self._calls else None

    def _met(self, error: Exception) -> float | None:
        """Return the seconds until another try after a disk error, such as a full disk.

        After any other error, fail all futures and return None.
        """
        if isinstance(error, OSError) and not isinstance(error, RtError):
            self._complaint.say(spoken(error))
            return _FULL_DISK_S
        self._fail(error)
        return None

    def _taken(self) -> Iterator[Pledge]:
        """Remove and yield the new futures; two threads never get the same one."""
        with suppress(IndexError):
            while True:
                yield self._new.popleft()

    def _write(self) -> None:
        """Write new messages to the disk, and have them synced soon if a future waits for that."""
        self._written = self._publisher.begin_flush(synced=self._wants_sync())

    def _has_written(self) -> bool:
        """Write new messages, unless that must wait for the disk; return whether it wrote them."""
        found = self._publisher.begin_flush_now(synced=self._wants_sync())
        self._written = found or self._written
        return found is not None

    def _wants_sync(self) -> bool:
        return any(each.level > Level.WRITTEN for each in self._writing)

    def _wrote(self, error: Exception | None) -> None:
        """Resolve futures that wait only for this write; the others go on to wait for a sync."""
        self._error = error
        if error is not None:
            return
        new, self._writing, written = self._writing, [], self._written
        for each in new:
            if each.level is Level.WRITTEN:
                _complete(each.receipt, Confirmed(each.level, written.end, None))
        if left := [each for each in new if each.level > Level.WRITTEN]:
            self._unsynced.append((written, left))

    def _take_synced(self) -> bool:
        """Resolve futures that wait only for a sync; the others go on to wait for the nodes."""
        if not self._unsynced:
            return False
        before, durable = len(self._unsynced), self._publisher.synced_to()
        while self._unsynced and self._unsynced[0][0].synced_at <= durable:
            written, pledges = self._unsynced.popleft()
            for each in pledges:
                if each.level is Level.SYNCED:
                    _complete(each.receipt, Confirmed(each.level, written.end, None))
                elif not self._was_dropped(each):
                    end = written.end  # `_fail_dropped` may have looked at drops before this
                    each.receipt.end = self._publisher.kept(end) if self._drops else end
                    self._waiting[each.level].append(each)
        return len(self._unsynced) < before

    def _resolve(self) -> bool:
        """Complete the futures that the nodes have confirmed; return whether there were any."""
        if not any(self._waiting.values()):
            return False
        confirmed, progressed = self._confirmations.read(), False
        self._fail_dropped()  # first, so that nothing dropped is confirmed
        for level, waiting in self._waiting.items():
            reached = confirmed.reached(level)
            merged_at = confirmed.merged_at if level is Level.MERGED else None
            while waiting and waiting[0].receipt.end <= reached:
                receipt = waiting.popleft().receipt
                _complete(receipt, Confirmed(level, receipt.end, merged_at))
                progressed = True
        self._publisher.demand_name()
        return progressed

    def _fail_dropped(self) -> None:
        """Fail the futures of messages that a full session has dropped.

        The other futures then wait for the last message that was kept, not for dropped messages
        after it. `kept` may already count drops that `drops` did not list, so both are read until
        there is nothing new; otherwise a message dropped meanwhile might be confirmed.
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
        """Fail a message's future if the message was dropped; return whether it was."""
        span = next((one for one in self._drops if one.first <= pledge.sequence < one.next), None)
        if span is not None:
            _fail(pledge.receipt, MessagesDropped([span.event(self._publisher.name)]))
        return span is not None

    def _fail(self, error: Exception) -> None:
        self._fail_all(error, [*self._open(), *self._taken()])
        self._writing = []
        self._unsynced.clear()
        for waiting in self._waiting.values():
            waiting.clear()

    def _open(self) -> list[Pledge]:
        """Return the futures that are not resolved, except those still in `_new`."""
        open_ones = [*self._writing, *(each for _, synced in self._unsynced for each in synced)]
        return [*open_ones, *(each for waiting in self._waiting.values() for each in waiting)]

    @staticmethod
    def _fail_all(error: Exception, pledges: Iterable[Pledge]) -> None:
        for each in pledges:
            _fail(each.receipt, error)

    # Programs' callbacks may wait, and the loop must not

    def _call_later(self, call: Callable[[], None]) -> bool:
        """Have another thread do the call after all earlier ones, and return True.

        If not called by the loop's thread, do nothing and return False: the caller does the call
        itself.
        """
        if not self._loop.is_own_thread:
            return False
        if self._all_called.done():
            self._all_called = Future()
        self._calls.append(call)
        self._call()
        return True

    def _call(self) -> None:
        if self._calls and not self._is_calling:
            self._is_calling = True
            self._loop.ask(self._do_calls, self._called)

    def _do_calls(self) -> None:
        self._caller = threading.get_ident()
        try:
            while self._calls:
                self._calls.popleft()()
        finally:
            self._caller = 0

    def _called(self, error: Exception | None) -> None:
        self._is_calling = False
        if error is None:
            self._call()
            if not self._is_calling:
                self._all_called.set_result(None)
        else:  # the system allows no further thread
            self._has_no_thread = True
            self._timer.set()


def shipped(error: FlushTimeout) -> FlushTimeout:
    """Return the error without its hint to run `rt push`, since this process ships the session."""
    if not error.reason:
        error.reason = "the nodes have not confirmed it yet"
    return error


def _is_awaited(receipt: Receipt) -> bool:
    """Whether a future is still to be completed; notify the waiters of a cancelled one."""
    is_open = receipt.cancelled() or not receipt.done()
    return is_open and receipt.set_running_or_notify_cancel()


def _fail(receipt: Receipt, error: Exception) -> None:
    if _is_awaited(receipt):
        receipt.set_exception(error)


def _complete(receipt: Receipt, confirmed: Confirmed) -> None:
    if _is_awaited(receipt):
        receipt.set_result(confirmed)
