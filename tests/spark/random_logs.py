"""Random merged logs, made by our publisher and executor, and a plain decoder as reference."""

import json
import os
import struct
from collections.abc import Iterator
from random import Random
from typing import NamedTuple

import zstandard

from rt import Publisher
from rt.format.manifest import MERGED, Archived
from rt.log.files.directory import LogDirectory
from rt.log.files.disk import OsDisk
from rt.log.files.identity import new_identity
from rt.log.notify.confirmations import Level
from rt.log.read.start import end_of
from rt.log.write.batcher import Batching
from rt.log.write.writer import WriterSettings
from rt.position import FILE_BYTES_MAX, Position
from sequencer.execution.executor import Executor
from sequencer.ledger.ledger import Ledger
from sequencer.planning.planner import Planner
from sequencer.planning.session_log import SessionLogs

STREAM = "flights"
NOW_NS = 1_357_017_420_000_000_000


class Merging:
    """Merges a stream's sessions as a node does, on request."""

    def __init__(self, root: str, file_bytes_max: int = FILE_BYTES_MAX) -> None:
        self.root = root
        self.directory = os.path.join(root, STREAM + ".merged", "out")
        self.logs = SessionLogs(OsDisk(), os.path.join(root, STREAM))
        self.ledger = Ledger(file_bytes_max=file_bytes_max)
        identity = new_identity(MERGED, STREAM, "out", created_ns=1)
        self.executor = Executor(OsDisk(), self.directory, identity, self.ledger, self.logs)
        self.planner = Planner(self.logs)

    def merge(self) -> None:
        """Merge all that was published."""
        sessions = sorted(os.listdir(os.path.join(self.root, STREAM)))
        durable = {
            name: end_of(LogDirectory(os.path.join(self.root, STREAM, name))) for name in sessions
        }
        while True:
            index = self.ledger.index + 1
            time_ns = NOW_NS + 1_000_000 * index
            instruction = self.planner.plan(self.ledger, durable, time_ns)
            if instruction is None:
                return
            self.executor.execute(index, 1, instruction)

    def archive(self, count: int) -> list[Position]:
        """Archive the oldest files that are left, as the archiver would."""
        manifest = self.executor.appender.manifest
        files = [file for file in manifest.order if file not in manifest.archived][:count]
        for file in files:
            self.executor.appender.archive(Archived(file, NOW_NS, "limit"))
        return files

    def close(self) -> None:
        """Release the files; the index of the last one is written."""
        self.executor.close()
        self.logs.close()

    def __enter__(self) -> "Merging":
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()


def publish_random(root: str, random: Random, session: str, group: str = "") -> None:
    """Publish one life of a publisher: frames of any size, keys or none, compressed or not."""
    writer = WriterSettings(
        compression=random.choice((0, 3)), file_bytes_max=random.choice((1 << 16, 1 << 20))
    )
    with Publisher(
        root, stream=STREAM, session=session, group=group, writer=writer,
        batching=Batching(frame_bytes=random.choice((1024, 8192, 65536))),
    ) as publisher:  # fmt: skip
        for _ in range(random.randrange(1, 6)):
            _publish_some(publisher, random, grouped=bool(group))
            if random.random() < 0.3:
                publisher.skip_to(publisher.next_sequence + random.randrange(50))
        publisher.flush(Level.WRITTEN)


def _publish_some(publisher: Publisher, random: Random, *, grouped: bool) -> None:
    count = random.choice((1, 1, 2, 40, 400))
    first = publisher.next_sequence
    seed = Random(first) if grouped else random  # redundant publishers publish the same
    payloads = [seed.randbytes(seed.choice((0, 1, 20, 100))) for _ in range(count)]
    times = [NOW_NS + 997 * (first + place) for place in range(count)]
    keys = None
    if (first % 2) if grouped else random.random() < 0.5:
        keys = [b"" if place % 3 == 0 else b"k%d" % (place % 7) for place in range(count)]
    publisher.publish_many(payloads, keys, times)


def random_log(root: str, seed: int, *, file_bytes_max: int = 1 << 17, rounds: int = 5) -> Merging:
    """Return sessions of several runs, two of them in a group, merged into files that roll."""
    random = Random(seed)
    merging = Merging(root, file_bytes_max)
    for _ in range(rounds):
        for session, group in (("jfk", ""), ("ewr", ""), ("one", "g"), ("two", "g")):
            if random.random() < 0.8:
                publish_random(root, random, session, group)
        merging.merge()
    return merging


class PlainRow(NamedTuple):
    """A message as the plain decoder reads it."""

    position: int
    time_ns: int
    merge_time_ns: int
    session: str
    seq: int
    number: int
    key: bytes | None
    payload: bytes


def plain_rows(directory: str) -> list[PlainRow]:
    """Decode a merged log by its format alone: struct, one message after another."""
    return [row for name, data in _files(directory) for row in _file_rows(name, data)]


def _files(directory: str) -> Iterator[tuple[tuple[int, int], bytes]]:
    ends = {}
    with open(os.path.join(directory, "manifest"), "rb") as file:
        for line in file.read().splitlines():
            fields = json.loads(line.rpartition(b" ")[0])
            if fields["what"] == "rolled":
                ends[fields["file"]] = fields["end"]
    names = [n for n in os.listdir(directory) if n.startswith("log.") and not n.endswith(".idx")]
    for name in sorted(names, key=lambda name: tuple(map(int, name.split(".")[1:]))):
        with open(os.path.join(directory, name), "rb") as file:
            data = file.read()
        _, run, roll = name.split(".")
        yield (int(run), int(roll)), data[: ends.get(name, len(data))]


def _file_rows(place: tuple[int, int], data: bytes) -> Iterator[PlainRow]:
    base = place[0] << 44 | place[1] << 30
    at, number, skip, session, merge_ns = 0, 0, 0, "", 0
    while at + 64 <= len(data):
        header = struct.unpack_from("<4sIQQqQIIIIBBBBI", data, at)
        _, _, _, sequence, time_ns, _, count, length, raw, _, kind, codec, columns, _, _ = header
        size = (max(64 + length, count if kind == 0 else 0) + 7) & ~7
        if at + size > len(data):
            return
        body = data[at + 64 : at + 64 + length]
        if kind == 1:
            number, merge_ns = sequence, time_ns
            skip = struct.unpack_from("<QQQQI", body)[4]
            session = body[56:].decode()
        else:
            if codec:
                body = zstandard.decompress(body, raw)
            for row in _frame_rows(body, count, columns):
                index, row_time, key, payload = row
                if skip:
                    skip -= 1
                    continue
                yield PlainRow(
                    base + at + index, row_time, merge_ns, session, sequence + index, number,
                    key or None, payload,
                )  # fmt: skip
                number += 1
        at += size


def _frame_rows(body: bytes, count: int, columns: int) -> Iterator[tuple[int, int, bytes, bytes]]:
    times = struct.unpack_from(f"<{count}q", body)
    offsets = struct.unpack_from(f"<{count + 1}I", body, 8 * count)
    start = 12 * count + 4
    keys = (0,) * (count + 1)
    if columns:
        keys = struct.unpack_from(f"<{count + 1}I", body, start)
        start += 4 * count + 4
    key_start = start + offsets[-1]
    for index in range(count):
        payload = body[start + offsets[index] : start + offsets[index + 1]]
        key = body[key_start + keys[index] : key_start + keys[index + 1]]
        yield index, times[index], key, payload
