"""Buffer a flow on disk: `python examples/flow_buffer.py ROOT SESSION [ITEMS]`.

A fast producer and a slow consumer, with one operator between them: `through_log`. The producer
never waits, memory stays flat however far the consumer is behind, and what it has not handled when
the program ends is handled first by the next run. Prints what was handled.
"""

import asyncio
import sys
from collections.abc import AsyncIterable, AsyncIterator
from contextlib import suppress
from pathlib import Path

from aiostream import pipable_operator, pipe, stream, streamcontext

from rt import Message, Position, Publisher, RtError, Subscriber

STREAM = "flow"


@pipable_operator
async def through_log(
    source: AsyncIterable[bytes], root: str, session: str, start: Position
) -> AsyncIterator[Message]:
    """Pass items through a session's log, in order, each once; read it from `start`."""
    with Publisher(root, stream=STREAM, session=session) as publisher:
        publisher.flush("written")  # so that there is a log

        async def fill() -> None:
            async with streamcontext(source) as items:
                async for item in items:
                    publisher.publish(item)
            publisher.flush("written")

        filling = asyncio.create_task(fill())
        try:
            with Subscriber(root, stream=STREAM, session=session, start=start) as log:
                while True:
                    is_last = filling.done()
                    batch = await asyncio.to_thread(log.next_batch, 0 if is_last else 0.1)
                    for message in [] if batch is None else batch.messages():
                        yield message
                    if batch is None and is_last:
                        filling.result()  # raises what the producer raised
                        return
        finally:
            filling.cancel()


async def produce(count: int) -> AsyncIterator[bytes]:
    """Yield numbers as fast as they are taken."""
    for number in range(count):
        yield b"%d" % number
        await asyncio.sleep(0)


async def main(root: str, session: str, items: str = "20") -> None:
    """Let a flow pass; the consumer keeps its place in a file beside the log."""
    if not (items.isascii() and items.isdecimal()):
        raise ValueError(f"ITEMS is {items!r}; use a whole number")
    place = Path(root, f"{session}.place")
    start = Position(0)
    with suppress(FileNotFoundError):
        start = Position.parse(place.read_text(encoding="ascii"))

    async def handle(message: Message) -> int:
        await asyncio.sleep(0.001)  # slow
        new = place.with_suffix(".new")
        new.write_text(str(message.next_position), encoding="ascii")
        new.replace(place)
        return int(message.payload)

    flow = (
        stream.iterate(produce(int(items)))
        | through_log.pipe(root, session, start)
        | pipe.map(handle, ordered=True, task_limit=1)
    )
    async with flow.stream() as handled:
        async for number in handled:
            print(number, flush=True)


if __name__ == "__main__":
    if not 3 <= len(sys.argv) <= 4:
        sys.exit(__doc__)
    try:
        asyncio.run(main(*sys.argv[1:]))
    except (RtError, OSError, ValueError) as error:
        sys.exit(f"flow_buffer: {error}")
