"""Bridges between clusters of three nodes, whose leaders are killed while messages cross."""

import json
import os
import random
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from rt.cli.process.children import Children

from .zone import Zone

ROUNDS = int(os.environ.get("STORM_ROUNDS", "2"))
WHOLE_S = 60.0
NAMES = ("ams", "fra")


@pytest.fixture
def zones(tmp_path: Path) -> Iterator[dict[str, Zone]]:
    """Two zones, and a bridge in each direction."""
    with ExitStack() as undo:
        children = undo.enter_context(Children())
        made = dict[str, Zone]()
        for name in NAMES:
            made[name] = Zone(tmp_path / name, children, (f"{name}-1", f"{name}-2"))
            undo.callback(made[name].close)
        for source, target in (NAMES, NAMES[::-1]):
            children.start(f"bridge {source}", *bridge(made, tmp_path, source, target))
        yield made


def bridge(zones: dict[str, Zone], top: Path, source: str, target: str) -> list[str]:
    """Return the command that forwards from one zone to the other."""
    return [
        "bridge", "--from", zones[source].config, "--to", zones[target].config, "--root",
        str(top / f"bridge-{source}"), "--session", f"from-{source}",
    ]  # fmt: skip


def await_merged(zone: Zone, count: int) -> None:
    """Wait until a zone has merged so many messages."""
    end_s = time.monotonic() + WHOLE_S
    while (merged := zone.merged()) < count:
        if time.monotonic() > end_s:
            raise AssertionError(f"{merged} of {count} messages are merged after {WHOLE_S:g} s")
        time.sleep(0.1)


@pytest.mark.faults
@pytest.mark.process
@pytest.mark.timeout(180 + 60 * ROUNDS)
def test_leaders_of_both_zones_are_killed_and_each_message_crosses_once(
    zones: dict[str, Zone], tmp_path: Path
) -> None:
    """Each zone is the source of one bridge and the target of the other."""
    chance = random.Random(int(os.environ.get("STORM_SEED", "1")))
    for name in NAMES * ROUNDS:
        counts = {each: zone.merged() for each, zone in zones.items()}
        killed = zones[name].kill_leader()
        time.sleep(chance.uniform(0.0, 1.0))
        zones[name].restart(killed)
        for each, zone in zones.items():
            await_merged(zone, counts[each] + 100)
    published: dict[str, int] = {}
    for zone in zones.values():
        published |= zone.settle(WHOLE_S)
    total = sum(published.values())
    for zone in zones.values():
        await_merged(zone, total)
    for name, zone in zones.items():
        demand(zone, published, total, name)


def demand(zone: Zone, published: dict[str, int], total: int, name: str) -> None:
    """Demand each message of both zones once, in its session's order, with its origin."""
    found = zone.messages(WHOLE_S)
    seen: dict[str, list[int]] = {each: [] for each in published}
    for message in found:
        session, _, number = message.payload.decode().partition(" ")
        seen[session].append(int(number))
        said = json.loads(message.headers.get("rt-origin", b"{}"))
        assert bool(said) is not session.startswith(name), "it came from the other zone"
        if said:
            assert (said["session"], said["sequence"]) == (session, int(number))
            assert message.session == f"from-{session[:3]}"
    assert seen == {each: list(range(count)) for each, count in published.items()}
    assert len(found) == total, "something circles"
