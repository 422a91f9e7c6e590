"""Spark on both sides of a real node: what it publishes is merged, pulled and read again."""

import pytest

from tests.faults.test_run_commands import STREAM, Site

pytestmark = [pytest.mark.spark, pytest.mark.process, pytest.mark.filterwarnings("ignore")]


@pytest.fixture
def site(tmp_path):
    """A node, and a push that ships what Spark publishes."""
    made = Site(tmp_path)
    made.node()
    link = made.link("publisher")
    made.start("push", "--root", tmp_path / "data", *link)
    yield made
    made.close()


def test_rows_go_through_a_node_and_back_each_once(spark, site, tmp_path):
    """With a root of each host's own: a task ends when its rows are merged."""
    frame = spark.range(0, 3000, 1, 2).selectExpr("cast(id as string) payload")
    writer = frame.write.format("rt").mode("append").option("stream", STREAM)
    writer = writer.options(session="job", batch=0, sharedRoot=False)
    writer.save(str(tmp_path / "data"))
    writer.save(str(tmp_path / "data"))
    assert site.pull("--once").exit_code == 0
    copy = spark.read.format("rt").load(str(tmp_path / "copy" / STREAM / "out"))
    assert sorted(int(row.payload) for row in copy.select("payload").collect()) == list(range(3000))
