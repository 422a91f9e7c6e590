"""Batch queries in a real Spark: as a user writes them."""

import pyspark.sql.functions as f
import pytest
from pyspark.errors import AnalysisException, PythonException

from rt import Publisher
from tests.spark.random_logs import plain_rows, random_log
from tests.spark.test_batch_reading import damaged

pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("ignore")]
FIELDS = ("position", "session", "seq", "number", "key", "payload", "time_ns")


def rows_of(frame):
    """Return the rows of a DataFrame in the order of their positions."""
    found = [tuple(row) for row in frame.select(*FIELDS).collect()]
    return sorted(tuple(bytes(v) if isinstance(v, bytearray) else v for v in row) for row in found)


def plain(rows):
    """Return plain rows as `rows_of` does."""
    return [tuple(getattr(row, name) for name in FIELDS) for row in rows]


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    """A merged log and its rows."""
    with random_log(str(tmp_path_factory.mktemp("log")), 1) as merging:
        pass
    return merging.directory, plain_rows(merging.directory)


def load(spark, path, **options):
    """Load a log, split small."""
    return spark.read.format("rt").options(partitionBytes="20k", **options).load(path)


def test_a_load_gives_every_row_in_several_tasks(spark, log):
    """The whole road: plan in one Python, read in others, rows in the JVM."""
    path, rows = log
    frame = load(spark, path)
    assert frame.rdd.getNumPartitions() > 5 if hasattr(frame, "rdd") else True
    assert rows_of(frame) == plain(rows)


def test_one_frame_used_twice_gives_right_rows_each_time(spark, log):
    """Filters of one use must not leak into another: union, join, and a count after a filter."""
    path, rows = log
    frame = load(spark, path)
    few = frame.filter("number < 100")
    assert few.count() == 100
    assert frame.count() == len(rows)
    assert few.union(frame.filter("number = 7")).count() == 101
    assert few.alias("a").join(frame.alias("b"), "position").count() == 100
    assert frame.alias("a").join(frame.alias("b"), "position").count() == len(rows)
    frame.createOrReplaceTempView("log")
    both = "select * from log where number < 10 union all select * from log"
    assert spark.sql(both).count() == len(rows) + 10


def test_a_frame_does_not_see_what_comes_later(spark, tmp_path):
    """The snapshot is of the load, not of the first action."""
    with random_log(str(tmp_path), 2) as merging:
        count = len(plain_rows(merging.directory))
        frame = load(spark, merging.directory)
        with Publisher(str(tmp_path), stream="flights", session="lga") as publisher:
            publisher.publish_many([b"late"] * 1000)
        merging.merge()
        assert frame.count() == count
        assert frame.filter("session = 'lga'").count() == 0
        assert frame.alias("a").join(frame.alias("b"), "position").count() == count
        assert load(spark, merging.directory).count() == count + 1000


def test_an_archived_file_fails_the_job_with_a_reason(spark, tmp_path):
    """Fewer rows are never given in silence."""
    with random_log(str(tmp_path), 3, file_bytes_max=1 << 15) as merging:
        frame = load(spark, merging.directory)
        merging.archive(1)
        with pytest.raises((AnalysisException, PythonException), match="was archived"):
            frame.count()


def test_the_schema_chooses_columns_in_any_order(spark, log):
    """Spark prunes nothing in a Python source, so the user's schema does."""
    path, rows = log
    frame = spark.read.format("rt").schema("payload_size int, session string").load(path)
    total = frame.groupBy("session").agg(f.sum("payload_size")).collect()
    expected = {}
    for row in rows:
        expected[row.session] = expected.get(row.session, 0) + len(row.payload)
    assert {row[0]: row[1] for row in total} == expected
    with pytest.raises(AnalysisException, match="there is no column 'positoin'"):
        spark.read.format("rt").schema("positoin bigint").load(path).count()
    with pytest.raises(AnalysisException, match="time is of type timestamp, not string"):
        spark.read.format("rt").schema("time string").load(path).count()


def test_times_arrive_as_timestamps_of_the_same_moment(spark, log):
    """Microseconds in UTC whatever the session's zone; nanoseconds beside them."""
    path, rows = log
    frame = load(spark, path).select(f.unix_micros("time"), f.unix_micros("merge_time"), "number")
    found = {row[2]: (row[0], row[1]) for row in frame.collect()}
    assert found == {r.number: (r.time_ns // 1000, r.merge_time_ns // 1000) for r in rows}


def test_json_payloads_become_columns_of_the_users_schema(spark, tmp_path):
    """decode=json: fields beside the columns of the log, malformed ones as the mode says."""
    with Publisher(str(tmp_path), stream="s", session="one") as publisher:
        for place in range(1000):
            publisher.publish(b'{"carrier":"UA","delay":%d.5,"more":[1]}' % place)
        publisher.publish(b'{"carrier":"AA"')
        publisher.publish(b'{"carrier":"B6","delay":null}')
    read = spark.read.format("rt").option("decode", "json")
    schema = "number bigint, carrier string, delay double, _corrupt string"
    path = str(tmp_path / "s" / "one")
    with pytest.raises(PythonException, match="is malformed"):
        read.schema(schema).load(path).count()
    rows = read.option("mode", "PERMISSIVE").schema(schema).load(path).orderBy("number").collect()
    assert [tuple(row)[:3] for row in rows[:1000]] == [(n, "UA", n + 0.5) for n in range(1000)]
    assert rows[1000]._corrupt.startswith("malformed payload: ")
    assert tuple(rows[1001]) == (1001, "B6", None, None)
    kept = read.option("mode", "DROPMALFORMED").schema(schema).load(path)
    assert kept.count() == 1001
    with pytest.raises(AnalysisException, match="needs a schema"):
        spark.read.format("rt").option("decode", "json").load(path)


def test_a_damaged_frame_is_reported_as_the_mode_says(spark, tmp_path):
    """The default is to fail with the position."""
    with random_log(str(tmp_path), 20) as merging:
        pass
    total = len(plain_rows(merging.directory))
    lost = damaged(merging, 400)
    with pytest.raises(PythonException, match=r"corrupt at 0\.\d\.\d+: the body's CRC"):
        load(spark, merging.directory).count()
    assert load(spark, merging.directory, mode="DROPMALFORMED").count() == total - len(lost)
    told = load(spark, merging.directory, mode="PERMISSIVE").filter("_corrupt is not null")
    assert [row.session for row in told.collect()] == [lost[0].session]


def test_sql_can_load_a_log(spark, log):
    """A view by USING, for users without Python."""
    path, rows = log
    spark.sql(f"create or replace temporary view flights using rt options (path '{path}')")
    assert spark.sql("select count(*) from flights").first()[0] == len(rows)


def test_unknown_options_are_refused_at_load(spark, log):
    """Spark takes any option in silence."""
    with pytest.raises(AnalysisException, match="no option 'startingoffset'"):
        spark.read.format("rt").option("startingOffset", 1).load(log[0])
