"""The log alone: publish and read, no other process."""

import os
import shutil
import struct
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager

from benchmarks.report import Row, interleaved, seconds
from rt import Publisher, Subscriber
from rt.format.manifest import MERGED
from rt.log.files.directory import LogDirectory
from rt.log.files.disk import OsDisk
from rt.log.files.identity import new_identity
from rt.log.read.start import end_of
from sequencer.execution.executor import Executor
from sequencer.ledger.ledger import Ledger
from sequencer.planning.planner import Planner
from sequencer.planning.session_log import SessionLogs

FRAME_BYTES = 256 * 1024


@contextmanager
def directory() -> Iterator[str]:
    """A directory on the disk that is benchmarked, gone afterwards."""
    path = tempfile.mkdtemp(prefix="rt-bench-", dir=os.environ.get("RT_BENCH_DIR"))
    try:
        yield path
    finally:
        shutil.rmtree(path)


def publishing(count: int) -> list[Row]:
    """`publish` and `publish_many` of 100-byte messages, fsync `interval`."""
    payload = bytes(100)

    def one_by_one() -> float:
        with directory() as root, Publisher(root, stream="bench", session="one") as publisher:
            publish = publisher.publish

            def work() -> None:
                for _ in range(count):
                    publish(payload)
                publisher.flush("written")

            return count / seconds(work)

    def many() -> float:
        with directory() as root, Publisher(root, stream="bench", session="many") as publisher:
            batch = [payload] * 10_000

            def work() -> None:
                for _ in range(count // len(batch)):
                    publisher.publish_many(batch)

            return count / seconds(work)

    def limit() -> float:
        return count / seconds(lambda: _limit_write(count, payload))

    one, one_limit = interleaved(one_by_one, limit)
    all_at_once, many_limit = interleaved(many, limit)
    return [
        Row("publish, 100 B, one core", one, "messages/s", 1_000_000, one_limit),
        Row("publish_many, 100 B, one core", all_at_once, "messages/s", 2_500_000, many_limit),
    ]


def _limit_write(count: int, payload: bytes) -> None:
    """Join, checksum and write as many bytes in as many frames: the least any log does."""
    with directory() as root, open(os.path.join(root, "limit"), "wb", buffering=0) as file:
        per_frame = FRAME_BYTES // (len(payload) + 12)
        for _ in range(count // per_frame):
            body = b"".join([payload] * per_frame)
            file.write(struct.pack("<II", zlib.crc32(body), len(body)) + body)


def reading(count: int) -> list[Row]:
    """Iterate 100-byte messages; take 1 KiB messages in columns from the page cache."""
    with directory() as root:
        with Publisher(root, stream="bench", session="small") as publisher:
            for _ in range(count // 10_000):
                publisher.publish_many([bytes(100)] * 10_000)
        with Publisher(root, stream="bench", session="large") as publisher:
            for _ in range(count // 4 // 1000):
                publisher.publish_many([bytes(1024)] * 1000)
        return [_iterating(root, count), _batching(root)]


def _iterating(root: str, count: int) -> Row:
    def ours() -> float:
        with Subscriber(root, stream="bench", session="small", follow=False) as subscriber:
            return count / seconds(lambda: sum(1 for _ in subscriber))

    def limit() -> float:
        path = os.path.join(root, "bench", "small", "log.0.0")

        def work() -> int:
            with open(path, "rb", buffering=0) as file:
                found = 0
                while data := file.read(FRAME_BYTES):
                    places = range(0, len(data) - 112, 112)
                    found += sum(1 for _ in [data[place : place + 100] for place in places])
                return found

        return count / seconds(work)

    value, best = interleaved(ours, limit)
    return Row("iterate a Subscriber, 100 B", value, "messages/s", 1_000_000, best)


def _batching(root: str) -> Row:
    path = os.path.join(root, "bench", "large", "log.0.0")
    size = os.path.getsize(path)

    def ours() -> float:
        with Subscriber(root, stream="bench", session="large", follow=False) as subscriber:
            return size / 1e9 / seconds(lambda: [batch.columns for batch in subscriber.batches()])

    def limit() -> float:
        def work() -> None:
            with open(path, "rb", buffering=0) as file:
                while data := file.read(FRAME_BYTES):
                    zlib.crc32(data)

        return size / 1e9 / seconds(work)

    value, best = interleaved(ours, limit)
    return Row("batches(), 1 KiB, page cache", value, "GB/s", 1.0, best)


def merging(megabytes: int) -> list[Row]:
    """Merge one session, against copying the same file with copy_file_range."""
    with directory() as root:
        with Publisher(root, stream="bench", session="one") as publisher:
            for _ in range(megabytes):
                publisher.publish_many([bytes(1012)] * 1024)
        source = os.path.join(root, "bench", "one")
        size = os.path.getsize(os.path.join(source, "log.0.0"))
        ours, limit = interleaved(
            lambda: size / 1e6 / seconds(lambda: _merge_all(root, source)),
            lambda: size / 1e6 / seconds(lambda: _copy_all(root, source)),
        )
    return [Row("merge, 1 KiB", ours, "MB/s", 0.7, limit, is_ratio=True)]


def _merge_all(root: str, source: str) -> None:
    disk, target = OsDisk(), os.path.join(root, "out")
    logs, ledger = SessionLogs(disk, os.path.join(root, "bench")), Ledger()
    identity = new_identity(MERGED, "bench", "out", created_ns=1)
    executor, planner = Executor(disk, target, identity, ledger, logs), Planner(logs)
    durable = {"one": end_of(LogDirectory(source))}
    index = 0
    while instruction := planner.plan(ledger, durable, 1):
        index += 1
        executor.execute(index, 1, instruction)
    executor.close()
    logs.close()
    shutil.rmtree(target)


def _copy_all(root: str, source: str) -> None:
    target = os.path.join(root, "copy")
    with open(os.path.join(source, "log.0.0"), "rb") as old, open(target, "wb") as new:
        while os.copy_file_range(old.fileno(), new.fileno(), 4 << 20):
            pass
    os.unlink(target)


def rows(quick: bool) -> list[Row]:
    """All of them."""
    count = 1_000_000 if quick else 5_000_000
    return publishing(count) + reading(count) + merging(200 if quick else 800)
