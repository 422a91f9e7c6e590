"""ClientPublisher: a publisher that ships its own session and confirms its messages."""

import logging
import os
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from itertools import count
from typing import Any, Final, Self

from replicator.push.client import PushClient
from rt.amounts import duration_text
from rt.client.flight import Flight, FlightLimit
from rt.client.readers.settings import ConnectionSettings
from rt.client.receipts import Receipt, Receipts, shipped
from rt.errors import NO_HEADERS, FlushTimeout, Misuse, Refused, Stopped
from rt.events import Dropped
from rt.format.headers import Headers
from rt.log.notify.confirmations import Confirmations, ConfirmationsFile, Confirmed, Level
from rt.log.notify.headers_note import UNKNOWN, HeadersNote
from rt.log.write.batcher import Batching
from rt.log.write.checked import Bytes, checked_seconds, demand_kind
from rt.log.write.disk_room import DiskLimit
from rt.log.write.writer import WriterSettings
from rt.names import parse_cursor, session_directory
from rt.net.admin import PASSING, NoLeader, reading_answers
from rt.net.loop.event_loop import EventLoop
from rt.position import Position
from rt.publisher import Publisher

_log: Final = logging.getLogger("rt.client")
_POLL_S: Final = 0.005
_WORD_S: Final = 1.0  # after this long, `close` logs what it waits for
_HEADERS_S: Final = 5.0  # nodes that have just started agree within this time
Ask = Callable[[dict[str, Any]], dict[str, Any]]
# between two checks of a cursor: first, and at most
_CONSUMED_FIRST_S, _CONSUMED_LAST_S = 0.02, 1.0


def checked_level(level: str | Level, argument: str) -> Level:
    """Return a level by its name; `Misuse`, which names `argument`, if there is no such level."""
    demand_kind(argument, level, str, Level)
    try:
        return level if isinstance(level, Level) else Level.parse(level)
    except ValueError as error:
        raise Misuse(f"{argument}: {error}") from None


