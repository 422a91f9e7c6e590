"""A node that holds ten thousand sessions with the descriptors and the memory of a small one."""

import os
import re
import resource
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

from rt import Subscriber
from rt.format.columns import encode_columns
from rt.format.frame import encode_frame, session_tag
from rt.format.manifest import SESSION, LogIdentity
from rt.log.write.appender import Appender
from rt.node.founding.cluster_files import init_local_cluster
from rt.position import START
from tests.commands import start
from tests.dialogue import FastDisk

STREAM = "flights"
SESSIONS = 10_000
DESCRIPTORS = 1_024  # what a process gets by default on many systems
MEMORY_MAX = 105_000_000  # 100 MiB, of which a node without sessions has 50 MB
PATIENCE_S = 600


def fill(top: Path) -> None:
    """Put a copy of one message into the node's directory for each session."""
    for number in range(SESSIONS):
        name = f"s{number:05}"
        identity = LogIdentity(SESSION, STREAM, name, f"{number + 1:032x}", number + 1)
        log = Appender(FastDisk(), str(top / "in" / name), identity)
        log.begin_file(START)
        frame = encode_frame(
            encode_columns([number], [name.encode()]), position=START, sequence=0,
            time_ns=number, messages=1, durable=START, session_tag=session_tag(name),
        )  # fmt: skip
        after = log.walk.copy()
        after.step(frame.header)
        log.append(frame.parts, (frame.header,), after)
        log.close()


@contextmanager
def running(config, path):
    """Run a node with few descriptors; its output goes to a file."""

    def limit():
        resource.setrlimit(resource.RLIMIT_NOFILE, (DESCRIPTORS, DESCRIPTORS))

    with path.open("wb") as log:
        node = start("node", "--config", config, stderr=log, preexec_fn=limit)
        try:
            assert b"serves" in node.stdout.readline()
            yield node
        finally:
            node.terminate()
            node.communicate(timeout=PATIENCE_S)
    assert node.returncode == 0


def resident(pid):
    """The memory of a process now, in bytes."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(re.search(r"VmRSS:\s+(\d+) kB", status)[1]) << 10


@pytest.mark.faults
@pytest.mark.process
def test_a_node_holds_ten_thousand_idle_sessions_on_few_descriptors_and_starts_again(
    tmp_path, capsys
):
    """About 200 of them ended a node at that limit, and it did not start again."""
    [place] = init_local_cluster(str(tmp_path), STREAM, 1)
    fill(tmp_path / "n1" / STREAM)
    found = []
    for life in range(2):
        with running(place.config, tmp_path / "n1.err") as node:
            end = time.monotonic() + PATIENCE_S
            while merged(tmp_path) < SESSIONS and time.monotonic() < end:
                time.sleep(1)
            assert merged(tmp_path) == SESSIONS
            time.sleep(6)  # a snapshot, a sweep and some looks at all sessions
            opened = len(os.listdir(f"/proc/{node.pid}/fd"))
            end = time.monotonic() + PATIENCE_S / 10
            while (taken := resident(node.pid)) >= MEMORY_MAX and time.monotonic() < end:
                time.sleep(1)  # memory is given back once a node has nothing to do
            found.append(f"life {life}: {taken / 1e6:.1f} MB, {opened} descriptors")
            with capsys.disabled():
                print(f"\n{found[-1]}")
            assert taken < MEMORY_MAX, found
            assert opened < DESCRIPTORS // 2, found


def merged(root) -> int:
    """How many messages the node has merged."""
    with Subscriber(root / "n1", stream=STREAM, follow=False) as subscriber:
        return sum(1 for _ in subscriber)
