"""A new subscriber of a stream that has much already: how long until its first live message."""

import os
import statistics
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from benchmarks.log import directory
from benchmarks.report import Row
from benchmarks.stream import nodes
from rt.client.client import connect
from rt.client.publisher import ClientPublisher
from rt.limits import KIB, MIB
from rt.position import FILE_BYTES_MAX

FILES = 90  # as a stream of 90 GiB has; the copy notes for each that it does not have it
FILE_BYTES = 128 * KIB
TURNS = 5
PAUSE_S = 0.001
WAIT_S = 300.0


def rows(quick: bool) -> list[Row]:
    """A stream of many files, and one whose only file is nearly full: that file is copied."""
    few_s, few_bytes = measured(FILES * FILE_BYTES, FILE_BYTES)
    many_s, many_bytes = measured(10 * FILES * FILE_BYTES, FILE_BYTES)
    size = (256 * MIB if quick else FILE_BYTES_MAX) - 16 * MIB
    large_s, large_bytes = measured(size, FILE_BYTES_MAX)
    name = "latest: first live message"
    return [
        Row(f"{name}, {FILES} files, the last small", few_s, "s", 1.0, at_most=True),
        Row(f"{name}, {10 * FILES} files, the last small", many_s, "s", 0),
        Row("latest: bytes copied by then", max(few_bytes, many_bytes) / KIB, "KiB", 0),
        Row(f"{name}, the last file has {size // MIB} MiB", large_s, "s", 0),
        Row("latest: bytes copied by then", large_bytes / MIB, "MiB", 0),
    ]


def measured(size: int, file_bytes: int) -> tuple[float, int]:
    """Have new subscribers of a stream of so many bytes; return the median time, and their bytes.

    Args:
        size: what the stream holds before, more or less.
        file_bytes: the size of a file of the merged log.
    """
    with directory() as root, nodes(root, 1, f"file_bytes = {file_bytes}\nreserve = 0\n"):
        config = os.path.join(root, "clients.toml")
        with connect(config, root=os.path.join(root, "pub")) as client:
            publisher = client.publisher("live")
            fill(publisher, size)
            with publishing(publisher):
                found = [first(config, os.path.join(root, f"sub{n}")) for n in range(TURNS)]
    return statistics.median(took_s for took_s, _ in found), max(each for _, each in found)


def fill(publisher: ClientPublisher, size: int) -> None:
    """Publish and merge so many bytes."""
    payload = bytes(8 * KIB)
    for _ in range(size // len(payload) // 128):
        publisher.publish_many([payload] * 128)
    publisher.flush("merged", WAIT_S)


@contextmanager
def publishing(publisher: ClientPublisher) -> Iterator[None]:
    """Publish small messages all the time."""
    stopping = threading.Event()

    def run() -> None:
        while not stopping.wait(PAUSE_S):
            publisher.publish(b"live")

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        stopping.set()
        thread.join()


def first(config: str, root: str) -> tuple[float, int]:
    """Connect with an empty directory; return the time to a live message, and what was copied."""
    began_ns = time.time_ns()
    with connect(config, root=root) as client:
        reader = client.subscriber(start="latest", timeout_s=WAIT_S)
        next(message for message in reader if message.time_ns >= began_ns)
        took_s = (time.time_ns() - began_ns) / 1e9
        copied = sum(
            os.path.getsize(os.path.join(path, name))
            for path, _, names in os.walk(root)
            for name in names
            if name.startswith("log.") and not name.endswith(".idx")
        )
    return took_s, copied
