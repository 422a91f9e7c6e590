"""How far micro-batches go, and that the same messages are always cut alike; no Spark is needed."""

import os
import shutil
from random import Random

import pytest

from rt import Publisher, SessionChange
from rt.errors import CorruptLog, GapError, Misuse
from rt.format.index import ENTRY_BYTES
from rt.log.files.directory import LogDirectory
from rt.position import Position
from rt.spark.reading.options import Selection, read_options
from rt.spark.reading.plan import LogView
from rt.spark.reading.steps import after_bytes, after_records, unread
from sequencer.ledger.life import Life
from tests.spark.random_logs import NOW_NS, STREAM, plain_rows, publish_random, random_log
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
        end = after_records(view, Position(rows[first].position), count, view.end(), Selection())
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

    from rt.spark.formats.stream import RtStreamReader

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

    from rt.spark.formats.stream import RtStreamReader

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


@pytest.mark.parametrize(
    "options", [{}, {"startingPosition": "latest"}, {"startingTimestamp": "1"}]
)
def test_the_first_micro_batch_replays_from_where_it_began(tmp_path, options):
    """Spark asks again where a query begins that was killed in its first micro-batch.

    After archiving, "earliest" was then beyond the batch's end: no row and no error.
    """
    pytest.importorskip("pyspark")
    from pyspark.sql.streaming.datasource import ReadAllAvailable
    from pyspark.sql.types import LongType, StructField, StructType

    from rt.spark.formats.stream import RtStreamReader

    schema = StructType([StructField("position", LongType())])

    def reader(**more):
        return RtStreamReader(read_options({"path": merging.directory, **options, **more}), schema)

    def read(stream, begin, end):
        found = [batch for part in stream.partitions(begin, end) for batch in stream.read(part)]
        return [place for batch in found for place in batch.column(0).to_pylist()]

    with random_log(str(tmp_path), 3, file_bytes_max=1 << 14) as merging:
        stream = reader()
        begin = stream.initialOffset()
        publish_random(str(tmp_path), Random(9), "lga")
        merging.merge()
        end = stream.latestOffset(begin, ReadAllAvailable())
        first = read(stream, begin, end)
        stream.stop()
        publish_random(str(tmp_path), Random(10), "lga")
        merging.merge()

        resumed = reader()
        assert read(resumed, resumed.initialOffset(), end) == first != []
        resumed.stop()
        merging.executor.appender.roll(NOW_NS)
        merging.ledger.roll()
        publish_random(str(tmp_path), Random(11), "lga")
        merging.merge()
        merging.archive(1000)
        resumed = reader(failOnDataLoss="false")
        assert read(resumed, resumed.initialOffset(), end) == []
        resumed.stop()
        again = reader()
        begin = again.initialOffset()
        with pytest.raises(GapError, match="archived"):
            again.partitions(begin, end)
        # an offset of an earlier version does not say where the batch began
        older = {name: value for name, value in end.items() if name != "begin"}
        late = {**begin, "position": end["position"] + 8}
        with pytest.raises((GapError, Misuse), match=r"archived|before the start"):
            again.partitions(late, older)
        again.stop()


@pytest.mark.parametrize(
    ("name", "delay", "waits"),
    [("minOffsetsPerTrigger", "1h", True), ("minRecordsPerTrigger", "0s", False)],
)
def test_a_micro_batch_waits_for_enough_messages_but_not_for_ever(tmp_path, name, delay, waits):
    """As minOffsetsPerTrigger and maxTriggerDelay of Spark's Kafka source, by those names too."""
    pytest.importorskip("pyspark")
    from pyspark.sql.streaming.datasource import ReadAllAvailable
    from pyspark.sql.types import LongType, StructField, StructType

    from rt.spark.formats.stream import RtStreamReader

    schema = StructType([StructField("position", LongType())])
    path = str(tmp_path / STREAM / "jfk")
    options = read_options({"path": path, name: "4", "maxTriggerDelay": delay})
    stream, begin = RtStreamReader(options, schema), {"v": 1, "log": "", "position": 0}
    with Publisher(str(tmp_path), stream=STREAM, session="jfk") as publisher:
        publisher.publish_many([b"x"] * 3)
        publisher.flush("written")
        assert (stream.latestOffset(begin, ReadAllAvailable()) == begin) == waits
        publisher.publish_many([b"x"] * 3)
        publisher.flush("written")
        assert stream.latestOffset(begin, ReadAllAvailable()) != begin
    stream.stop()


def test_a_query_says_that_it_waits_for_a_log(tmp_path, caplog):
    """A misspelt path was waited for without a word, and the job looked healthy."""
    pytest.importorskip("pyspark")
    from pyspark.sql.streaming.datasource import ReadAllAvailable
    from pyspark.sql.types import LongType, StructField, StructType

    from rt.spark.formats.stream import RtStreamReader

    now = [100.0]
    schema = StructType([StructField("position", LongType())])
    options = read_options({"path": str(tmp_path / "nope")})
    stream = RtStreamReader(options, schema, lambda: now[0])
    begin = stream.initialOffset()
    for now[0] in (100.0, 106.0):
        assert stream.latestOffset(begin, ReadAllAvailable()) == begin
    assert "waiting for a log" in caplog.text
    stream.stop()
