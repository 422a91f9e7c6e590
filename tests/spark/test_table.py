"""A table and the log after it as one DataFrame: without a hole or a double, pinned."""

from random import Random

import pytest
from pyspark.sql.functions import spark_partition_id

from rt import Publisher
from rt.errors import GapError, Misuse
from rt.spark import read, to_parquet
from rt.spark.table import read_table
from rt.tables.export import ExportSettings, parquet_opener, to_iceberg
from rt.tables.export import to_parquet as export_parquet
from rt.tables.follow import TableFollower
from rt.tables.payloads import parse_columns
from tests.spark.random_logs import STREAM, Merging, plain_rows, publish_random, random_log

pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("ignore")]


def found(frame):
    """(position, session, payload) of a frame, in order."""
    rows = frame.select("position", "session", "payload").collect()
    return sorted((row.position, row.session, bytes(row.payload)) for row in rows)


def expected(merging):
    """The same of the log."""
    return [(row.position, row.session, row.payload) for row in plain_rows(merging.directory)]


@pytest.mark.parametrize("partition", ["session", "stream"])
def test_the_union_is_the_log_wherever_the_table_ends(spark, tmp_path, partition):
    """The last file is not in the table yet; its rows come from the log."""
    out = str(tmp_path / "out")
    with random_log(str(tmp_path / "data"), 1, file_bytes_max=1 << 15) as merging:
        to_parquet(merging.directory, out, partition=partition)
        frame = read(merging.directory).table(out, spark=spark)
        assert len({row[0] for row in found(frame)}) > read_table(merging.directory, out).rows
        assert found(frame) == expected(merging)
        to_parquet(merging.directory, out, include_active=True)
        assert found(read(merging.directory).table(out, spark=spark)) == expected(merging)
        named = read(merging.directory).schema("stream, number").table(out, spark=spark)
        assert named.select("stream").distinct().collect() == [(STREAM,)]


def test_an_iceberg_table_and_its_log_are_one_frame(spark, tmp_path):
    """Its files are read as they are: Spark needs no package of Iceberg."""
    pytest.importorskip("pyiceberg")
    from rt.tables.iceberg import local_catalog

    house = str(tmp_path / "warehouse")
    with random_log(str(tmp_path / "data"), 2, file_bytes_max=1 << 15) as merging:
        to_iceberg(merging.directory, "a.b", local_catalog(house), ExportSettings("session"))
        frame = read(merging.directory).table("a.b", catalog=house, spark=spark)
        assert found(frame) == expected(merging)


def test_a_frame_stays_as_it_was_while_a_follower_adds_and_joins(spark, tmp_path):
    """Files that are replaced stay for as long as --keep says."""
    out, root = str(tmp_path / "out"), str(tmp_path / "data")
    settings = ExportSettings(include_active=True, target_bytes=1 << 20)
    with random_log(root, 3, file_bytes_max=1 << 15) as merging:
        follower = TableFollower(merging.directory, parquet_opener(out, settings), settings, 0.0)
        follower.turn()
        frame, rows = read(merging.directory).table(out, spark=spark), expected(merging)
        for seed in range(20):
            publish_more(root, merging, seed)
            follower.turn()
        follower.close()
        state = read_table(merging.directory, out)
        assert len(state.files) < 20
        assert found(frame) == rows
        assert found(read(merging.directory).table(out, spark=spark)) == expected(merging)


def test_the_log_is_read_first_and_in_one_task(spark, tmp_path):
    """Its task waits for Python: 1.8 times as long as Parquet for 1 % of the times, as the last."""
    root, out = str(tmp_path / "data"), str(tmp_path / "out")
    with random_log(root, 5, file_bytes_max=1 << 15) as merging:
        export_parquet(merging.directory, out, ExportSettings(include_active=True))
        end = read_table(merging.directory, out).position
        assert expected(merging) == found(read(merging.directory).table(out, spark=spark))
        publish_more(root, merging, 1)
        frame = read(merging.directory).table(out, spark=spark)
        parts = frame.select("position", spark_partition_id().alias("part")).collect()
        assert {row.part for row in parts if row.position >= end} == {0}
        assert {row.part for row in parts if row.position < end}.isdisjoint({0})


def publish_more(root, merging, seed):
    """A few more messages."""
    publish_random(root, Random(seed), "lga")
    merging.merge()


def test_the_payloads_of_the_log_are_parsed_as_those_of_the_table(spark, tmp_path):
    """A malformed one is a dead letter in both."""
    root, out = str(tmp_path / "data"), str(tmp_path / "out")
    settings = ExportSettings(include_active=True, columns=parse_columns("n bigint, name string"))
    with Merging(root) as merging, Publisher(root, stream=STREAM, session="jfk") as publisher:
        for first in (0, 10):
            publisher.publish_many(
                [b"oops"] + [b'{"n": %d, "name": "x"}' % n for n in range(first, first + 10)]
            )
            publisher.flush("synced")
            merging.merge()
            if not first:
                export_parquet(merging.directory, out, settings)
        frame = read(merging.directory).table(out, spark=spark)
        rows = frame.orderBy("position").select("n", "name").collect()
        assert [(row.n, row.name) for row in rows] == [(n, "x") for n in range(20)]
        assert read_table(merging.directory, out + ".dead").rows == 1


def test_what_was_archived_after_the_table_is_an_error_that_names_it(spark, tmp_path):
    """The union would have a hole there."""
    out = str(tmp_path / "out")
    with random_log(str(tmp_path / "data"), 1, file_bytes_max=1 << 15) as merging:
        to_parquet(merging.directory, out)
        with (
            random_log(str(tmp_path / "other"), 2) as other,
            pytest.raises(Misuse, match="another"),
        ):
            read(other.directory).table(out, spark=spark)
        with pytest.raises(Misuse, match="leave out sessions"):
            read(merging.directory).sessions("jfk").table(out, spark=spark)
        publish_more(str(tmp_path / "data"), merging, 1)
        merging.executor.appender.roll(1)
        merging.ledger.roll()
        merging.archive(len(merging.executor.appender.manifest.order))
        with pytest.raises(GapError, match="was archived"):
            read(merging.directory).table(out, spark=spark)
