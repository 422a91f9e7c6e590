"""What checking the columns of uncompressed frames costs a node: `python -m benchmarks.columns`.

A node of its own takes and merges 200 MB of a session, six times, with the check and without it in
turn. What counts is the processor time of the node's process, the least of three; and what the
check itself took of it, which other programs of the machine disturb less. At most 5 % is promised.
"""

import logging
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from multiprocessing import get_context

from replicator.push.client import PushClient
from replicator.sink.columns_check import ColumnsCheck, Verdict
from rt import Publisher
from rt.config.settings import load
from rt.format.frame import Header
from rt.net.authority.certificates import certificate_files
from rt.net.tls import Contexts, client_context
from rt.node.founding.cluster_files import init_local_cluster
from rt.node.host.node import Node
from rt.node.settings.node import NodeSettings

STREAM, SESSION = "bench", "jfk"
BYTES, BATCH, ROUNDS = 200_000_000, 2000, 3
PATIENCE_S = 120.0
SHARE_MAX = 0.05


class TimedCheck(ColumnsCheck):
    """Sums up the processor time of its threads in `spent_s`; does nothing if `is_on` is False."""

    is_on = True
    spent_s = 0.0

    def check(self, data: memoryview, headers: Sequence[Header]) -> Verdict:
        """Check as always, or not at all."""
        if not TimedCheck.is_on:
            return Verdict(None, ())
        began_s = time.thread_time()
        found = super().check(data, headers)
        TimedCheck.spent_s += time.thread_time() - began_s
        return found


def publish(root: str, message_bytes: int) -> None:
    """Write a session of messages of this size."""
    with Publisher(root, stream=STREAM, session=SESSION) as publisher:
        for _ in range(BYTES // (message_bytes * BATCH)):
            publisher.publish_many([os.urandom(message_bytes)] * BATCH)


def push(root: str, certs: str, address: str) -> None:
    """Push it, in a process of its own, until it is merged."""
    host, _, port = address.rpartition(":")
    contexts = Contexts(certificate_files(certs, "publisher"), client_context)
    client = PushClient(root, STREAM, [(host, int(port))], contexts)
    client.start()
    end_s = time.monotonic() + PATIENCE_S
    while not client.drained(merged=True):
        if time.monotonic() > end_s:
            raise TimeoutError(f"not merged within {PATIENCE_S:g} s")
        time.sleep(0.01)
    client.stop()


def round_s(top: str, source: str) -> float:
    """Return the processor time that a new node takes for the session."""
    cluster, copy = os.path.join(top, "cluster"), os.path.join(top, "copy")
    [place] = init_local_cluster(cluster, STREAM, 1)
    node = Node(load(NodeSettings, place.config, "node", {}, {}), founding=True)
    node.start()
    shutil.copytree(source, copy)
    began_s = time.process_time()
    arguments = (copy, os.path.join(cluster, "certs"), place.address)
    pusher = get_context("spawn").Process(target=push, args=arguments)
    pusher.start()
    pusher.join()
    took_s = time.process_time() - began_s
    node.stop()
    shutil.rmtree(cluster)
    shutil.rmtree(copy)
    if pusher.exitcode:
        raise RuntimeError("the session was not pushed")
    return took_s


def share_of(message_bytes: int) -> float:
    """Measure messages of one size; return which part of the node's time the check took."""
    took: dict[bool, list[float]] = {True: [], False: []}
    spent = []
    with tempfile.TemporaryDirectory() as top:
        source = os.path.join(top, "source")
        publish(source, message_bytes)
        for number in range(2 * ROUNDS):
            TimedCheck.is_on, TimedCheck.spent_s = bool(number % 2), 0.0
            took[TimedCheck.is_on].append(round_s(top, source))
            if TimedCheck.is_on:
                spent.append(TimedCheck.spent_s)
    share = min(spent) / min(took[True])
    print(
        f"{message_bytes}-byte messages: with the check {min(took[True]):.3f} s, without "
        f"{min(took[False]):.3f} s; the check took {min(spent):.3f} s, {share:.1%}",
        flush=True,
    )
    return share


def main() -> int:
    """Print a line for small messages and for large ones; return 1 if the check takes too much."""
    logging.disable()  # of certificates that go with the directory
    from rt.node.host import port  # noqa: PLC0415 - what it checks with is replaced

    port.ColumnsCheck = TimedCheck  # type: ignore[misc]
    return int(max(map(share_of, (100, 1000))) > SHARE_MAX)


if __name__ == "__main__":
    sys.exit(main())
