"""What a lone message passes in three whole nodes: their own functions, in every thread.

At a few hundred messages a second nothing is warm, so each function on a message's way costs,
however little it does. What the nodes call without messages, in as much time, is subtracted.
`python -m benchmarks.road` lists the functions, the leader's first.
"""

import json
import os
import sys
import time
from collections import Counter
from pathlib import Path
from typing import NamedTuple

from benchmarks.log import directory
from benchmarks.report import Row
from benchmarks.stream import SPAWN, STREAM, publish
from replicator.pull.client import PullClient
from rt import Subscriber
from rt.cli.cluster.found import found_streams
from rt.cli.process.children import Child, Children
from rt.config.settings import load
from rt.net.addresses import parse_address
from rt.net.authority.certificates import certificate_files
from rt.net.tls import Contexts, client_context
from rt.node.founding.cluster_files import Place, init_local_cluster
from rt.node.settings.node import NodeSettings

MESSAGES = 100
RATE = 20  # so that each has come to its end before the next
_USUAL = 0.5  # what fewer messages call belongs to a tick, or to a growing file
_SETTLED_S = 2.0
_SERVES = r" at \S+:\d+$"
_LEADING = "Leader.propose"  # of the functions, one that only the leader calls for each message
Functions = dict[str, float]  # calls a message, by file, line and name


class Touched(NamedTuple):
    """What most messages call in a node, and whether it led."""

    leads: bool
    functions: Functions


def rows(_quick: bool) -> list[Row]:
    """The distinct functions of the leader, and of the follower that has more of them."""
    nodes = touched()
    figures = {
        "leader": max(len(each.functions) for each in nodes if each.leads),
        "follower": max(len(each.functions) for each in nodes if not each.leads),
    }
    asked = {"leader": 150, "follower": 120}
    return [
        Row(f"3 nodes: own functions that a lone message passes, {role}", figures[role], "",
            asked[role], at_most=True)
        for role in asked
    ]  # fmt: skip


def touched() -> list[Touched]:
    """Run three nodes, a publisher and a subscriber; return what messages call in each node."""
    with directory() as root, Children() as children:
        places = init_local_cluster(root, STREAM, 3)
        started = [_start(children, root, place) for place in places]
        for child in started:
            child.first_line(_SERVES)
        counts = _counted(root, places)
    return [_touched(*each) for each in counts]


def _start(children: Children, root: str, place: Place) -> Child:
    found_streams(load(NodeSettings, place.config, "node", environment={}))
    prefix = [sys.executable, "-m", "benchmarks.counted", os.path.join(root, place.name + ".calls")]
    return children.start(place.name, "node", "--config", place.config, prefix=prefix)


def _counted(root: str, places: list[Place]) -> list[tuple[Counter[str], Counter[str]]]:
    """Return of each node what it calls without messages, and with `MESSAGES` in as much time."""
    addresses = [parse_address(place.address) for place in places]
    files = [os.path.join(root, place.name + ".calls") for place in places]
    here, there = SPAWN.Pipe()
    plan = {"size": 100, "count": MESSAGES, "rate": RATE}
    process = SPAWN.Process(target=publish, args=(root, addresses, plan, there))
    process.start()
    certificates = certificate_files(os.path.join(root, "certs"), "subscriber")
    pull = PullClient(
        os.path.join(root, "sub"), STREAM, addresses, Contexts(certificates, client_context)
    )
    pull.start()
    with Subscriber(os.path.join(root, "sub"), stream=STREAM) as subscriber:
        here.recv()
        time.sleep(_SETTLED_S)
        _count(files, is_on=True)
        time.sleep(MESSAGES / RATE)
        idle = _count(files, is_on=False)
        _count(files, is_on=True)
        here.send("go")
        received = 0
        for batch in subscriber.batches():
            received += len(batch)
            if received > MESSAGES:
                break
        here.recv()
        busy = _count(files, is_on=False)
    process.join()
    pull.stop()
    return list(zip(idle, busy, strict=True))


def _count(files: list[str], *, is_on: bool) -> list[Counter[str]]:
    """Have all nodes begin to count, or end it; return what was counted then."""
    for file in files:
        if is_on:
            Path(f"{file}.on").touch()
        else:
            Path(f"{file}.on").unlink()
    if is_on:
        time.sleep(0.1)
        return []
    counts = list[Counter[str]]()
    for file in files:
        while not os.path.exists(file):
            time.sleep(0.01)
        with open(file, encoding="utf-8") as opened:
            counts.append(Counter(json.load(opened)))
        os.unlink(file)
    return counts


def _touched(idle: Counter[str], busy: Counter[str]) -> Touched:
    each = {name: (count - idle[name]) / MESSAGES for name, count in busy.items()}
    usual = {name: calls for name, calls in each.items() if calls >= _USUAL}
    return Touched(any(name.endswith(_LEADING) for name in usual), usual)


def main() -> None:
    """Print what messages call in each node, the leader's first."""
    for node in sorted(touched(), key=lambda each: not each.leads):
        functions = node.functions
        role = "leader" if node.leads else "follower"
        print(f"{role}: {len(functions)} functions, {sum(functions.values()):.0f} calls a message")
        for name, calls in sorted(functions.items()):
            print(f"{calls:7.1f}  {name}")


if __name__ == "__main__":
    main()
