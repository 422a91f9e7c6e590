"""Logs as tables: Spark's catalog, its own options, several logs, and errors of one line."""

import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource

from rt import Publisher
from rt.errors import Misuse
from rt.spark.formats.batch import RtSource
from rt.spark.formats.errors import check_version
from rt.spark.launch import register

pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("ignore")]


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """Two streams with three sessions."""
    made = tmp_path_factory.mktemp("logs")
    for stream, session, count in (("flights", "jfk", 3), ("flights", "lga", 4), ("rain", "x", 5)):
        with Publisher(str(made), stream=stream, session=session) as publisher:
            publisher.publish_many([b'{"a":%d}' % n for n in range(count)])
    return made


def test_a_table_of_the_catalog_is_created_and_read_with_its_path(spark, root):
    """Spark adds properties of its own, and passes none of a table's options on to a query."""
    path = f"{root}/flights/jfk"
    for name, how in (("by_path", f"options (path '{path}')"), ("by_place", f"location '{path}'")):
        spark.sql(f"drop table if exists {name}")
        spark.sql(f"create table {name} using rt {how}")
        with pytest.raises(AnalysisException, match="WITH"):
            spark.sql(f"select * from {name}").count()
        query = f"select count(*), max(number) from {name} with (`path` = '{path}')"
        assert tuple(spark.sql(query).first()) == (3, 2)
        spark.sql(f"drop table {name}")
    spark.sql("drop table if exists made")
    spark.catalog.createTable("made", path=path, source="rt")
    assert spark.read.option("path", path).table("made").count() == 3
    spark.sql("drop table made")


def test_several_logs_are_one_frame_with_their_streams(spark, root):
    """A list, a glob and a parent directory, with the stream as a column to group by."""
    read = spark.read.format("rt").option("columns", "stream, SESSION, file string")
    found = read.load(str(root)).groupBy("stream").count().collect()
    assert {row[0]: row[1] for row in found} == {"flights": 7, "rain": 5}
    assert read.load([f"{root}/rain/x", f"{root}/flights/jfk"]).count() == 8
    assert read.load(f"{root}/*/[jx]*").count() == 8
    assert read.option("streams", "rain").load(str(root)).count() == 5
    one = read.load(f"{root}/rain").select("file").distinct().collect()
    assert [row[0] for row in one] == [f"{root}/rain/x/log.0.0"]


def test_an_error_of_rt_is_one_line_without_a_traceback(spark, root):
    """A user who misspells an option should not have to read our source."""
    with pytest.raises(AnalysisException) as refused:
        spark.read.format("rt").option("startingPositoin", 1).load(f"{root}/rain/x")
    assert "did you mean startingPosition?" in str(refused.value)
    assert "Traceback" not in str(refused.value)
    with pytest.raises(AnalysisException) as missing:
        spark.read.format("rt").load(f"{root}/none").count()
    assert "holds no log" in str(missing.value)
    assert "Traceback" not in str(missing.value)


class Marker(DataSource):
    """Another source with the name `rt`, as a user may have registered."""

    @classmethod
    def name(cls):
        """Return the name for `format()`."""
        return "rt"

    def schema(self):
        """Return one column."""
        return "marked int"


def test_the_formats_are_registered_once(spark):
    """Spark warns of each further time, and each load of rt.spark.read registers them."""
    registered = []
    # a session whose JVM is out of reach
    names = {"version": spark.version, "sparkContext": spark.sparkContext}
    names["dataSource"] = SimpleNamespace(register=registered.append)
    session = type("Session", (), names)()
    register(session)
    register(session)
    assert [each.name() for each in registered] == ["rt", "rt-history"]
    spark.dataSource.register(Marker)
    try:
        register(SparkSession.getActiveSession())  # which knows them, though it is a new object
        assert spark.read.format("rt").load("any").columns == ["marked"]
    finally:
        spark.dataSource.register(RtSource)


PLAIN_SESSION = """
import sys
from pyspark.sql import SparkSession
import rt.spark
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", False).getOrCreate()
rt.spark.register(spark)
print("rows", spark.read.format("rt").load(sys.argv[1]).count())
"""


@pytest.mark.faults  # a JVM of its own; what the workers run is shown by test_examples.py too
def test_a_plain_session_in_a_venv_that_is_not_activated_reads_logs(root, tmp_path):
    """Its workers would run the python3 of PATH, which has none of the packages."""
    fake = tmp_path / "bin" / "python3"
    fake.parent.mkdir()
    fake.write_text("#!/bin/sh\necho 'the python3 of PATH was started' >&2\nexit 1\n")
    fake.chmod(0o755)
    environment = {**os.environ, "PATH": f"{fake.parent}:{os.environ['PATH']}"}
    for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
        environment.pop(name, None)
    done = subprocess.run(
        [sys.executable, "-c", PLAIN_SESSION, f"{root}/rain/x"],
        env=environment, capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert "rows 5" in done.stdout, done.stderr[-2000:]


def test_an_old_spark_is_refused_with_a_reason():
    """What tools/spark_matrix.py tries with one; newer ones are taken, released or not."""
    check_version("4.2.0")
    check_version("4.3.0.dev1")
    with pytest.raises(Misuse, match=r"this is Spark 4\.1\.4; rt needs PySpark 4\.2 or newer"):
        check_version("4.1.4")
