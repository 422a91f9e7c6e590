"""A thousand sessions through three nodes, beside one: what they carry, and how soon they merge.

The publishers are one process, `rt push` is another. Both cases hand over as much, in calls of the
same size, and wait until all is merged. Then one session at a time publishes a message and waits.
"""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from statistics import median, quantiles

from benchmarks.log import directory
from benchmarks.report import Row
from benchmarks.stream import SPAWN, STREAM, Address, nodes
from replicator.push.client import PushClient
from rt import Fsync, Publisher, WriterSettings
from rt.net.addresses import parse_address
from rt.net.authority.certificates import certificate_files
from rt.net.tls import Contexts, client_context

SESSIONS = 1000
# Calls of `publish_many` by the messages of each; the sessions take turns. A third for a quick run.
CALLS = {400: 12_000, 4000: 3000}
FLUSHES = 600
GAP_S = 0.01  # between two of them
TURNS = 2
WAIT_S = 300.0
_PLACE = "pub"
Figures = tuple[float, float, float]  # messages a second, p50 and p99 of a flush in ms


def rows(quick: bool) -> list[Row]:
    """One session and a thousand in turn, so that a slow phase of the machine meets both."""
    found: dict[tuple[int, int], list[Figures]] = {}
    for size, calls in CALLS.items():
        for count in (1, SESSIONS) * TURNS:
            case = _case(count, size, calls // 3 if quick else calls)
            found.setdefault((size, count), []).append(case)
    middle = {key: [median(each) for each in zip(*cases, strict=True)]
              for key, cases in found.items()}  # fmt: skip
    made = [
        Row(f"{SESSIONS:,} sessions, 100 B, three nodes, calls of {size}; limit: one session",
            middle[size, SESSIONS][0], "/s", 0.7, middle[size, 1][0], is_ratio=True)
        for size in CALLS
    ]  # fmt: skip
    one, many = (middle[min(CALLS), count] for count in (1, SESSIONS))
    flushed = "one message of 100 B to merged, three nodes,"
    return [
        *made,
        Row(f"{flushed} one of {SESSIONS:,} silent sessions, p50; limit: of one", many[1], "ms",
            2.0, one[1], at_most=True),
        Row("the same, p99", many[2], "ms", 10.0, one[2], at_most=True),
    ]  # fmt: skip


def _case(count: int, size: int, calls: int) -> Figures:
    """Measure that many sessions, with nodes of their own: of others they would have work left."""
    os.sync()
    with directory() as root, nodes(root, 3) as (places, _):
        addresses = [parse_address(place.address) for place in places]
        with _child(_push, root, addresses), _child(_publish, root, count) as publishing:
            publishing.recv()
            publishing.send((size, calls))
            figures: Figures = publishing.recv()
    return figures


@contextmanager
def _child(work: Callable[..., None], *arguments: object) -> Iterator[Connection]:
    """Run a process, and wait for its end."""
    here, there = SPAWN.Pipe()
    process = SPAWN.Process(target=work, args=(*arguments, there), daemon=True)
    process.start()
    there.close()
    try:
        yield here
    finally:
        here.close()
        process.join()


def _push(root: str, addresses: list[Address], there: Connection) -> None:
    """Ship the sessions until the pipe is closed; the target of a child process."""
    contexts = Contexts(certificate_files(os.path.join(root, "certs"), "publisher"), client_context)
    push = PushClient(os.path.join(root, _PLACE), STREAM, addresses, contexts)
    push.start()
    with suppress(EOFError):
        there.recv()
    push.stop()


def _publish(root: str, count: int, there: Connection) -> None:
    """Publish to that many sessions by turns; the target of a child process."""
    writer = WriterSettings(fsync=Fsync.INTERVAL)
    place = os.path.join(root, _PLACE)
    publishers = [
        Publisher(place, stream=STREAM, session=f"s{number}", writer=writer)
        for number in range(count)
    ]
    for publisher in publishers:
        publisher.publish(b"first")
    _flush(publishers)
    there.send("ready")
    size, calls = there.recv()
    messages = [bytes(100)] * size
    began_s = time.perf_counter()
    for turn in range(calls):
        publishers[turn % count].publish_many(messages)
    _flush(publishers)
    rate = calls * size / (time.perf_counter() - began_s)
    os.sync()  # or what was just published is still being written back
    delays = sorted(_delay_ms(publishers[turn % count]) for turn in range(FLUSHES))
    there.send((rate, median(delays), quantiles(delays, n=100)[-1]))
    for publisher in publishers:
        publisher.close()


def _flush(publishers: list[Publisher]) -> None:
    for publisher in publishers:
        publisher.flush("merged", WAIT_S)


def _delay_ms(publisher: Publisher) -> float:
    time.sleep(GAP_S)
    began_s = time.perf_counter()
    publisher.publish(bytes(100))
    publisher.flush("merged", WAIT_S)
    return (time.perf_counter() - began_s) * 1e3
