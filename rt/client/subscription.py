"""Subscription: the messages of a stream under a name that is remembered."""

from collections.abc import AsyncIterator, Callable, Collection, Iterator
from typing import Final, Literal, Self

from rt.client.cursor import LocalCursor
from rt.errors import Misuse
from rt.events import Event
from rt.format.message import Batch, Message
from rt.log.directory import LogDirectory
from rt.log.start import Start
from rt.position import Position
from rt.subscriber import OnGap, Subscriber

Acknowledgement = Literal["auto", "explicit"]
_ACKNOWLEDGEMENTS: Final = ("auto", "explicit")


class Subscription:
    """Reads a stream from where the last reader of this cursor stopped acknowledging.

    Delivery is at least once: after a crash the messages since the last stored acknowledgement
    come again. With `ack="auto"` a message is acknowledged when the next one is asked for, or when
    the `with` block ends without an exception, never before it was handled. With `ack="explicit"`
    only `ack` acknowledges.

    One thread iterates; `stop` and `ack` may come from any.
    """

    def __init__(
        self,
        root: str,
        stream: str,
        cursor: LocalCursor,
        *,
        start: Start = "earliest",
        ack: Acknowledgement = "auto",
        follow: bool = True,
        sessions: Collection[str] | None = None,
        key_prefix: bytes = b"",
        where: str | Collection[str] | None = None,
        on_gap: OnGap = "raise",
        on_poison: OnGap = "raise",
        on_event: Callable[[Event], None] | None = None,
    ) -> None:
        """Take up the cursor; it is released by `close`.

        Args:
            root: directory under which streams live.
            stream: name of the stream.
            cursor: held by this process.
            start: where a new cursor begins; one that exists goes on where it is.
            ack: `auto` or `explicit`.
            follow: as of `rt.Subscriber`, and so are the rest.
            sessions: names or globs of the sessions wanted.
            key_prefix: only messages whose key begins with this.
            where: conditions on session, key and fields of a JSON payload, as of `rt.Subscriber`.
            on_gap: `raise`, `notify` or `skip`.
            on_poison: the same, for a frame whose messages cannot be decoded.
            on_event: is called with each event.

        Raises:
            Misuse: an argument is wrong, or the cursor belongs to another log.
        """
        if ack not in _ACKNOWLEDGEMENTS:
            raise Misuse(f"ack is {ack!r}; use auto or explicit")
        self._cursor = cursor
        self._is_auto = ack == "auto"
        self._handed_out: Position | None = None
        begin = start if cursor.is_new else cursor.state.position
        self._subscriber = Subscriber(
            root, stream=stream, start=begin, follow=follow, sessions=sessions,
            key_prefix=key_prefix, where=where, on_gap=on_gap, on_poison=on_poison,
            on_event=on_event,
        )  # fmt: skip
        self._is_open = False

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

    def messages(self, timeout_s: float | None = None) -> Iterator[Message]:
        """Iterate over messages; as `rt.Subscriber.messages`."""
        self._open()
        for message in self._subscriber.messages(timeout_s):
            self._handed_out = message.next_position
            yield message
            self._ack_handed_out()

    def batches(self, timeout_s: float | None = None) -> Iterator[Batch]:
        """Iterate over whole frames; `auto` acknowledges a frame when the next is asked for."""
        self._open()
        for batch in self._subscriber.batches(timeout_s):
            self._handed_out = batch.next_position
            yield batch
            self._ack_handed_out()

    async def __aiter__(self) -> AsyncIterator[Message]:
        """Iterate inside asyncio; waiting happens in a thread."""
        self._open()
        async for message in self._subscriber:
            self._handed_out = message.next_position
            yield message
            self._ack_handed_out()

    def ack(self, upto: Message | Batch | Position | None = None, *, sync: bool = False) -> None:
        """Acknowledge everything up to and including a message, or all that was handed out.

        Args:
            upto: a message, a batch, or the position after what is acknowledged.
            sync: store it durably before this returns; otherwise within a second.

        Raises:
            OSError: it cannot be stored now; it is kept, and tried with the next one.
        """
        if isinstance(upto, Message | Batch):
            upto = upto.next_position
        position = self._handed_out if upto is None else upto
        if position is not None:
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

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_error: object) -> None:
        if kind is None and self._is_auto:
            self.ack()
        self.close()

    def __repr__(self) -> str:
        return f"<Subscription {self.name!r}, acknowledged up to {self.acked}>"

    def _open(self) -> None:
        """Begin an epoch, once; the place is resolved here, so that a crash comes back to it."""
        if self._is_open:
            return
        log = LogDirectory(self._subscriber.directory)
        log.refresh()
        identity = log.manifest.identity
        log.close()
        position = self._subscriber.position if identity else self.acked
        self._cursor.open_at(position, identity.id if identity else "")
        self._is_open = True

    def _ack_handed_out(self) -> None:
        if self._is_auto and self._handed_out is not None:
            self._cursor.ack(self._handed_out)
