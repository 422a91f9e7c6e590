"""Many idle streams: what they cost a node, how soon they start, how soon they are led again."""

import json
import os
import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Final

from benchmarks.log import directory
from benchmarks.report import Row
from benchmarks.stream import STREAM, processor_s
from rt.cli.cluster.found import found_streams
from rt.cli.process.children import Child, Children
from rt.config.settings import load
from rt.node.founding.cluster_files import Place, init_local_cluster
from rt.node.settings.node import NodeSettings
from rt.node.settings.stream_list import with_streams

STREAMS: Final = 100
_SETTLE_S: Final = 150.0  # at most, until leaders are elected and snapshots saved, and all rests
_REST_PERCENT: Final = 10.0  # of a core; a node that is at rest takes less
_AWAIT_S: Final = 60.0  # for all leaders after a death
_SERVES: Final = r" at \S+:\d+$"


def rows(quick: bool) -> list[Row]:
    """One node, and three: start, processor time, threads; then one of three is killed.

    The two that are left take over, and come to rest without it.
    """
    count = STREAMS // 10 if quick else STREAMS
    return [*_one(count), *_three(count)]


def _one(count: int) -> list[Row]:
    with directory() as root, _running(root, 1, count) as (_, children, start_s):
        rested_s = _settle(children)
        share = statistics.mean(_shares(children))
    return [
        Row(f"1 node, {count} idle streams: start", start_s, "s", 0),
        Row(f"1 node, {count} idle streams: at rest after", rested_s, "s", 0),
        Row(f"1 node, {count} idle streams: of a core", share, "%", 5, at_most=True),
    ]


def _three(count: int) -> list[Row]:
    with directory() as root, _running(root, 3, count) as (places, children, start_s):
        rested_s = _settle(children)
        shares = _shares(children)
        threads, memory_mb = _facts(children[0])
        first, last = _takeover_s(root, places, children)
        left = [each for each in children if each.running]
        rested_again_s = _settle(left)
        shares_left = _shares(left)
    return [
        Row(f"3 nodes, {count} idle streams: start of all three", start_s, "s", 0),
        Row(f"3 nodes, {count} idle streams: at rest after", rested_s, "s", 0),
        Row(f"3 nodes, {count} idle streams: of a core, the busiest", max(shares), "%", 5,
            at_most=True),
        Row(f"3 nodes, {count} idle streams: of a core, the calmest", min(shares), "%", 5,
            at_most=True),
        Row(f"3 nodes, {count} idle streams: threads of a node", threads, "", 0),
        Row(f"3 nodes, {count} idle streams: memory of a node", memory_mb, "MB", 0),
        Row(f"3 nodes, {count} idle streams: the first is led again after kill -9", first, "s", 0),
        Row(f"3 nodes, {count} idle streams: the last is led again after kill -9", last, "s", 0),
        Row(f"2 of 3 nodes left, {count} idle streams: at rest after", rested_again_s, "s", 0),
        Row(f"2 of 3 nodes left, {count} idle streams: of a core, the busier", max(shares_left),
            "%", 8, at_most=True),
    ]  # fmt: skip


@contextmanager
def _running(root: str, nodes: int, count: int) -> Iterator[tuple[list[Place], list[Child], float]]:
    """Run nodes that serve this many streams; yield them, and how long their start took."""
    places = init_local_cluster(root, STREAM, nodes)
    others = [f"s{number}" for number in range(1, count)]
    for place in places:
        with open(place.config, encoding="utf-8") as file:
            text = with_streams(file.read(), others)
        with open(place.config, "w", encoding="utf-8") as file:
            file.write(text)
    with Children() as children:
        began_s = time.monotonic()
        found = [_start(children, root, place, nodes) for place in places]
        for child in found:
            child.first_line(_SERVES)
        yield places, found, time.monotonic() - began_s


def _start(children: Children, root: str, place: Place, nodes: int) -> Child:
    """Start a node that logs to a file of its own."""
    if nodes > 1:
        found_streams(load(NodeSettings, place.config, "node", environment={}))
    return children.start(
        place.name, "-v", "--log-format", "json", "node", "--config", place.config,
        prefix=["sh", "-c", 'exec "$@" 2>>"$0"', _log_of(root, place)],
    )  # fmt: skip


def _log_of(root: str, place: Place) -> str:
    return os.path.join(root, f"{place.name}.json")


def _settle(children: list[Child]) -> float:
    """Wait until all nodes rest; return how long it took."""
    began_s = time.monotonic()
    while time.monotonic() - began_s < _SETTLE_S:
        if max(_shares(children, 5.0)) < _REST_PERCENT:
            break
    return time.monotonic() - began_s


def _shares(children: list[Child], length_s: float = 20.0) -> list[float]:
    """Return what part of a core each process takes, in percent; the load is printed."""
    before, began_s = [processor_s([each]) for each in children], time.monotonic()
    time.sleep(length_s)
    taken_s, passed_s = [processor_s([each]) for each in children], time.monotonic() - began_s
    load = " ".join(f"{each:.1f}" for each in os.getloadavg())
    shares = [(end - begin) / passed_s * 100 for begin, end in zip(before, taken_s, strict=True)]
    print(f"  {[round(each, 1) for each in shares]} % of a core; load {load}", file=sys.stderr)
    return shares


def _facts(child: Child) -> tuple[int, float]:
    """Return the threads of a process, and its memory in MB."""
    with open(f"/proc/{child.pid}/status", encoding="utf-8") as file:
        facts = dict(line.split(":", 1) for line in file)
    return int(facts["Threads"]), int(facts["VmRSS"].split()[0]) / 1000


def _takeover_s(root: str, places: list[Place], children: list[Child]) -> tuple[float, float]:
    """Kill the node that leads most; return when the first and the last stream is led again."""
    led = {place.name: 0 for place in places}
    for place in places:
        led[place.name] = sum(f"{place.name} leads" in line["msg"]
                              for line in _leaders(root, place, 0.0))  # fmt: skip
    dead = max(led, key=lambda name: led[name])
    number = [place.name for place in places].index(dead)
    killed_s = time.time()
    children[number].kill()
    others = [place for place in places if place.name != dead]
    deadline_s = time.monotonic() + _AWAIT_S
    found: list[float] = []
    while time.monotonic() < deadline_s and len(found) < led[dead]:
        time.sleep(1.0)
        found = sorted(line["at_s"] - killed_s for place in others
                       for line in _leaders(root, place, killed_s)
                       if f"{place.name} leads" in line["msg"])  # fmt: skip
    print(f"  {dead} led {led[dead]}; {len(found)} are led by others since", file=sys.stderr)
    return (found[0], found[-1]) if found else (float("inf"), float("inf"))


def _leaders(root: str, place: Place, since_s: float) -> list[dict[str, float | str]]:
    """Return what a node has logged of leaders since a time."""
    with open(_log_of(root, place), encoding="utf-8") as file:
        lines = [json.loads(line) for line in file if line.startswith("{") and line.endswith("}\n")]
    for line in lines:
        line["at_s"] = datetime.fromisoformat(line["ts"]).timestamp()
    return [each for each in lines if each.get("event") == "leader" and each["at_s"] > since_s]
