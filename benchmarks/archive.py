"""Retention: what GC costs merging, and what listing 100,000 files costs."""

import os
import subprocess
import sys
import threading
import time

from archiver.decide import decide
from archiver.lease import RolledFile
from archiver.policy import MINUTE_NS, Policy
from benchmarks.log import directory
from benchmarks.report import Row, seconds
from replicator.push.client import PushClient
from rt.config.settings import load
from rt.errors import Refused
from rt.format.manifest import MERGED, Archived, Rolled, encode_entry
from rt.inspect.history import history
from rt.log.files.identity import new_identity
from rt.log.write.writer import WriterSettings
from rt.net.authority.certificates import certificate_files
from rt.net.tls import Contexts, client_context
from rt.node.founding.cluster_files import init_local_cluster
from rt.node.host.node import Node
from rt.node.settings.node import NodeSettings
from rt.position import FILE_BYTES_MAX, Position
from rt.publisher import Publisher
from sequencer.ledger.instruction import Note

STREAM = "bench"
FILE_BYTES = 64 << 10
EPOCH_NS = 1_357_017_420_000_000_000  # when the first file of a history began
FILE_NS = 300_123_456_789  # and how long each took to fill: 100,000 are a year


def rows(quick: bool) -> list[Row]:
    """All figures of retention."""
    return [*collection(quick), policy_row(), *history_rows(quick)]


class Stream:
    """One node in this process, a publisher, and a pusher."""

    def __init__(self, root: str, **settings: object) -> None:
        place = init_local_cluster(root, STREAM, 1)[0]
        options = {"snapshot_s": 1.0, "file_bytes": FILE_BYTES, **settings}
        self.node = Node(load(NodeSettings, place.config, "node", {}, options), founding=True)
        self.node.start()
        contexts = Contexts(certificate_files(f"{root}/certs", "publisher"), client_context)
        self.push = PushClient(f"{root}/pub", STREAM, [self.node.address], contexts)
        self.push.start()
        writer = WriterSettings(file_bytes_max=64 << 20)
        self.publisher = Publisher(f"{root}/pub", stream=STREAM, session="a", writer=writer)
        self.out = f"{place.config.removesuffix('.toml')}/{STREAM}/out"

    @property
    def ledger(self):  # noqa: ANN201 - of the sequencer, as it is
        """The node's state."""
        return self.node.pipeline.member.executor.ledger

    def set_policy(self, policy: Policy) -> None:
        """Set the policy of the stream."""
        while True:
            try:
                self.node.pipeline.member.order(Note(time.time_ns(), "policy", policy.text()))
                return
            except Refused:  # just started; an election is under way
                time.sleep(0.05)

    def close(self) -> None:
        """Stop everything."""
        self.push.stop()
        self.publisher.close()
        self.node.stop()


class Merging(threading.Thread):
    """Publishes continuously and records each pause in merging."""

    def __init__(self, stream: Stream) -> None:
        super().__init__(daemon=True)
        self.stream, self.pauses, self.stopping = stream, [], threading.Event()

    def run(self) -> None:
        """Publish every millisecond; look every half."""
        number, changed = self.stream.ledger.number, time.perf_counter()
        while not self.stopping.wait(0.0005):
            self.stream.publisher.publish(b"x" * 100)
            now = time.perf_counter()
            if self.stream.ledger.number != number:
                self.pauses.append(now - changed)
                number, changed = self.stream.ledger.number, now


def collection(quick: bool) -> list[Row]:
    """GC of 1,000 files, and the longest pause of merging before and while it ran."""
    count = 200 if quick else 1000
    with directory() as root:
        stream = Stream(root)
        stream.set_policy(Policy(time=0, disk=100))
        while stream.ledger.end.roll < count:
            stream.publisher.publish_many([b"x" * 1000] * 1000)
            stream.publisher.flush("merged", timeout_s=60)
        time.sleep(2)
        quiet, busy = Merging(stream), Merging(stream)
        quiet.start()
        time.sleep(4)
        quiet.stopping.set()
        quiet.join()
        busy.start()
        time.sleep(0.2)
        began = time.perf_counter()
        stream.set_policy(Policy(time=0, limit=1, disk=100))
        while stream.node.pipeline.sweeper.emptied_to.roll < count:
            time.sleep(0.001)
        took = time.perf_counter() - began
        time.sleep(0.5)
        busy.stopping.set()
        busy.join()
        stream.close()
    before = sorted(quiet.pauses)[-2]
    return [
        Row(f"GC of {count} files, from policy to empty files", took, "s", 1.0, at_most=True),
        Row("longest pause of merging while that ran", max(busy.pauses) * 1000, "ms", 20,
            limit=before * 1000, at_most=True),
    ]  # fmt: skip


def policy_row() -> Row:
    """A decision on a log of 1,000 files of 1 GiB, a terabyte."""
    now = 10**18
    files = [RolledFile(Position.of(0, n, 0), 1 << 30, now - n * MINUTE_NS) for n in range(1000)]
    files.sort(key=lambda file: file.rolled_ns)
    policy = Policy(time=500, limit=400 << 30)
    took = min(seconds(lambda: decide(policy, files, 0, now_ns=now)) for _ in range(5))
    return Row("a decision on 1 TB in 1,000 files", took * 1000, "ms", 20, at_most=True)


def history_rows(quick: bool) -> list[Row]:
    """`rt log-history --json` of 100,000 files, half archived, and reading their manifest."""
    count = 10_000 if quick else 100_000
    with directory() as root:
        identity = new_identity(MERGED, STREAM, "out", created_ns=1)
        lines = [encode_entry(identity)]
        for n in range(count):
            file = Position.of(n >> 14, n & 16383, 0)
            begin, end = EPOCH_NS + n * FILE_NS, EPOCH_NS + (n + 1) * FILE_NS
            digest = f"{n * 0x9E3779B97F4A7C15:032x}"
            rolled = Rolled(file, FILE_BYTES_MAX, n, n + 1, begin, end, end, digest, "jfk")
            lines.append(encode_entry(rolled))
            if n < count // 2:
                lines.append(encode_entry(Archived(file, end, "time", n)))
        with open(os.path.join(root, "manifest"), "wb") as manifest:
            manifest.writelines(lines)
        command = [sys.executable, "-m", "rt", "log-history", root, "--json"]
        took = min(
            seconds(lambda: subprocess.run(command, stdout=subprocess.DEVNULL, check=True))
            for _ in range(3)
        )
        reading = seconds(lambda: history(root))
    return [
        Row(f"log-history of {count:,} files", took, "s", 1.0, at_most=True),
        Row("of it, to read the manifest, as a subscriber does", reading, "s", 1.0, at_most=True),
    ]
