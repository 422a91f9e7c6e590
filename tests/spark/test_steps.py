"""How far micro-batches go, and that the same messages are always cut alike; no Spark is needed."""

import os
import shutil
from random import Random

import pytest

from rt import SessionChange
from rt.errors import CorruptLog, Misuse
from rt.format.index import ENTRY_BYTES
from rt.log.directory import LogDirectory
from rt.position import Position
from rt.spark.options import read_options
from rt.spark.plan import LogView
from rt.spark.steps import after_bytes, after_messages, place_of_number, unread
from sequencer.life import Life
from tests.spark.random_logs import plain_rows, random_log
from tests.spark.reading import Load
from tests.unit.test_sequencing import Bench, publish


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    """A merged log of several files, and its rows."""
    with random_log(str(tmp_path_factory.mktemp("log")), 1, file_bytes_max=1 << 16) as merging:
        pass
    return merging.directory, plain_rows(merging.directory)


def test_steps_of_messages_are_exact(log):
    """A batch of n holds n rows, wherever it begins, across frames, repeats and files."""
    path, rows = log
    view, random = LogView(path), Random(1)
    view.refresh()
    for _ in range(60):
        first, count = random.randrange(len(rows)), random.choice((1, 2, 7, 300, 5000))
        end = after_messages(view, Position(rows[first].position), count, view.end())
        between = [row for row in rows if rows[first].position <= row.position < end]
        assert len(between) == min(count, len(rows) - first)
    view.close()


def test_what_is_unread_is_counted_with_the_time_of_its_first_message(log):
    """From any message to the end: progress says how far a query is behind."""
    path, rows = log
    view, random = LogView(path), Random(2)
    view.refresh()
    assert unread(view, view.end(), view.end()) == (0, None)
    for first in [0, len(rows) - 1, *random.choices(range(len(rows)), k=60)]:
        row = rows[first]
        expected = len(rows) - first, row.merge_time_ns
        assert unread(view, Position(row.position), view.end()) == expected
    view.close()


def test_what_is_unread_before_an_event_that_ends_the_log_is_counted(tmp_path):
    """The last range adds no message: a query that is behind would be shown as up to date."""
    publish(tmp_path)
    bench = Bench(tmp_path)
    bench.merge_all("bxy")
    bench.order(Life(9, SessionChange.FORGOTTEN, "b", bench.ledger.merged_to("b")))
    (bench.top / "out" / "log.0.0.idx").unlink()  # a fresh one names the event, as a synced one
    view = LogView(str(bench.top / "out"))
    view.refresh()
    assert unread(view, Position(0), view.end())[0] == bench.ledger.number == 2800
    view.close()


def test_steps_of_bytes_take_a_frame_at_least_and_reach_the_end(log):
    """However small the limit, a stream advances; however large, it skips nothing."""
    path, rows = log
    for size in (1, 1000, 20_000, 1 << 40):
        view = LogView(path)
        view.refresh()
        place, steps = Position(0), 0
        while place < view.end():
            following = after_bytes(view, place, size, view.end())
            assert following > place
            whole = following.file == place.file and following - place > size
            if whole:
                inside = [r for r in rows if place <= r.position < following]
                assert len({r.position - r.seq for r in inside}) <= 1
            place, steps = following, steps + 1
        assert steps > 5 or size > 20_000
        view.close()


def test_each_number_is_found_at_its_position(log):
    """This is how the sink learns what a session holds of a batch."""
    path, rows = log
    view = LogView(path)
    view.refresh()
    for row in Random(2).choices(rows, k=60):
        assert place_of_number(view, row.number) == row.position
    assert place_of_number(view, rows[-1].number + 1) == view.end()
    view.close()


@pytest.mark.parametrize("kept", [0, 1, 3, 7])
def test_splits_are_the_same_however_much_of_the_index_is_written(tmp_path, kept):
    """A replayed micro-batch must give each task its rows again, or the sink would refuse it."""
    with random_log(str(tmp_path), 3) as merging:
        pass
    limits = {"startingPosition": "0.0.3000", "endingPosition": "0.1.20000", "partitionBytes": 7000}
    before = Load(merging.directory, **limits).splits()
    for name in os.listdir(merging.directory):
        if name.endswith(".idx"):
            os.truncate(os.path.join(merging.directory, name), kept * ENTRY_BYTES)
    assert Load(merging.directory, **limits).splits() == before
    assert len(before) > 5


@pytest.mark.parametrize("there", ["nothing", "a name"])
def test_a_stream_that_waits_for_a_copy_begins_where_that_does(tmp_path, there):
    """What the nodes had archived before is in the copy as lines; waiting lost nothing."""
    pytest.importorskip("pyspark")
    from pyspark.sql.streaming.datasource import ReadAllAvailable
    from pyspark.sql.types import LongType, StructField, StructType

    from rt.spark.stream import RtStreamReader

    with random_log(str(tmp_path), 3, file_bytes_max=1 << 14) as merging:
        gone = merging.archive(2)
    path, schema = str(tmp_path / "copy"), StructType([StructField("position", LongType())])
    if there == "a name":
        os.mkdir(path)
        with open(merging.directory + "/manifest", "rb") as file:
            name = file.readline()
        with open(path + "/manifest", "wb") as file:
            file.write(name)
    stream = RtStreamReader(read_options({"path": path}), schema)
    begin = stream.initialOffset()
    assert stream.latestOffset(begin, ReadAllAvailable()) == begin
    assert len(stream.partitions(begin, begin)) == 1
    stream.stop()
    shutil.copytree(merging.directory, path, dirs_exist_ok=True)
    end = stream.latestOffset(begin, ReadAllAvailable())
    found = [batch for part in stream.partitions(begin, end) for batch in stream.read(part)]
    stream.stop()
    rows = [row for row in plain_rows(path) if row.position > gone[-1]]
    assert sum(batch.num_rows for batch in found) == len(rows) > 0


@pytest.mark.parametrize("there", ["half", "nothing", "another"])
def test_a_micro_batch_that_the_log_does_not_reach_is_refused(tmp_path, there):
    """A query that resumes in one would take it for done, and what the copy fetches later for read.

    Spark asks then for the splits of the checkpoint's ends, and not where the log ends.
    """
    pytest.importorskip("pyspark")
    from pyspark.sql.streaming.datasource import ReadAllAvailable
    from pyspark.sql.types import LongType, StructField, StructType

    from rt.spark.stream import RtStreamReader

    with random_log(str(tmp_path / "a"), 1) as first, random_log(str(tmp_path / "b"), 2) as second:
        pass
    path, schema = first.directory, StructType([StructField("position", LongType())])
    stream = RtStreamReader(read_options({"path": path}), schema)
    begin = stream.initialOffset()
    end = stream.latestOffset(begin, ReadAllAvailable())
    found = [batch for part in stream.partitions(begin, end) for batch in stream.read(part)]
    assert sum(batch.num_rows for batch in found) == len(plain_rows(path))
    stream.stop()

    if there == "half":
        newest = path + "/" + LogDirectory(path).files()[-1].file_name
        os.truncate(newest, os.path.getsize(newest) // 2)
    else:
        shutil.rmtree(path)
    if there == "another":
        os.rename(second.directory, path)
    resumed = RtStreamReader(read_options({"path": path}), schema)
    with pytest.raises((CorruptLog, Misuse), match=r"ends before the position|of another log"):
        resumed.partitions(begin, end)
    assert len(resumed.partitions(begin, begin)) == 1
    resumed.stop()
