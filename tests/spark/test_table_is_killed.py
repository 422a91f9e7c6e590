"""`rt export --follow` is killed, and its disk fills: each message is in the table once."""

import hashlib
import logging
import os
import random
import resource
import signal
import subprocess
import sys
import time
from multiprocessing import get_context
from pathlib import Path

import pytest

from rt import Publisher
from rt.errors import Misuse
from rt.spark.table import read_table
from rt.tables.export import (
    ExportSettings,
    iceberg_opener,
    parquet_opener,
    to_iceberg,
    to_parquet,
)
from rt.tables.follow import TableFollower
from rt.tables.payloads import parse_columns
from tests.spark.random_logs import NOW_NS, STREAM, Merging, plain_rows

pytest.importorskip("pyiceberg")

TABLE = "flights.messages"
FORKS = get_context("forkserver")
FORKS.set_forkserver_preload(["tests.spark.test_table_is_killed", "rt.tables.iceberg"])
SETTINGS = ExportSettings(
    include_active=True, target_bytes=6000, keep_s=0.2, columns=parse_columns("n bigint")
)
EVENTS = ("open", "os.rename", "os.remove", "os.mkdir")  # of the interpreter's audit


def catalog(where):
    """Return a catalog in a directory; no worker imports its packages that runs no such test."""
    from rt.tables.iceberg import local_catalog

    return local_catalog(where)


def opener(kind, where):
    """Return a function that opens the table."""
    if kind == "parquet":
        return parquet_opener(where, SETTINGS)
    return iceberg_opener(TABLE, lambda: catalog(where), SETTINGS)


def follow(kind, log, where, left, bytes_max, began):
    """Follow, and die by SIGKILL at the `left`th time that a file of the table is touched."""
    logging.disable()
    if bytes_max:
        resource.setrlimit(resource.RLIMIT_FSIZE, (bytes_max, resource.RLIM_INFINITY))

    def touched(event, args):
        nonlocal left
        if event in EVENTS and where in str(args):
            left -= 1
            if not left:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(touched)
    began.set()
    follower = TableFollower(log, opener(kind, where), SETTINGS, 0.0)
    while True:
        time.sleep(min(0.01, follower.turn()))


class World:
    """A log that grows and is archived once its table has it, and what was ever in it."""

    def __init__(self, top, kind, where, seed):
        self.kind, self.where, self.chance = kind, where, random.Random(seed)
        self.merging = Merging(os.path.join(top, "data"), 1 << 13)
        self.log = self.merging.directory
        self.publisher = Publisher(os.path.join(top, "data"), stream=STREAM, session="jfk")
        self.rows = {}
        self.sent = 0

    def grow(self):
        """Publish, merge, and note what the log then has."""
        count = self.chance.choice((1, 30, 120))
        numbers = range(self.sent, self.sent + count)
        day_ns = self.sent // 1000 * 86_400 * 10**9
        self.publisher.publish_many(
            [b'{"n": %d}' % n if n % 7 else b"dead %d" % n for n in numbers], None,
            [NOW_NS + day_ns] * count,
        )  # fmt: skip
        self.sent += count
        self.publisher.flush("synced")
        self.merging.merge()
        self.rows |= {row.position: row for row in plain_rows(self.log)}

    def archive(self):
        """Archive what the table has, as an operator's policy would in time."""
        position = self.state().position
        manifest = self.merging.executor.appender.manifest
        there = [each for each in manifest.order if each not in manifest.archived]
        done = [each for each in there if each + manifest.rolled[each].end <= position]
        self.merging.archive(min(len(done), 2))

    def state(self, suffix=""):
        """Return the state according to the manifest or the catalog."""
        if self.kind == "parquet":
            return read_table(self.log, self.where + suffix.replace("_", "."))
        return read_table(self.log, TABLE + suffix, catalog(self.where))

    def has_begun(self):
        """Whether any run came as far as to make the tables."""
        try:
            return bool(self.state() and self.state("_dead"))
        except Misuse:
            return False

    def kill(self):
        """Start a follower and kill it, in some runs on a full disk."""
        began = FORKS.Event()
        left = self.chance.choice((0, self.chance.randrange(1, 40)))
        bytes_max = self.chance.choice((0, 0, 0, self.chance.randrange(1, 20_000)))
        process = FORKS.Process(
            target=follow, args=(self.kind, self.log, self.where, left, bytes_max, began)
        )
        process.start()
        assert began.wait(60)
        process.join(self.chance.uniform(0, 1) if left == 0 else 3)
        process.kill()
        process.join()
        assert process.exitcode == -signal.SIGKILL

    def check(self):
        """The table has the log's messages up to its position: each once, and the rest dead."""
        state = self.state()
        wanted = [row for row in self.rows.values() if row.position < state.position]
        alive, dead = rows_of(state.files), rows_of(self.state("_dead").files)
        dead = [row for row in dead if row[0] < state.position]
        assert len(alive) + len(dead) == len(wanted)
        found = sorted(alive + dead)
        assert digest(found) == digest(sorted((r.position, r.payload) for r in wanted))
        assert all(payload.startswith(b"dead") for _, payload in dead)
        if any(Path(self.where).rglob("log*.parquet")) and self.kind == "parquet":
            import pyarrow.dataset as ds  # it imports pandas

            plain = ds.dataset(self.where, partitioning="hive").to_table(["position"])
            assert plain.num_rows == len(set(plain["position"].to_pylist()))

    def finish(self):
        """Add the rest, and check all of it."""
        if self.kind == "parquet":
            to_parquet(self.log, self.where, SETTINGS)
        else:
            to_iceberg(self.log, TABLE, catalog(self.where), SETTINGS)
        assert self.state().position > max(self.rows)
        self.check()
        self.publisher.close()
        self.merging.close()


