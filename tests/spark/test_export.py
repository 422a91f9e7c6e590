"""The export of a log to Parquet: all of it, once, however often it is run or killed."""

import os
import resource
import subprocess
import sys
from random import Random

import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from rt import Publisher
from rt.cli.program import rt
from rt.errors import GapError, Misuse
from rt.position import Position
from rt.spark import export, to_parquet
from tests.spark.random_logs import NOW_NS, STREAM, plain_rows, publish_random, random_log


def exported(out):
    """Return (position, session, payload) of a dataset, in order."""
    table = ds.dataset(str(out), partitioning="hive").to_table(["position", "session", "payload"])
    return sorted(tuple(row.values()) for row in table.to_pylist())


def expected(merging):
    """Return the same of the rolled files of a log."""
    rolled = merging.executor.appender.manifest.rolled
    return [
        (row.position, row.session, row.payload)
        for row in plain_rows(merging.directory)
        if Position(row.position).file in rolled
    ]


def test_each_rolled_file_is_exported_once_run_after_run(tmp_path):
    """Incremental: what was added before is not read again, what rolled since is added."""
    out, root = tmp_path / "out", str(tmp_path / "data")
    with random_log(root, 1, file_bytes_max=1 << 15) as merging:
        for _ in range(3):
            done = to_parquet(merging.directory, str(out))
            assert exported(out) == expected(merging)
            assert done.files
            assert to_parquet(merging.directory, str(out)).files == 0
            publish_random(root, Random(2), "lga")
            merging.merge()
            merging.executor.appender.roll(1)
            merging.ledger.roll()


def test_a_file_is_partitioned_by_the_day_of_its_merge(tmp_path):
    """So that a query of one day reads one directory."""
    with random_log(str(tmp_path / "data"), 2, file_bytes_max=1 << 15) as merging:
        to_parquet(merging.directory, str(tmp_path / "out"))
    assert (tmp_path / "out" / "date=2013-01-01" / "log.0.0.parquet").exists()
    table = pq.read_table(tmp_path / "out" / "date=2013-01-01" / "log.0.0.parquet")
    assert "merge_time" in table.schema.names


def test_messages_of_more_days_than_files_may_be_open_are_exported(tmp_path):
    """What a publisher brings of years past stands in one file of its session."""
    days, day_ns = 200, 86_400 * 10**9
    with Publisher(str(tmp_path), stream=STREAM, session="jfk") as publisher:
        publisher.publish_many([b"%d" % day for day in range(days)], None, [
            NOW_NS + day * day_ns for day in range(days)
        ])  # fmt: skip
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 50, hard))
    try:
        to_parquet(str(tmp_path / STREAM / "jfk"), str(tmp_path / "out"))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert [int(payload) for _, _, payload in exported(tmp_path / "out")] == [*range(days)]


def test_an_archived_file_stops_the_export_unless_gaps_are_allowed(tmp_path):
    """A dataset with a hole must be asked for."""
    with random_log(str(tmp_path / "data"), 3, file_bytes_max=1 << 14) as merging:
        gone = merging.archive(1)
        with pytest.raises(GapError, match="was archived"):
            to_parquet(merging.directory, str(tmp_path / "out"))
        done = to_parquet(merging.directory, str(tmp_path / "out"), allow_gaps=True)
        assert done.gaps == [gone[0].file_name]
        assert exported(tmp_path / "out") == expected(merging)


def test_the_export_of_another_log_is_not_added_to(tmp_path):
    """Files of one name would overwrite each other."""
    with random_log(str(tmp_path / "a"), 1, file_bytes_max=1 << 15) as one:
        to_parquet(one.directory, str(tmp_path / "out"))
    with random_log(str(tmp_path / "b"), 1, file_bytes_max=1 << 15) as two:
        pass
    with pytest.raises(Misuse, match="export of another log"):
        to_parquet(two.directory, str(tmp_path / "out"))


def test_an_export_that_is_killed_anywhere_is_repeated_to_the_same_rows(tmp_path):
    """File over file: nothing is in the dataset twice, whenever it is looked at."""
    out = tmp_path / "out"
    with random_log(str(tmp_path / "data"), 4, file_bytes_max=1 << 13) as merging:
        rows = expected(merging)
    dying = (
        "import os, sys\nfrom rt.spark.export import to_parquet\n"
        "left = int(sys.argv[3])\n"
        "def hook(event, args):\n"
        "    global left\n"
        "    if event in ('os.rename', 'os.mkdir', 'open') and sys.argv[2] in str(args):\n"
        "        left -= 1\n"
        "        if left < 0: os._exit(9)\n"
        "sys.addaudithook(hook)\n"
        "to_parquet(sys.argv[1], sys.argv[2])\n"
    )
    for step in (0, 1, 2, 3, 4, 5, 7, 9, 1000):
        run = [sys.executable, "-c", dying, merging.directory, str(out), str(step)]
        code = subprocess.run(run, check=False, capture_output=True).returncode
        assert code == (0 if step == 1000 else 9)
        if os.path.isdir(out):
            found = exported(out) if any(out.rglob("log*.parquet")) else []
            assert len(found) == len(set(found))
    assert exported(out) == rows


def test_two_exports_do_not_write_to_one_dataset(tmp_path):
    """Cron starts the next run while one takes long; both would write the same hidden files."""
    out, refusals = str(tmp_path / "out"), []
    with random_log(str(tmp_path / "data"), 1, file_bytes_max=1 << 15) as merging:

        def again(_done, _total):
            if not refusals:
                with pytest.raises(Misuse, match="another export writes") as refused:
                    to_parquet(merging.directory, out)
                refusals.append(refused)

        export.to_parquet(merging.directory, out, progress=again)
        assert refusals
        assert exported(out) == expected(merging)
        assert to_parquet(merging.directory, out).files == 0


def test_rt_export_parquet_says_what_it_did(tmp_path):
    """The command line is the same road."""
    with random_log(str(tmp_path / "data"), 1, file_bytes_max=1 << 15) as merging:
        command = ["export", "parquet", merging.directory, str(tmp_path / "out")]
        found = CliRunner().invoke(rt, command)
    assert found.exit_code == 0
    assert f"messages to {tmp_path / 'out'}; 0 files had been added before" in found.stderr
    assert exported(tmp_path / "out")
