"""Memory of node, push and pull with a small and with a large backlog."""

import os
import re
import time

from benchmarks.log import directory
from benchmarks.report import Row
from rt import Last, Publisher, Subscriber
from rt.cli.process.children import Child, Children
from rt.node.founding.cluster_files import init_local_cluster

STREAM = "bench"
MB = 1_000_000


def rows(quick: bool) -> list[Row]:
    """The peak with the large backlog as a part of the peak with the small one."""
    small, large = _peaks(100), _peaks(1000 if quick else 10_000)
    return [
        Row(f"memory of {name}, {'1' if quick else '10'} GB behind", large[name] / MB, "MB", 1.1,
            small[name] / MB, at_most=True, is_ratio=True)
        for name in small
    ]  # fmt: skip


def _peaks(megabytes: int) -> dict[str, float]:
    """Publish with nothing running, then let everything catch up; return each one's peak."""
    with directory() as root, Children() as children:
        pub = os.path.join(root, "pub")
        with Publisher(pub, stream=STREAM, session="p1") as publisher:
            for _ in range(megabytes // 10):
                publisher.publish_many([bytes(1012)] * 10_000)
            total = publisher.next_sequence
        (place,) = init_local_cluster(root, STREAM, 1)
        link = [
            "--stream",
            STREAM,
            "--certs",
            os.path.join(root, "certs"),
            "--nodes",
            place.address,
        ]
        node = children.start("node", "node", "--config", place.config)
        node.first_line(r":\d+$")
        running = {
            "node": node,
            "push": children.start("push", "push", "--root", pub, "--identity", "publisher", *link),
            "pull": children.start(
                "pull",
                "pull",
                "--root",
                os.path.join(root, "sub"),
                "--identity",
                "subscriber",
                *link,
            ),
        }
        _await_copy(os.path.join(root, "sub"), total)
        return {name: _peak_bytes(child) for name, child in running.items()}


def _await_copy(root: str, total: int) -> None:
    """Wait until the copy ends with the last message published."""
    deadline = time.monotonic() + 900
    while time.monotonic() < deadline:
        with Subscriber(root, stream=STREAM, start=Last(1), follow=False) as subscriber:
            if any(message.number + 1 >= total for message in subscriber):
                return
        time.sleep(0.5)
    raise TimeoutError("the copy did not catch up in 15 minutes")


def _peak_bytes(child: Child) -> float:
    with open(f"/proc/{child.pid}/status", encoding="ascii") as file:
        found = re.search(r"VmHWM:\s+(\d+) kB", file.read())
    return int(found[1]) * 1024.0 if found else 0.0