class ClientPublisher:
    """Publishes to one session and ships it to the nodes from this process.

    Publishing appends to the local session, and waits for the network only if `confirm` asks for
    that. Made by `rt.client.client.Client.publisher`.

    Threads:
        Any thread may publish, flush and close. The client's event loop ships the session and
        completes futures. Each call of `close` takes a number of `_closings`; the first one closes,
        and sets `is_closed` and `_drained`, which any thread may read.
    """

    def __init__(
        self,
        settings: ConnectionSettings,
        push: PushClient,
        session: str,
        *,
        ask: Ask,
        loop: EventLoop,
        confirm: str | Level = Level.MERGED,
        timeout_s: float = 30.0,
        group: str = "",
        writer: WriterSettings | None = None,
        batching: Batching | None = None,
        flight: FlightLimit | None = None,
        disk_limit: DiskLimit | None = None,
        closed: Callable[[str], object] = lambda _session: None,
    ) -> None:
        """Open the session and begin to ship it.

        Args:
            settings: where the stream is.
            push: ships the client's sessions.
            session: the session's name; a session has one live publisher at a time.
            ask: makes a request of the nodes as a subscriber.
            loop: the client's event loop, which completes futures.
            confirm: the level that `publish_future` waits for by default.
            timeout_s: how long `publish` and `flush` wait by default.
            group: as for `rt.Publisher`.
            writer: durability, sizes, compression.
            batching: how messages become frames.
            flight: how much may be published and not merged yet.
            disk_limit: how much the session's files may hold here.
            closed: called with the session's name once the session is closed.

        Raises:
            Misuse: a name or level is wrong, the session has a live publisher, or `writer` has
                `keep_s` or `keep_bytes`, which delete messages that were not shipped.
            CorruptLog: the session's log is damaged.
        """
        self._ask, self._closed = ask, closed
        self._confirm, self.timeout_s = checked_level(confirm, "confirm"), timeout_s
        demand_kind("flight", flight, FlightLimit)
        demand_kind("writer", writer, WriterSettings)
        if writer is not None and (writer.keep_s or writer.keep_bytes):
            raise Misuse("keep_s and keep_bytes are for sessions that are not shipped; this one is")
        self._publisher = Publisher(
            settings.root, stream=settings.stream, session=session, group=group,
            writer=writer, batching=batching, disk_limit=disk_limit,
        )  # fmt: skip
        with ExitStack() as undo:  # otherwise the session would keep a live publisher
            undo.callback(self._publisher.close)
            directory = session_directory(settings.root, settings.stream, session)
            self._confirmations = ConfirmationsFile(directory)
            self._headers = HeadersNote(os.path.dirname(directory))
            if flight is not None:
                taken = Flight(
                    flight, lambda: self._publisher.taken, self._written, self._merged,
                    drops=lambda: self._publisher.drops, kept=self._publisher.kept,
                )  # fmt: skip
                self._publisher.limit_flight(taken.admit)
            self._receipts = Receipts(self._publisher, self._confirmations, loop)
            undo.callback(self._receipts.close)
            self._push = push
            push.ship(session, self._receipts.heard)
            undo.pop_all()
        self._headers_awaited = False  # the nodes' answer does not change within seconds
        self._closings = count()
        self.is_closed = False  # whether `close` was called: nothing more can be published
        self._drained = False  # set by the call that closed it

    @property
    def name(self) -> str:
        """The name of the session."""
        return self._publisher.name

    @property
    def next_sequence(self) -> int:
        """The sequence number that the next message gets."""
        return self._publisher.next_sequence

    def publish(
        self,
        payload: Bytes,
        key: Bytes | None = None,
        time_ns: int | None = None,
        *,
        headers: Headers | None = None,
        confirm: str | Level | None = None,
        timeout_s: float | None = None,
    ) -> int:
        """Publish one message and return its sequence number.

        Args:
            payload: the message.
            key: by which subscribers may select; optional.
            time_ns: the message's time, ns since the epoch; now if not given.
            headers: bytes by name; see `rt.Publisher.publish`. The first call with headers waits up
                to 5 seconds for the nodes to report that all of them can read headers.
            confirm: a level to wait for; without it the call returns at once.
            timeout_s: how long to wait; 30 s unless the configuration says otherwise.

        Raises:
            FlushTimeout: `confirm` was not reached in time; the message stays and will be shipped.
            LimitReached: the flight limit is reached; nothing was published.
            SessionFull: the disk limit is reached; nothing was published.
            MessagesDropped: `confirm` was given, and the full session dropped the message.
            RtError: as `rt.Publisher.publish`.
        """
        level = None if confirm is None else checked_level(confirm, "confirm")
        if level is None:
            return self._publish(payload, key, time_ns, headers)
        timeout_s = checked_seconds(self.timeout_s if timeout_s is None else timeout_s, "timeout_s")
        sequence = self._publish(payload, key, time_ns, headers)
        self._await(self._receipts.future(level, sequence), timeout_s)
        return sequence

    def publish_many(
        self,
        payloads: Iterable[Bytes],
        keys: Iterable[Bytes] | None = None,
        times_ns: Iterable[int] | None = None,
        *,
        headers: Iterable[Headers | None] | None = None,
    ) -> range:
        """Publish messages in order and return their sequence numbers; see `rt.Publisher`.

        Raises `LimitReached` as `publish` does; a flight limit admits all the messages or none.
        """
        if headers is not None:
            self.await_headers()
        return self._publisher.publish_many(payloads, keys, times_ns, headers=headers)

    def skip_to(self, sequence: int) -> None:
        """Give the next message the number `sequence`; see `rt.Publisher.skip_to`."""
        self._publisher.skip_to(sequence)

    def publish_future(
        self,
        payload: Bytes,
        key: Bytes | None = None,
        time_ns: int | None = None,
        *,
        headers: Headers | None = None,
        confirm: str | Level | None = None,
    ) -> Receipt:
        """Publish one message and return a future of its confirmation.

        The future completes without further calls. Cancelling it ends the wait; the message is
        still shipped. The future fails with `Stopped` when the publisher is closed first, with
        `WriterFailed` when the local disk fails, and with `MessagesDropped` when a full session
        dropped the message.

        Args:
            payload: the message.
            key: by which subscribers may select; optional.
            time_ns: the message's time, ns since the epoch; now if not given.
            headers: bytes by name; as for `publish`.
            confirm: the level to wait for; the publisher's own unless given.

        Returns:
            A `concurrent.futures.Future` of `rt.Confirmed`; `merged_at` is a position of the
            merged log at or after the end of the message. Use `add_done_callback` for a callback,
            or `asyncio.wrap_future` to await it. After its timeout, `result(timeout)` raises a
            `FlushTimeout` that says what the message waits for.

        Raises:
            RtError: as for `publish`.
        """
        level = self._confirm if confirm is None else checked_level(confirm, "confirm")
        sequence = self._publish(payload, key, time_ns, headers)
        return self._receipts.future(level, sequence)

    def flush(self, level: str | Level | None = None, timeout_s: float | None = None) -> Confirmed:
        """Wait until everything published so far has reached `level`; see `rt.Publisher.flush`.

        By default, `level` is the publisher's `confirm`, and `timeout_s` comes from the
        configuration, or is 30 s.
        """
        wanted = self._confirm if level is None else checked_level(level, "level")
        try:
            return self._publisher.flush(wanted, self.timeout_s if timeout_s is None else timeout_s)
        except FlushTimeout as error:
            raise shipped(error) from None

    def confirmed(self) -> Confirmations:
        """Return how far the nodes have confirmed the session, whichever process published.

        Messages in `dropped` were not merged, even if a later position was.
        """
        return self._confirmations.read()

    def dropped(self) -> list[Dropped]:
        """Return the ranges of messages that the session has dropped because it was full."""
        return self._publisher.dropped()

    def await_consumed(
        self, place: Position | Confirmed, cursor: str, timeout_s: float = 30.0
    ) -> None:
        """Wait until a registered cursor has acknowledged everything before a place.

        Args:
            place: a position in the merged log, or the result of a future of `publish_future`.
            cursor: the cursor's name.
            timeout_s: how long to wait.

        Raises:
            Misuse: the future waited for a level below `merged`, so the place is not known.
            TimeoutError: the cursor has not reached `place` in time; the message says how far it
                has come.
            Refused: there is no such cursor, the certificate may not see it, or no majority
                decided anything in that time.
            RtError: no node answers, or the answer cannot be read.
        """
        await_consumed(self._ask, place, cursor, timeout_s)

    def close(self, timeout_s: float = 10.0) -> bool:
        """Wait for open futures, release the session, and wait for the nodes. Idempotent.

        Args:
            timeout_s: the longest that `close` may take. Messages that the nodes lack after that
                stay in the log, and the next publisher or `rt push` of this session ships them.

        Returns:
            Whether a majority of the nodes has synced everything; False if another call is closing.

        Raises:
            OSError: the last messages cannot be written; the session is released.
            WriterFailed: the disk failed; the session is released.
        """
        timeout_s = checked_seconds(timeout_s, "timeout_s")
        if next(self._closings):
            return self._drained
        self.is_closed = True
        word_s = time.monotonic() + _WORD_S
        deadline = word_s - _WORD_S + timeout_s
        self._receipts.wait_idle(min(_WORD_S, timeout_s))
        if has_said := deadline > time.monotonic() >= word_s:
            self._say_what_is_waited_for(deadline)
        self._receipts.wait_idle(max(0.0, deadline - time.monotonic()))
        self._receipts.close()
        try:
            end = self._close_session()
            if not has_said and not self._await_replicated(end, min(word_s, deadline)):
                self._say_what_is_waited_for(deadline)
            drained = self._drained = self._await_replicated(end, deadline)
            reason = self._publisher.shipping_note
        finally:
            self._closed(self.name)
            self._push.leave(self.name, self._receipts.heard)
        if not drained:
            _log.warning(
                "session %s: a majority of the nodes does not have everything yet%s; it stays in "
                "the log, and the next push ships it", self.name, f" ({reason})" if reason else "",
            )  # fmt: skip
        return drained

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<ClientPublisher {self.name!r}, next sequence {self.next_sequence}>"

    def _publish(
        self, payload: Bytes, key: Bytes | None, time_ns: int | None, headers: Headers | None
    ) -> int:
        if not headers:
            return self._publisher.publish(payload, key, time_ns)
        self.await_headers()
        return self._publisher.publish(payload, key, time_ns, headers=headers)

    def await_headers(self) -> None:
        """Wait at most 5 seconds until the nodes report that all of them can read headers.

        Nodes that have just started agree on that within seconds.

        Raises:
            Refused: no node has reported anything for 5 seconds.
        """
        if self._headers_awaited:
            return
        deadline = time.monotonic() + _HEADERS_S
        while (why_not := self._headers.read()) != "" and time.monotonic() < deadline:
            time.sleep(_POLL_S)
        if why_not is None:
            raise Refused(NO_HEADERS, UNKNOWN)
        self._headers_awaited = True

    def _written(self) -> Position:
        return self._publisher.flush(Level.WRITTEN).position

    def _merged(self) -> Position:
        """Return the session's merged end; `Stopped` if the publisher was closed meanwhile."""
        if self.is_closed:
            raise Stopped(f"publisher {self.name!r} is closed")
        return self._confirmations.read().merged

    def _close_session(self) -> Position:
        """Write the last messages and return their end; release the session even if that fails."""
        try:
            return self._publisher.flush(Level.WRITTEN).position
        finally:
            self._publisher.close()

    def _say_what_is_waited_for(self, deadline: float) -> None:
        """Log what `close` waits for, so that a program that ends slowly shows why."""
        if (left_s := deadline - time.monotonic()) > 0:
            reason = self._publisher.shipping_note
            _log.warning(
                "session %s: waiting up to %s for a majority of the nodes to have everything%s",
                self.name, duration_text(left_s), f" ({reason})" if reason else "",
            )  # fmt: skip

    def _await_replicated(self, end: Position, deadline: float) -> bool:
        """Wait until a majority has everything up to `end`; False if the deadline passes first.

        This process or `rt push` ships the messages.
        """
        while self.confirmed().replicated < end:
            if time.monotonic() >= deadline:
                return False
            time.sleep(_POLL_S)
        return True

    def _await(self, receipt: Receipt, timeout_s: float) -> None:
        try:
            receipt.result(timeout_s)
        except FlushTimeout:
            receipt.cancel()
            raise


