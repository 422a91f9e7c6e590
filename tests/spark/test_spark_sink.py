"""The batch sink, and the history of a log, in a real Spark."""

import pytest
from pyspark.errors import AnalysisException, PythonException
from pyspark.sql.types import StringType, StructField, StructType

from rt.errors import Misuse
from rt.format.manifest import Archived
from rt.position import Position
from rt.spark.formats.batch import RtSource
from rt.spark.formats.sink import host_name
from tests.spark.random_logs import NOW_NS, STREAM, Merging, plain_rows, random_log
from tests.spark.reading import Load, wanted

pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("ignore")]


def frame_of(spark, count):
    """Return a DataFrame of messages."""
    what = "cast(id as string) payload", "cast(id % 7 as string) key", f"{NOW_NS} + id time_ns"
    return spark.range(0, count, 1, 3).selectExpr(*what)


def merged_rows(root):
    """Merge what was published, and read it back."""
    with Merging(str(root)) as merging:
        merging.merge()
    return plain_rows(merging.directory)


def test_a_frame_is_published_with_keys_times_and_headers(spark, tmp_path):
    """What comes back is what was written."""
    headers = "if(id % 2 = 0, map('n', cast(cast(id as string) as binary)), null) headers"
    frame = frame_of(spark, 1000).selectExpr("*", headers.replace("id", "cast(payload as bigint)"))
    frame.write.format("rt").option("stream", STREAM).mode("append").save(str(tmp_path))
    names = ("payload", "key", "time_ns", "headers")
    rows = Load(str(tmp_path / STREAM)).read(wanted(*names)).to_pylist()
    found = sorted((int(r["payload"]), r["key"], r["time_ns"], r["headers"]) for r in rows)
    assert found == [
        (n, b"%d" % (n % 7), NOW_NS + n, [] if n % 2 else [("n", b"%d" % n)]) for n in range(1000)
    ]
    long = frame_of(spark, 1).selectExpr(
        "payload", "map('n', cast(repeat('x', 20000) as binary)) headers"
    )
    with pytest.raises(PythonException, match="the headers of a message take"):
        long.write.format("rt").option("stream", "t").mode("append").save(str(tmp_path))


def test_a_write_goes_to_the_stream_that_each_row_names(spark, tmp_path):
    """One query may route: alerts here, the rest there."""
    what = "cast(id as string) payload", "concat('s', id % 2) stream"
    spark.range(0, 100, 1, 3).selectExpr(*what).write.format("rt").mode("append").save(
        str(tmp_path)
    )
    for odd in (0, 1):
        payloads = Load(f"{tmp_path}/s{odd}").read(wanted("payload"))["payload"].to_pylist()
        assert sorted(map(int, payloads)) == list(range(odd, 100, 2))
    bad = spark.range(1).selectExpr("'x' payload", "'Not A Name' stream").write.format("rt")
    with pytest.raises(PythonException, match="not a stream name"):
        bad.mode("append").save(str(tmp_path))


def test_hosts_of_their_own_are_merged_once_by_the_group(spark, tmp_path):
    """A task that is tried on another host publishes the same numbers again."""
    for host in ("a", "b"):
        fields = {"stream": STREAM, "session": "job", "batch": 3}
        spark.conf.set("spark.executorEnv.RT_HOST", host)
        _write_as_host(frame_of(spark, 600), host, str(tmp_path), fields)
    assert sorted(int(row.payload) for row in merged_rows(tmp_path)) == list(range(600))


def _write_as_host(frame, host, root, fields):
    """Run the sink's own code for each partition as on a host of that name, without its wait."""

    def publish(rows):
        import os

        import pyarrow as pa
        from pyspark import TaskContext

        from rt.log.notify.confirmations import Level
        from rt.spark.formats.sink import SinkOptions, write_partition

        os.environ["RT_HOST"] = host
        table = pa.Table.from_pylist([row.asDict() for row in rows])
        options = SinkOptions(
            root, fields["stream"], fields["session"], shared_root=False, flush=Level.SYNCED
        )
        place = TaskContext.get().partitionId()
        write_partition(
            options, fields["session"], fields["batch"], place, iter(table.to_batches())
        )
        return []

    frame.rdd.mapPartitions(publish).collect()


