"""Buffer a flow on disk: `python examples/flow.py ROOT SESSION [ITEMS]`.

A fast source feeds a slow consumer. In memory the difference would grow until the program ends;
here one operator of ReactiveX puts a log between them:

    source.pipe(buffered(ROOT, SESSION)).subscribe(consumer)

The source never waits, and what the consumer has not handled is still there when the program was
killed: run it again, and it goes on with the first item that was not handled. At most the last one
comes twice.
This sends ITEMS numbers as fast as it can, and prints each as the consumer handles it.
"""

import os
import sys
import threading
from collections.abc import Callable

from rt import Message, Position, Publisher, RtError, Subscriber

try:
    import reactivex
    from reactivex import Observable, abc
    from reactivex.disposable import Disposable
except ImportError:
    sys.exit("flow: reactivex is missing: pip install reactivex")

STREAM = "flow"
POLL_S = 0.1  # between two looks whether the source has ended


def buffered(root: str, session: str) -> Callable[[Observable[bytes]], Observable[Message]]:
    """Return an operator that writes items to a log, and hands them on at the consumer's pace."""

    def operator(source: Observable[bytes]) -> Observable[Message]:
        def subscribe(
            consumer: abc.ObserverBase[Message], scheduler: abc.SchedulerBase | None = None
        ) -> abc.DisposableBase:
            publisher, ended = Publisher(root, stream=STREAM, session=session), threading.Event()
            reading = threading.Thread(target=hand_on, args=(root, session, ended, consumer))
            publisher.flush("written")  # so that there is a log to read
            reading.start()

            def end() -> None:
                publisher.close()
                ended.set()

            def fail(error: Exception) -> None:
                end()
                consumer.on_error(error)

            source.subscribe(publisher.publish, fail, end, scheduler=scheduler)
            return Disposable(end)

        return Observable(subscribe)

    return operator


def hand_on(
    root: str, session: str, ended: threading.Event, consumer: abc.ObserverBase[Message]
) -> None:
    """Give a consumer what it has not handled yet, until the source has ended and all was read."""
    place = os.path.join(root, STREAM, f"{session}.handled")
    with Subscriber(root, stream=STREAM, session=session, start=handled(place)) as reader:
        while True:
            was_ended = ended.is_set()  # before the look, which then finds everything
            for message in reader.messages(POLL_S):
                try:
                    consumer.on_next(message)
                except Exception as error:  # noqa: BLE001 - whatever a consumer raises
                    consumer.on_error(error)
                    return
                with open(place + ".new", "w", encoding="ascii") as file:
                    file.write(str(message.next_position))
                os.replace(place + ".new", place)
            if was_ended:
                consumer.on_completed()
                return


def handled(place: str) -> Position:
    """Return where to go on: after the last item that the consumer has handled."""
    try:
        with open(place, encoding="ascii") as file:
            return Position.parse(file.read())
    except FileNotFoundError:
        return Position(0)


def main(root: str, session: str, items: str = "1000") -> None:
    """Send as fast as possible, and print slowly."""
    source: Observable[bytes] = reactivex.from_iterable(b"%d" % each for each in range(int(items)))
    ended, failures = threading.Event(), list[Exception]()

    def fail(error: Exception) -> None:
        failures.append(error)
        ended.set()

    source.pipe(buffered(root, session)).subscribe(
        lambda message: print(message.sequence, message.payload.decode(), flush=True),
        fail,
        ended.set,
    )
    ended.wait()
    if failures:
        raise failures[0]


if __name__ == "__main__":
    if not 3 <= len(sys.argv) <= 4:
        sys.exit("usage: python examples/flow.py ROOT SESSION [ITEMS]")
    try:
        main(*sys.argv[1:])
    except (RtError, OSError, ValueError) as error:
        sys.exit(f"flow: {error}")