def await_consumed(ask: Ask, place: Position | Confirmed, cursor: str, timeout_s: float) -> None:
    """Wait until a registered cursor has acknowledged everything before a place.

    Arguments and errors are as for `ClientPublisher.await_consumed`; `ask` sends a request to the
    nodes.
    """
    parse_cursor(cursor)
    position = place.merged_at if isinstance(place, Confirmed) else place
    if position is None:
        raise Misuse("what was confirmed has no place yet; publish with confirm='merged'")
    timeout_s = checked_seconds(timeout_s, "timeout_s")
    end_s, pause_s = time.monotonic() + timeout_s, _CONSUMED_FIRST_S
    while True:
        is_last = time.monotonic() + pause_s > end_s
        try:
            answer = ask({"do": "cursors", "name": cursor, "latest": True})
        except (NoLeader, Refused) as error:
            if is_last or not (isinstance(error, NoLeader) or error.code in PASSING):
                raise
        else:
            with reading_answers():
                found = answer["cursors"][0]
                reached = Position.parse(str(found.get("next", found["position"])))
            if reached >= position:
                return
            if is_last:
                words = f"cursor {cursor!r} has acknowledged up to {reached}, not {position}"
                raise TimeoutError(f"{words}, after {duration_text(timeout_s)}")
        time.sleep(pause_s)
        pause_s = min(_CONSUMED_LAST_S, 2 * pause_s)
