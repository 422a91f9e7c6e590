"""Batch queries in a real Spark: as a user writes them."""

import re
from pathlib import Path

import pyspark.sql.functions as f
import pytest
from pyspark.errors import AnalysisException, PythonException

import rt.spark
from rt import Publisher
from rt.errors import Misuse
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


def test_named_columns_fix_what_is_read_at_the_load_and_a_schema_at_the_first_action(
    spark, tmp_path
):
    """Spark plans a load with a schema at its first action; what was gone by then was silent."""
    with random_log(str(tmp_path), 2, file_bytes_max=1 << 15) as merging:
        path, count = merging.directory, len(plain_rows(merging.directory))
        named = spark.read.format("rt").option("columns", "SEQ, session string").load(path)
        helped, whole = rt.spark.read(path).schema("seq").load(spark), load(spark, path)
        planned = spark.read.format("rt").schema("seq bigint").load(path)
        with Publisher(str(tmp_path), stream="flights", session="lga") as publisher:
            publisher.publish_many([b"late"] * 10)
        merging.merge()
        assert named.columns == ["SEQ", "session"]
        assert (named.count(), helped.count(), planned.count()) == (count, count, count + 10)
        with Publisher(str(tmp_path), stream="flights", session="lga") as publisher:
            publisher.publish_many([b"later"] * 10)
        merging.merge()
        assert (named.count(), planned.count()) == (count, count + 10)
        assert whole.alias("a").join(whole.alias("b"), "position").count() == count
        late = spark.read.format("rt").schema("seq bigint").load(path)
        merging.archive(1)
        for frame in (whole, planned):
            with pytest.raises((AnalysisException, PythonException), match="was archived"):
                frame.count()
        with pytest.raises(AnalysisException, match=r"plans a load with \.schema"):
            late.count()
        left = spark.read.format("rt").option("failOnDataLoss", "false").schema("seq bigint")
        assert 0 < left.load(path).count() < count + 20


def test_ntz_sessions_load_logs_and_their_history(spark, log):
    """spark.sql.timestampType=TIMESTAMP_NTZ made our own default schema one that we refuse."""
    before = spark.conf.get("spark.sql.timestampType")
    spark.conf.set("spark.sql.timestampType", "TIMESTAMP_NTZ")
    try:
        assert dict(spark.read.format("rt").load(log[0]).dtypes)["time"] == "timestamp"
        assert load(spark, log[0]).count() == len(log[1])
        assert spark.read.format("rt-history").load(log[0]).first().first_time is not None
        with pytest.raises(AnalysisException, match="of type timestamp_ltz, not timestamp_ntz"):
            spark.read.format("rt").schema("time timestamp").load(log[0]).count()
    finally:
        spark.conf.set("spark.sql.timestampType", before)


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


def documented(text):
    """The block of SQL in the documentation that has this text."""
    page = (Path(__file__).parents[2] / "docs" / "SPARK.md").read_text(encoding="utf-8")
    return next(
        block for block in re.findall(r"```sql\n(.*?)```", page, re.DOTALL) if text in block
    )


def test_json_payloads_become_columns_of_the_users_schema(spark, tmp_path):
    """Spark's own parser beside the log's columns; a malformed payload does as the mode says."""
    with Publisher(str(tmp_path), stream="s", session="one") as publisher:
        publisher.publish(b"null")  # first in a chunk, where a parser of ours once crashed
        for place in range(1000):
            publisher.publish(b'{"carrier":"UA","delay":%d.5,"more":[1]}' % place)
        publisher.publish(b'{"carrier":"AA"')
        publisher.publish(b'{"carrier":"B6","delay":null}')
    read = rt.spark.read(str(tmp_path / "s" / "one"))
    schema = "carrier string, delay double"
    with pytest.raises(Exception, match="of session one is malformed") as failed:
        read.json(schema, spark=spark).agg(f.sum("delay")).collect()
    assert (
        'the payload at position 0 of session one is malformed; .json(schema, mode="PERMISSIVE")'
        in str(failed.value)
    )
    frame = read.schema("seq").json(schema, mode="PERMISSIVE", spark=spark)
    assert frame.columns == ["seq", "carrier", "delay", "_corrupt_record"]
    rows = [tuple(row) for row in frame.orderBy("seq").collect()]
    assert rows[0] == (0, None, None, "null")
    assert rows[1:1001] == [(n + 1, "UA", n + 0.5, None) for n in range(1000)]
    assert rows[1001][0::3] == (1001, '{"carrier":"AA"')
    assert rows[1002] == (1002, "B6", None, None)
    kept = read.json(schema, mode="DROPMALFORMED", spark=spark)
    assert (kept.columns[:3], kept.count()) == (["session", "position", "time"], 1001)
    spark.sql(f"create or replace temporary view flights using rt options (path '{read.path}')")
    found = spark.sql(documented("from_json(cast")).where("_corrupt_record is null")
    assert found.select(f.sum("delay")).first()[0] == sum(range(1000)) + 500
    with pytest.raises(Misuse, match="the field time has the name of a column of the log"):
        read.json("time string", spark=spark)
    with pytest.raises(Misuse, match="give one of FAILFAST"):
        read.json(schema, mode="LENIENT", spark=spark)
    with pytest.raises(
        AnalysisException, match=r"no option decode: call rt.spark.read\(path\).json"
    ):
        spark.read.format("rt").option("decode", "json").load(read.path)


def test_a_damaged_frame_is_reported_as_the_mode_says(spark, tmp_path):
    """The default is to fail with the position."""
    with random_log(str(tmp_path), 20) as merging:
        pass
    total = len(plain_rows(merging.directory))
    lost = damaged(merging, 400)
    with pytest.raises(PythonException, match=r"corrupt at 0\.\d\.\d+: the body's CRC") as error:
        load(spark, merging.directory).count()
    assert "Traceback" not in str(error.value)
    assert load(spark, merging.directory, mode="DROPMALFORMED").count() == total - len(lost)
    told = load(spark, merging.directory, mode="PERMISSIVE").filter("_corrupt is not null")
    assert [row.session for row in told.collect()] == [lost[0].session]


def test_a_view_over_a_table_sees_new_rows_and_one_by_using_does_not(spark, tmp_path):
    """REFRESH cannot help the latter: Spark keeps the plan of its creation."""
    path = str(tmp_path / "s" / "one")

    def publish():
        with Publisher(str(tmp_path), stream="s", session="one") as publisher:
            publisher.publish(b"x")

    publish()
    spark.sql(f"create or replace temporary view fixed using rt options (path '{path}')")
    spark.sql("drop table if exists logs")
    spark.sql(f"create table logs using rt options (path '{path}')")
    query = f"select * from logs with (`path` = '{path}')"
    spark.sql(f"create or replace temporary view growing as {query}")
    for _ in range(2):
        counts = [
            spark.sql(f"select count(*) from {name}").first()[0] for name in ("fixed", "growing")
        ]
        publish()
    assert counts == [1, 2]
    spark.sql("drop table logs")