def test_hosts_whose_long_names_begin_alike_have_names_of_their_own(monkeypatch):
    """Pods are named so. Of two logs with one name, nodes take the first and refuse the other."""
    pods = [f"spark-executors-of-flights-7d9f8-{each}" for each in ("x2lqp", "q8wzk")]
    found = []
    for name in (*pods, "Worker_1.example.org"):
        monkeypatch.setenv("RT_HOST", name)
        found.append(host_name())
    assert len(set(found)) == 3
    assert max(map(len, found)) <= 24
    assert found[2] == "worker-1-example-org"


def refusal(options, columns):
    """The reason for which a write is refused, before Spark plans it."""
    schema = StructType([StructField(name, StringType()) for name in columns.split(", ")])
    with pytest.raises(Misuse) as refused:
        RtSource({"path": "/data", **options}).writer(schema, overwrite=False)
    return str(refused.value)


@pytest.mark.parametrize(
    ("options", "columns", "words"),
    [
        ({}, "payload", "needs a root and a stream"),
        ({"stream": "S"}, "payload", "not a stream name"),
        ({"stream": "s", "partition": "t"}, "payload", "no option 'partition'"),
        ({"stream": "s", "topic": "t"}, "payload", "are one option"),
        ({"stream": "s", "batch": "1"}, "payload", "give the option session too"),
        ({"stream": "s", "sharedRoot": "false", "flush": "synced"}, "payload", "flush=merged"),
        ({"stream": "s", "flushTimeout": "soon"}, "payload", "'soon': not a number"),
        ({"stream": "s", "flush": "now"}, "payload", "flush='now': no level"),
        ({"stream": "s"}, "key", "needs a column payload"),
        ({"stream": "s"}, "payload, headers", "takes no column headers string"),
        ({"stream": "s"}, "value", "takes no column value"),
    ],
)
def test_impossible_writes_are_refused_with_a_reason(options, columns, words):
    """Before the first message is published."""
    assert words in refusal(options, columns)


def test_a_log_cannot_be_overwritten(spark, tmp_path):
    """It is only appended to."""
    writer = frame_of(spark, 1).write.format("rt").option("stream", STREAM).mode("overwrite")
    with pytest.raises(AnalysisException, match="only appended to"):
        writer.save(str(tmp_path))


def test_the_history_of_a_log_is_a_frame(spark, tmp_path):
    """One row a file: what is there, what was archived, when, why, and who decided it."""
    with random_log(str(tmp_path), 3, file_bytes_max=1 << 14) as merging:
        gone = merging.archive(2)
        merging.executor.appender.archive(Archived(gone[1], NOW_NS, "disk", by=7))
        rows = plain_rows(merging.directory)
        found = spark.read.format("rt-history").load(merging.directory).orderBy("position")
        files = found.collect()
        lines = merging.executor.appender.manifest.rolled
    assert [row.state for row in files[:3]] == ["archived", "archived", "rolled"]
    assert files[-1].state == "active"
    assert [row.archive_reason for row in files[:3]] == ["limit", "disk", None]
    assert [row.archived_by for row in files[:3]] == [None, 7, None]
    assert sum(row.messages or 0 for row in files[2:]) + files[0].messages + files[1].messages == (
        files[-2].next_number
    )
    assert rows[0].number == files[1].next_number
    rolled = [lines[Position(row.position)] for row in files[:-1]]
    assert [(row.sessions, row.digest) for row in files[:-1]] == [
        (line.sessions or None, line.digest or None) for line in rolled
    ]
    assert all(len(row.digest) == 32 and row.sessions for row in files[:-1])
    assert (files[-1].sessions, files[-1].digest) == (None, None)
    assert found.filter("archived_by = 7").select("file").first().file == gone[1].file_name
