"""Streaming queries in a real Spark: from a log, and back into one."""

import os
import shutil

import pytest
from pyspark.errors import StreamingQueryException

from rt import Publisher
from tests.spark.random_logs import STREAM, Merging, plain_rows, random_log
from tests.spark.reading import SLOW_START

pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("ignore")]


def stream(spark, path, **options):
    """Read a log as a stream."""
    schema = "position bigint, session string, payload binary, key binary, time timestamp"
    return spark.readStream.format("rt").schema(schema).options(**options).load(path)


def run(frame, out, checkpoint, kind="parquet", **options):
    """Run a streaming query over all that is there."""
    writer = frame.writeStream.format(kind).outputMode("append").trigger(availableNow=True)
    writer = writer.options(checkpointLocation=str(checkpoint), **options)
    for left in reversed(range(5)):
        query = writer.start(str(out))
        try:
            query.awaitTermination()
        except StreamingQueryException as error:
            if not left or SLOW_START not in str(error):
                raise
        else:
            break
    return query


def test_a_stream_gives_each_message_once_across_restarts(spark, tmp_path):
    """The checkpoint holds a position, where a resumed query continues; a backlog is many jobs."""
    paths = tmp_path / "parquet", tmp_path / "checkpoint"
    with random_log(str(tmp_path), 1, rounds=2) as merging:
        for limit in (900, 300):
            frame = stream(spark, merging.directory, maxRecordsPerTrigger=limit)
            query = run(frame, *paths)
            counts = [each["numInputRows"] for each in query.recentProgress]
            assert 0 < max(counts) <= limit
            assert len(list(filter(None, counts))) >= 2
            found = spark.read.parquet(str(paths[0])).select("position").collect()
            rows = plain_rows(merging.directory)
            assert sorted(row[0] for row in found) == [row.position for row in rows]
            with Publisher(str(tmp_path), stream=STREAM, session="lga") as publisher:
                publisher.publish_many([b"x"] * 500)
            merging.merge()


@pytest.mark.faults
def test_a_trigger_reads_no_more_bytes_than_it_may(spark, tmp_path):
    """A backlog must not become one job."""
    with random_log(str(tmp_path), 2) as merging:
        pass
    frame = stream(spark, merging.directory, maxBytesPerTrigger=15_000)
    query = run(frame, tmp_path / "parquet", tmp_path / "checkpoint")
    counts = [each["numInputRows"] for each in query.recentProgress if each["numInputRows"]]
    assert sum(counts) == len(plain_rows(merging.directory))
    assert len(counts) >= 3


@pytest.mark.faults
def test_a_copy_that_grows_byte_by_byte_is_read_by_whole_frames(spark, tmp_path):
    """A pull stops anywhere; a partial frame does not count yet."""
    with random_log(str(tmp_path), 4, file_bytes_max=1 << 30) as merging:
        pass
    rows = plain_rows(merging.directory)
    copy = tmp_path / "copy"
    copy.mkdir()
    shutil.copy(os.path.join(merging.directory, "manifest"), copy)
    with open(os.path.join(merging.directory, "log.0.0"), "rb") as file:
        data = file.read()
    for share in (3, 2, 1):
        (copy / "log.0.0").write_bytes(data[: len(data) // share])
        run(stream(spark, str(copy)), tmp_path / "parquet", tmp_path / "checkpoint")
    found = spark.read.parquet(str(tmp_path / "parquet")).select("position").collect()
    assert sorted(row[0] for row in found) == [row.position for row in rows]


@pytest.mark.faults
def test_a_checkpoint_of_another_log_is_refused(spark, tmp_path):
    """Its positions would mean other messages."""
    with random_log(str(tmp_path / "a"), 1) as first, random_log(str(tmp_path / "b"), 2) as second:
        run(stream(spark, first.directory), tmp_path / "parquet", tmp_path / "checkpoint")
    shutil.rmtree(first.directory)
    os.rename(second.directory, first.directory)
    with pytest.raises(StreamingQueryException, match="of another log"):
        run(stream(spark, first.directory), tmp_path / "parquet", tmp_path / "checkpoint")


def test_a_stream_into_the_sink_arrives_once_though_its_batches_are_replayed(spark, tmp_path):
    """A batch whose commit was lost is run again, and every row of it is a repeat.

    The rows of a new checkpoint would have the numbers of the old one's, and be lost: refused.
    """
    with random_log(str(tmp_path / "from"), 5, rounds=2) as merging:
        pass
    checkpoint, root = tmp_path / "checkpoint", tmp_path / "to"
    for partitions in (3, 1):
        frame = stream(spark, merging.directory, maxRecordsPerTrigger=500, partitionBytes=5000)
        sink = frame.select("payload", "key", "time").repartition(partitions)
        run(sink, root, checkpoint, "rt", stream=STREAM, session="same")
        newest = max(os.listdir(checkpoint / "commits"), key=lambda name: (name.isdigit(), name))
        if partitions == 3:
            os.unlink(checkpoint / "commits" / newest)
            (checkpoint / "commits" / f".{newest}.crc").unlink(missing_ok=True)
    with Merging(str(root)) as back:
        back.merge()
    expected = [(row.payload, row.key) for row in plain_rows(merging.directory)]
    found = [(row.payload, row.key) for row in plain_rows(back.directory)]
    assert sorted(found, key=repr) == sorted(expected, key=repr)
    with pytest.raises(StreamingQueryException, match="belongs to another query"):
        run(sink, root, tmp_path / "two", "rt", stream=STREAM, session="same")


def test_one_query_reads_several_streams_and_routes_their_rows(spark, tmp_path):
    """As a query over several topics: each row once in its stream, also across a restart."""
    names = ("flights", "weather")
    for count in (30, 5):
        for name in names:
            with Publisher(str(tmp_path / "from"), stream=name, session="one") as publisher:
                publisher.publish_many([b"x"] * count)
        columns = "stream string, payload binary"
        frame = spark.readStream.format("rt").schema(columns).load(str(tmp_path / "from"))
        copied = frame.selectExpr("concat('copy-', stream) stream", "payload")
        run(copied, tmp_path / "to", tmp_path / "checkpoint", "rt")
    for name in names:
        assert spark.read.format("rt").load(str(tmp_path / "to" / f"copy-{name}")).count() == 35
