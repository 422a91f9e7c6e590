"""A client for asyncio: the names and arguments of `rt.client.client`, with awaited calls."""

import asyncio
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, Self, Unpack, overload

from rt.client.arguments import (
    CursorArguments,
    LastValueArguments,
    MemberArguments,
    PublisherArguments,
    SubscriberArguments,
)
from rt.client.client import Client, Readers
from rt.client.client import connect as connect_blocking
from rt.client.groups.group import Group
from rt.client.groups.group_subscriber import GroupSubscriber
from rt.client.publisher import ClientPublisher
from rt.client.readers.last_value import LastValue
from rt.client.readers.registered import Registered
from rt.client.readers.subscription import Subscription
from rt.client.receipts import Receipt
from rt.errors import FlushTimeout, Misuse
from rt.events import Dropped
from rt.format.headers import Headers
from rt.log.notify.confirmations import Confirmations, Confirmed, Level
from rt.log.write.checked import Bytes, checked_seconds
from rt.position import Position
from rt.subscriber import Subscriber


class AsyncPublisher:
    """`ClientPublisher` for asyncio. Made by `AsyncClient.publisher`.

    Publishing appends to a local file and needs no thread; waiting for a confirmation does not
    block the event loop. Cancelling a wait does not cancel the message.
    """

    def __init__(self, publisher: ClientPublisher) -> None:
        self._publisher = publisher

    @property
    def name(self) -> str:
        """The name of the session."""
        return self._publisher.name

    @property
    def is_closed(self) -> bool:
        """Whether `close` was called, in which case nothing more can be published."""
        return self._publisher.is_closed

    @property
    def next_sequence(self) -> int:
        """The sequence number that the next message gets."""
        return self._publisher.next_sequence

    def skip_to(self, sequence: int) -> None:
        """Give the next message the number `sequence`; see `rt.Publisher.skip_to`."""
        self._publisher.skip_to(sequence)

    async def publish(
        self,
        payload: Bytes,
        key: Bytes | None = None,
        time_ns: int | None = None,
        *,
        headers: Headers | None = None,
        confirm: str | Level | None = None,
        timeout_s: float | None = None,
    ) -> int:
        """Publish one message and return its sequence number; with `confirm`, wait for that level.

        Raises:
            FlushTimeout: `confirm` was not reached in time; the message stays and will be shipped.
            RtError: as for `ClientPublisher.publish`.
        """
        if headers:
            await self.await_headers()
        if confirm is None:
            return self._publisher.publish(payload, key, time_ns, headers=headers)
        timeout_s = self._publisher.timeout_s if timeout_s is None else timeout_s
        timeout_s = checked_seconds(timeout_s, "timeout_s")
        sequence = self._publisher.next_sequence
        receipt = self._publisher.publish_future(
            payload, key, time_ns, headers=headers, confirm=confirm
        )
        try:
            await asyncio.wait_for(asyncio.wrap_future(receipt), timeout_s)
        except TimeoutError as error:
            if isinstance(error, FlushTimeout):
                raise
            raise receipt.late(timeout_s) from None
        return sequence

    def publish_future(
        self,
        payload: Bytes,
        key: Bytes | None = None,
        time_ns: int | None = None,
        *,
        headers: Headers | None = None,
        confirm: str | Level | None = None,
    ) -> "asyncio.Future[Confirmed]":
        """Publish one message and return an awaitable of its confirmation."""
        receipt: Receipt = self._publisher.publish_future(
            payload, key, time_ns, headers=headers, confirm=confirm
        )
        return asyncio.wrap_future(receipt)

    def publish_many(
        self,
        payloads: Iterable[Bytes],
        keys: Iterable[Bytes] | None = None,
        times_ns: Iterable[int] | None = None,
        *,
        headers: Iterable[Headers | None] | None = None,
    ) -> range:
        """Publish messages in order and return their sequence numbers."""
        return self._publisher.publish_many(payloads, keys, times_ns, headers=headers)

    async def await_headers(self) -> None:
        """Wait until all nodes can read headers; see `ClientPublisher.await_headers`.

        Without this call, the first publishing call with headers may block the event loop for up to
        5 seconds.
        """
        await asyncio.to_thread(self._publisher.await_headers)

    async def flush(
        self, level: str | Level | None = None, timeout_s: float | None = None
    ) -> Confirmed:
        """Wait until everything published so far has reached `level`."""
        return await asyncio.to_thread(self._publisher.flush, level, timeout_s)

    def confirmed(self) -> Confirmations:
        """Return how far the nodes have confirmed the session."""
        return self._publisher.confirmed()

    def dropped(self) -> list[Dropped]:
        """Return the ranges of messages that the session has dropped because it was full."""
        return self._publisher.dropped()

    async def await_consumed(
        self, place: Position | Confirmed, cursor: str, timeout_s: float = 30.0
    ) -> None:
        """Wait until a registered cursor has acknowledged all messages before `place`."""
        await asyncio.to_thread(self._publisher.await_consumed, place, cursor, timeout_s)

    async def close(self, timeout_s: float = 10.0) -> bool:
        """Close the session; result and errors as for `ClientPublisher.close`."""
        return await asyncio.to_thread(self._publisher.close, timeout_s)

    def __repr__(self) -> str:
        return f"<Async{repr(self._publisher)[1:]}"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self.close()


