"""Micro-batches as users write them: foreachBatch, files archived meanwhile, limits."""

import pytest
from pyspark.errors import StreamingQueryException

from rt import Publisher
from tests.spark.random_logs import NOW_NS, STREAM, Merging, plain_rows, random_log
from tests.spark.test_spark_streaming import run, stream

pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("ignore")]


def positions(spark, out):
    """The positions that a query has written, in order."""
    found = spark.read.parquet(str(out)).select("position").collect()
    return sorted(row[0] for row in found)


def test_foreach_batch_publishes_each_batch_once_under_its_number(spark, tmp_path):
    """A batch that is run again finds its rows in the session."""
    with random_log(str(tmp_path / "from"), 5, rounds=2) as merging:
        pass
    root, ids = tmp_path / "to", []

    def publish(frame, number):
        ids.append(number)
        for _ in range(2):  # as after a failure between the two
            writer = frame.select("payload", "key", "time").write.format("rt").mode("append")
            writer.options(stream=STREAM, session="copy", batch=number).save(str(root))

    frame = stream(
        spark, merging.directory, maxRecordsPerTrigger=len(plain_rows(merging.directory)) - 1
    )
    writer = frame.writeStream.foreachBatch(publish).trigger(availableNow=True)
    writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start().awaitTermination()
    assert len(ids) > 1
    with Merging(str(root)) as back:
        back.merge()
    expected = sorted((row.payload, row.key or b"") for row in plain_rows(merging.directory))
    assert sorted((r.payload, r.key or b"") for r in plain_rows(back.directory)) == expected


def test_a_file_archived_under_a_stream_stops_it_unless_loss_is_allowed(spark, tmp_path):
    """What was archived before the query reached it is an error, and the rest can be had."""
    paths = tmp_path / "parquet", tmp_path / "checkpoint"
    with random_log(str(tmp_path / "data"), 1, rounds=2, file_bytes_max=1 << 15) as merging:
        run(stream(spark, merging.directory), *paths)
        before = positions(spark, paths[0])
        for _ in range(3):  # a merge is one range, which is not cut between files
            with Publisher(str(tmp_path / "data"), stream=STREAM, session="lga") as publisher:
                publisher.publish_many([bytes(100)] * 500)
            merging.merge()
        rows = plain_rows(merging.directory)
        merging.executor.appender.roll(NOW_NS)
        merging.ledger.roll()
        merging.archive(len(merging.executor.appender.manifest.order) - 1)
        with pytest.raises(StreamingQueryException, match="archived") as failed:
            run(stream(spark, merging.directory), *paths)
        assert "Traceback" not in str(failed.value)
        assert positions(spark, paths[0]) == before
        run(stream(spark, merging.directory, failOnDataLoss="false"), *paths)
        found = positions(spark, paths[0])
        assert len(found) > len(before)
        assert found == sorted(set(found))
        assert set(found) <= {row.position for row in rows}
        assert rows[-1].position in found


def test_a_query_that_is_refused_says_so_in_a_line(spark, tmp_path):
    """Spark's cleanup failed after the error, and the user read forty lines of it."""
    frame = stream(spark, str(tmp_path), endingPosition="0.0.8")
    with pytest.raises(StreamingQueryException, match="a stream has no end") as failed:
        run(frame, tmp_path / "parquet", tmp_path / "checkpoint")
    assert "Traceback" not in str(failed.value)


def test_a_limit_of_records_is_of_the_selected_sessions(spark, tmp_path):
    """A rare session would otherwise take a micro-batch for each stretch of the others."""
    with random_log(str(tmp_path / "data"), 2, rounds=2) as merging:
        with Publisher(str(tmp_path / "data"), stream=STREAM, session="rare") as publisher:
            publisher.publish_many([b"x"] * 10)
        merging.merge()
    frame = stream(spark, merging.directory, sessions="rare", maxRecordsPerTrigger=4)
    query = run(frame, tmp_path / "parquet", tmp_path / "checkpoint")
    counts = [each["numInputRows"] for each in query.recentProgress if each["numInputRows"]]
    assert counts == [4, 4, 2]
    latest = [each["sources"][0]["latestOffset"] for each in query.recentProgress]
    behind = ("bytes_behind", "rows_behind", "seconds_behind")
    assert all(name in each for each in latest if each for name in behind)
