"""Filters that a load takes: it reads less, its rows are the same, and no wrong Spark may."""

import pyspark.sql.functions as f
import pytest
from pyspark.errors import AnalysisException

import rt.spark
from rt.errors import Misuse
from rt.spark import probe
from tests.spark.random_logs import plain_rows, random_log
from tests.spark.test_spark_batch import load, plain, rows_of

pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("ignore")]


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    """A merged log and its rows."""
    with random_log(str(tmp_path_factory.mktemp("log")), 5) as merging:
        pass
    return merging.directory, plain_rows(merging.directory)


@pytest.fixture
def pushing(spark, monkeypatch):
    """A session assumed to give right rows, which holds while each load is used once."""
    monkeypatch.setattr(probe, "gives_right_rows", lambda spark: True)
    rt.spark.push_filters(spark)
    yield spark
    spark.conf.set(probe.PUSH_DOWN, "false")
    rt.spark.register(spark)


def test_the_probe_knows_the_sparks_that_leak(spark):
    """Its three counts are those that came out wrong; its settings are put back."""
    is_right = probe.gives_right_rows(spark)
    assert is_right == (not spark.version.startswith(("4.2", "4.3")))
    assert spark.conf.get(probe.PUSH_DOWN) == "false"


def test_a_source_that_ignores_filters_passes_the_probe(spark):
    """So the probe fails by what Spark does with them, and by nothing else."""

    class DeafReader(probe.ProbeReader):
        def pushFilters(self, filters):  # noqa: N802 - Spark's
            return filters

    class DeafSource(probe.ProbeSource):
        def reader(self, schema):
            return DeafReader()

    assert probe.gives_right_rows(spark, DeafSource)


def test_a_spark_that_gives_wrong_rows_is_refused_and_works_without_filters(
    spark, log, monkeypatch
):
    """Silently wrong rows are worse than slow ones, so the option is refused."""
    path, rows = log
    monkeypatch.setattr(probe, "gives_right_rows", lambda spark: False)
    with pytest.raises(Misuse, match=r"returns wrong rows .* Select positions, times and sessions"):
        rt.spark.push_filters(spark)
    assert spark.conf.get(probe.PUSH_DOWN) == "false"
    with pytest.raises(AnalysisException, match=r"call rt.spark.push_filters\(spark\)"):
        load(spark, path, pushFilters="true").count()
    frame = load(spark, path)
    assert frame.filter("number < 10").count() == 10
    assert frame.count() == len(rows)


def test_pushed_filters_give_the_rows_that_spark_alone_gives(pushing, log):
    """For each filter that is used, those that are not, and both together."""
    path, rows = log
    middle, times = rows[len(rows) // 2], sorted({row.merge_time_ns // 1000 for row in rows})
    when = f.timestamp_micros(f.lit(times[len(times) // 2]))
    filters = [
        f.col("position") >= middle.position,
        f.col("position") < middle.position,
        (f.col("position") > rows[10].position) & (f.col("position") <= rows[500].position),
        f.col("position") == middle.position,
        f.col("position") == middle.position + (1 << 40),
        f.col("position") < -1,
        f.col("session").isin("absent", middle.session),
        f.col("session") == "Not A Name",
        f.col("merge_time") > when,
        f.col("merge_time") <= when,
        f.col("merge_time") == when,
        (f.col("merge_time") < when) & (f.col("session") == middle.session),
        (f.col("number") < 7) | (f.col("position") == middle.position),
        (f.col("session") != middle.session) & (f.col("position") >= middle.position),
    ]
    alone = load(pushing, path).cache()
    for each in filters:
        # one load per use: this Spark is assumed to be right, and is not
        found = rows_of(load(pushing, path, pushFilters="true").filter(each))
        assert found == rows_of(alone.filter(each)), each
    assert alone.count() == len(rows)


def test_pushed_filters_save_reading(pushing, log):
    """Parts of the log that no row can come from are no tasks."""
    path, rows = log
    everything = load(pushing, path, pushFilters="true")
    few = load(pushing, path, pushFilters="true").filter(f.col("position") < rows[20].position)
    assert few.rdd.getNumPartitions() <= 2
    assert everything.rdd.getNumPartitions() > 5
    assert rows_of(load(pushing, path)) == plain(rows)


def test_a_stream_takes_no_filters(pushing, log):
    """Spark hands it none, so the option would promise what cannot be."""
    stream = pushing.readStream.format("rt").option("pushFilters", "true").load(log[0])
    with pytest.raises(Exception, match="pushFilters is for read"):
        stream.writeStream.format("noop").trigger(availableNow=True).start().awaitTermination()
