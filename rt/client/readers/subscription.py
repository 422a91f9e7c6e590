"""Subscription: the messages of a stream, read with a cursor."""

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import closing, suppress
from typing import Final, Literal, Self

from rt.client.readers.cursor import LocalCursor
from rt.client.readers.registered import RegisteredReader
from rt.errors import Misuse, Stopped
from rt.format.message import Batch, Message
from rt.log.files.continued import ContinuedLog
from rt.log.files.directory import LogDirectory
from rt.position import START, Position
from rt.subscriber import Subscriber

Acknowledgement = Literal["auto", "explicit"]
_ACKNOWLEDGEMENTS: Final = ("auto", "explicit")


def begin_epoch(cursor: LocalCursor | RegisteredReader, subscriber: Subscriber) -> None:
    """Begin a cursor's new epoch at its reader's position; errors as for `LocalCursor.open_at`."""
    log_id = _log_of(subscriber)
    position = subscriber.position if log_id else cursor.state.position
    cursor.open_at(position, log_id)


def _log_of(subscriber: Subscriber) -> str:
    """Return the id of the log that a subscriber reads; "" while there is none."""
    with closing(LogDirectory(subscriber.directory)) as log:
        log.refresh()
        identity = log.manifest.identity
    return identity.id if identity else ""


class Subscription:
    """Reads a stream from where the last reader of this cursor stopped acknowledging.

    Delivery is at least once: after a crash the messages since the last stored acknowledgement come
    again. With `ack="auto"` a message is acknowledged when the next one is requested, or when the
    `with` block ends without an exception, never before it was handled. With `ack="explicit"` only
    `ack` acknowledges. At the end of the log, messages that a filter skipped are acknowledged too,
    once all messages delivered before them are.

    One thread iterates; any thread may call `stop` and `ack`.
    """

    def __init__(
        self,
        subscriber: Subscriber,
        cursor: LocalCursor | RegisteredReader,
        ack: Acknowledgement = "auto",
    ) -> None:
        """Begin to use the cursor; `close` releases it.

        Args:
            subscriber: a subscriber of the merged stream that starts where the cursor is.
            cursor: a cursor held by this process. If it is a registered one and another reader
                takes it over, iterating and acknowledging raise `Fenced`.
            ack: `auto` or `explicit`.

        Raises:
            Misuse: `ack` is wrong.
        """
        if ack not in _ACKNOWLEDGEMENTS:
            raise Misuse(f"ack is {ack!r}; use auto or explicit")
        self._cursor = cursor
        self._is_auto = ack == "auto"
        self._handed_out: Position | None = None
        self._cut: Position | None = None  # where the log that is read continues an earlier one
        self._subscriber = subscriber
        self._is_open = False
        self.is_closed = False
        subscriber.on_continued(self._continue)
        self._idle, subscriber.idle = subscriber.idle, self._at_end
        if isinstance(cursor, RegisteredReader):
            cursor.lost = subscriber.stop
        # the cursor, until it knows the id of the log that its positions belong to
        self._unnamed = cursor if isinstance(cursor, RegisteredReader) else None

    @property
    def name(self) -> str:
        """The cursor's name."""
        return self._cursor.name

    @property
    def acked(self) -> Position:
        """Everything before this position is acknowledged."""
        return self._cursor.state.position

    def __iter__(self) -> Iterator[Message]:
        return self.messages()

    def messages(
        self,
        timeout_s: float | None = None,
        *,
        max: int | None = None,  # noqa: A002 - what others call it
    ) -> Iterator[Message]:
        """Iterate over messages; arguments and errors as for `rt.Subscriber.messages`."""
        self._open()
        for message in self._subscriber.messages(timeout_s, max=max):
            self._hand_out(message.next_position)
            yield message
            self._ack_handed_out()
        self._cursor.demand_held()

    def batches(self, timeout_s: float | None = None) -> Iterator[Batch]:
        """Iterate over whole frames; `auto` acknowledges a frame when the next is requested."""
        self._open()
        for batch in self._subscriber.batches(timeout_s):
            self._hand_out(batch.next_position)
            yield batch
            self._ack_handed_out()
        self._cursor.demand_held()

    async def __aiter__(self) -> AsyncIterator[Message]:
        """Iterate inside asyncio; waiting happens in a thread."""
        self._open()
        async for message in self._subscriber:
            self._hand_out(message.next_position)
            yield message
            self._ack_handed_out()
        self._cursor.demand_held()

    def ack(self, upto: Message | Batch | Position | None = None, *, sync: bool = False) -> None:
        """Acknowledge everything up to and including a message, or everything delivered.

        Args:
            upto: the last message or batch to acknowledge; or a position, to acknowledge everything
                before it. None for everything delivered.
            sync: store the acknowledgement durably before this returns; otherwise within a second.

        Raises:
            Fenced: another reader has taken the registered cursor.
            Stopped: the subscription was closed; what was not acknowledged is delivered again.
            OSError: the acknowledgement cannot be stored now; it is kept, and stored with the next
                one.
        """
        if isinstance(upto, Message | Batch):
            upto = upto.next_position
        position = self._handed_out if upto is None else upto
        if position is not None:
            if self._cut is not None:  # a position that was handed out before may be beyond it
                position = min(position, self._handed_out or self._cut)
            self._cursor.ack(position, sync=sync)

    def run(self, handler: Callable[[Message], object]) -> None:
        """Call `handler` with each message and acknowledge it when the handler has returned.

        An exception of the handler leaves the message unacknowledged and ends the loop.
        """
        for message in self.messages():
            handler(message)
            self.ack(message)

    def stop(self) -> None:
        """End every iteration, from any thread."""
        self._subscriber.stop()

    def close(self) -> None:
        """Stop, store what is acknowledged, and release the cursor. Idempotent."""
        self._subscriber.close()
        self._cursor.close()
        self.is_closed = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_error: object) -> None:
        try:
            if kind is None:
                self._ack_handed_out()
        finally:
            self.close()

    def __repr__(self) -> str:
        return f"<Subscription {self.name!r}, acknowledged up to {self.acked}>"

    def _open(self) -> None:
        """At the first iteration, begin the cursor's new epoch at this reader's position."""
        if self._is_open:
            self._ack_handed_out()  # iterating again counts as requesting the next message
            return
        begin_epoch(self._cursor, self._subscriber)
        self._is_open = True

    def _hand_out(self, position: Position) -> None:
        self._cursor.demand_held()
        if (unnamed := self._unnamed) is not None:
            self._unnamed = None
            if not unnamed.log:  # it was opened before there was a copy
                unnamed.log = _log_of(self._subscriber)
        self._handed_out = position

    def _continue(self, known: ContinuedLog) -> None:
        """Move the cursor from the log read so far to the log that continues it."""
        self._cursor.carry(known)
        self._cut = known.cut
        if self._handed_out is not None:  # messages before the cut are still to be acknowledged
            self._handed_out = min(self._handed_out, known.cut)

    def _at_end(self) -> None:
        """At the log's end, acknowledge skipped messages too if all delivered ones are handled."""
        if self._handed_out is None or self.acked >= self._handed_out:
            with suppress(Stopped):
                self._cursor.ack(self._subscriber.position)
        elif isinstance(self._cursor, LocalCursor):
            with suppress(Stopped):
                self._cursor.ack(START)  # stores what is acknowledged, if that is due
        self._idle()

    def _ack_handed_out(self) -> None:
        if self._is_auto and self._handed_out is not None:
            with suppress(Stopped):  # closed meanwhile: the message comes again
                self._cursor.ack(self._handed_out)