class AsyncClient:
    """`Client` for asyncio; its subscribers are iterated by `async for`."""

    def __init__(self, client: Client) -> None:
        self._client = client

    @property
    def stream(self) -> str:
        """Name of the stream."""
        return self._client.stream

    async def publisher(
        self, session: str, **arguments: Unpack[PublisherArguments]
    ) -> AsyncPublisher:
        """Open a session for publishing; arguments as for `Client.publisher`.

        Raises:
            Misuse: as for `Client.publisher`, or a limit is set to block, which would block the
                event loop.
        """
        flight, disk = arguments.get("flight"), arguments.get("disk_limit")
        if disk is not None and disk.drops and disk.timeout_s is None:
            arguments["disk_limit"] = replace(disk, timeout_s=0.0)
        if any(limit is not None and limit.on_full == "block" for limit in (flight, disk)):
            raise Misuse("a limit that blocks stops the event loop; use on_full='error'")
        opened = await asyncio.to_thread(self._client.publisher, session, **arguments)
        return AsyncPublisher(opened)

    @overload
    async def subscriber(
        self, *, cursor: str | Registered, **arguments: Unpack[CursorArguments]
    ) -> Subscription: ...
    @overload
    async def subscriber(
        self, *, group: str | Group, **arguments: Unpack[MemberArguments]
    ) -> GroupSubscriber: ...
    @overload
    async def subscriber(self, **arguments: Unpack[SubscriberArguments]) -> Subscriber: ...
    async def subscriber(self, **arguments: Any) -> Readers:
        """Read the merged stream; arguments as for `Client.subscriber`."""
        read: Callable[..., Readers] = self._client.subscriber
        return await asyncio.to_thread(read, **arguments)

    async def last_value(self, **arguments: Unpack[LastValueArguments]) -> LastValue:
        """Return the last message of each key; arguments as for `Client.last_value`."""
        return await asyncio.to_thread(self._client.last_value, **arguments)

    async def wait_caught_up(self, timeout_s: float = 30.0) -> None:
        """Wait until the local copy has all messages that were merged before this call."""
        await asyncio.to_thread(self._client.wait_caught_up, timeout_s)

    async def reload(self) -> list[str]:
        """Read the configuration again; result and errors as for `Client.reload`."""
        return await asyncio.to_thread(self._client.reload)

    async def close(self, timeout_s: float = 10.0) -> None:
        """Close all publishers and readers, as `Client.close` does."""
        await asyncio.to_thread(self._client.close, timeout_s)

    def __repr__(self) -> str:
        return f"<Async{repr(self._client)[1:]}"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self.close()


def connect(
    config: str | os.PathLike[str] | None = None,
    *,
    root: str | os.PathLike[str] | None = None,
    stream: str | None = None,
    nodes: str | Sequence[str] | None = None,
    certs: str | os.PathLike[str] | None = None,
    identity: str | None = None,
    keep: str | None = None,
) -> AsyncClient:
    """Return a client for asyncio; arguments and errors as for `rt.connect`.

    Examples:
        >>> from rt.client import aio
        >>> aio.connect(nodes=["localhost:7420"], stream="flights").stream
        'flights'
    """
    return AsyncClient(
        connect_blocking(
            config, root=root, stream=stream, nodes=nodes, certs=certs, identity=identity, keep=keep
        )
    )