def rows_of(files):
    """The rows of Parquet files, read by Arrow alone."""
    paths = [each.path.removeprefix("file://") for each in files]
    if not paths:
        return []
    import pyarrow.dataset as ds  # it imports pandas

    table = ds.dataset(paths).to_table(["position", "payload"])
    return list(zip(table["position"].to_pylist(), table["payload"].to_pylist(), strict=True))


def digest(rows):
    """Return one digest of all rows, in order."""
    found = hashlib.sha256()
    for position, payload in rows:
        found.update(b"%d %d " % (position, len(payload)) + payload)
    return found.hexdigest()


def storm(top, kind, where, kills, seed, disturb=lambda _number: None):
    """Kill a follower so often while the log grows and is archived; check the table."""
    world = World(top, kind, where, seed)
    world.grow()
    for number in range(kills):
        disturb(number)
        world.kill()
        world.grow()
        if number % 5 == 4 and world.has_begun():
            world.archive()
            world.check()
    disturb(-1)
    world.finish()


@pytest.mark.process
@pytest.mark.parametrize(("kind", "kills"), [("parquet", 10), ("iceberg", 5)])
def test_a_follower_that_is_killed_has_each_message_in_the_table_once(tmp_path, kind, kills):
    """At any file that it touches, or at any time; its log is archived meanwhile."""
    storm(str(tmp_path), kind, str(tmp_path / "table"), kills, 3)


@pytest.mark.process
@pytest.mark.faults
@pytest.mark.parametrize("kind", ["parquet", "iceberg"])
def test_a_follower_killed_two_hundred_times_on_a_disk_that_fills_has_each_message_once(
    tmp_path, kind
):
    """A tenth of the runs are on a disk without any room, which is there again for the next."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", str(disk)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("a small disk cannot be mounted here")
    ballast = disk / "ballast"

    def disturb(number):
        ballast.unlink(missing_ok=True)
        if number > 0 and number % 10 == 0:
            fill(ballast)

    try:
        storm(str(tmp_path), kind, str(disk / "table"), 200, 5, disturb)
    finally:
        subprocess.run(["umount", "--lazy", str(disk)], check=True)


def fill(path):
    """Write until the disk is full."""
    with open(path, "wb", buffering=0) as file:
        for size in (1 << 20, 1 << 12):
            try:
                while True:
                    file.write(bytes(size))
            except OSError:
                continue
