"""Streaming queries over several logs: offsets, new logs, limits, replays. No session is needed."""

import json
import shutil

import pytest

pytest.importorskip("pyspark")

from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from pyspark.sql.types import LongType, StringType, StructField, StructType

from rt import Publisher
from rt.errors import Misuse
from rt.spark.formats.stream import RtStreamReader
from rt.spark.reading.options import read_options

ALL = ReadAllAvailable()
SCHEMA = StructType([StructField("stream", StringType()), StructField("seq", LongType())])


def publish(root, stream, count, session="one"):
    """Append so many messages to a session of its own."""
    with Publisher(str(root), stream=stream, session=session) as publisher:
        publisher.publish_many([b"x"] * count)
        publisher.flush("written")


def reader(path, **options):
    """A query as Spark makes it at each start."""
    paths = {"paths": json.dumps(path)} if isinstance(path, list) else {"path": str(path)}
    options = {name: str(value) for name, value in options.items()}
    return RtStreamReader(read_options({**paths, **options}), SCHEMA)


def read(query, begin, end):
    """The rows of a micro-batch: stream and number."""
    batches = [each for part in query.partitions(begin, end) for each in query.read(part)]
    rows = [tuple(row.values()) for batch in batches for row in batch.to_pylist()]
    assert len(set(rows)) == len(rows)
    return sorted(rows)


def rows_of(stream, first, last):
    """Return what `read` yields of the messages from `first` up to `last`."""
    return [(stream, seq) for seq in range(first, last)]


@pytest.fixture
def root(tmp_path):
    """A directory with two streams."""
    publish(tmp_path, "flights", 40)
    publish(tmp_path, "weather", 10)
    return tmp_path


def test_one_query_reads_all_streams_below_a_directory_and_finds_new_ones(root):
    """As a subscription to several topics: each message once, also of a stream that comes later."""
    query = reader(root)
    begin = query.initialOffset()
    end = query.latestOffset(begin, ALL)
    assert read(query, begin, end) == rows_of("flights", 0, 40) + rows_of("weather", 0, 10)
    query.stop()
    publish(root, "alerts", 5)
    publish(root, "weather", 3)
    query = reader(root)  # as after a restart: Spark takes the offset from its checkpoint
    following = query.latestOffset(end, ALL)
    assert read(query, end, following) == rows_of("alerts", 0, 5) + rows_of("weather", 10, 13)
    assert query.latestOffset(following, ALL) == following
    query.stop()


def test_a_query_over_one_log_goes_on_over_several(root):
    """Its checkpoint has the offset of one log; the others begin at their beginning."""
    one = reader(root / "flights" / "one")
    begin = one.initialOffset()
    end = one.latestOffset(begin, ALL)
    assert (end["v"], read(one, begin, end)) == (1, rows_of("flights", 0, 40))
    one.stop()
    several = reader([str(root / "flights" / "one"), str(root / "weather" / "one")])
    following = several.latestOffset(end, ALL)
    assert (following["v"], read(several, end, following)) == (2, rows_of("weather", 0, 10))
    several.stop()


def test_a_query_over_a_directory_may_begin_before_its_logs_do(tmp_path):
    """It waited forever, since the directory itself is no log."""
    query = reader(tmp_path / "later")
    begin = query.initialOffset()
    assert query.latestOffset(begin, ALL) == begin
    query.stop()
    publish(tmp_path / "later", "flights", 4)
    end = query.latestOffset(begin, ALL)
    assert read(query, begin, end) == rows_of("flights", 0, 4)
    query.stop()


def test_a_query_that_begins_at_the_latest_reads_what_follows_in_each_log(root):
    """The place where each began is in the end of the first batch, for its replay."""
    query = reader(root, startingOffsets="latest")
    begin = query.initialOffset()
    for stream in ("flights", "weather"):
        publish(root, stream, 2)
    end = query.latestOffset(begin, ALL)
    expected = rows_of("flights", 40, 42) + rows_of("weather", 10, 12)
    assert read(query, begin, end) == expected
    query.stop()
    again = reader(root, startingOffsets="latest")
    assert read(again, again.initialOffset(), end) == expected
    again.stop()


def test_limits_are_shared_out_by_what_each_log_has_left(root):
    """Or the first log would starve the others."""
    query = reader(root, maxOffsetsPerTrigger=10)
    assert query.getDefaultReadLimit() == ReadMaxRows(10)
    place, found, sizes = query.initialOffset(), [], []
    while (end := query.latestOffset(place, ReadMaxRows(10))) != place:
        rows = read(query, place, end)
        sizes.append(len(rows))
        found += rows
        place = end
    assert sorted(found) == rows_of("flights", 0, 40) + rows_of("weather", 0, 10)
    assert len(sizes) >= 5
    assert max(sizes) <= 11  # at least one of each log
    query.stop()


def test_only_selected_streams_are_read(root):
    """A directory of many streams, and a query on one of them."""
    query = reader(root, subscribe="weather")
    begin = query.initialOffset()
    assert read(query, begin, query.latestOffset(begin, ALL)) == rows_of("weather", 0, 10)
    query.stop()


def test_a_log_of_the_checkpoint_that_is_gone_is_an_error_unless_loss_is_allowed(root):
    """Nothing would say that a stream is no longer read."""
    query = reader(root)
    begin = query.initialOffset()
    end = query.latestOffset(begin, ALL)
    query.stop()
    shutil.rmtree(root / "weather")
    publish(root, "flights", 2)
    with pytest.raises(Misuse, match="not among those of this load"):
        reader(root).latestOffset(end, ALL)
    with pytest.raises(Misuse, match="not among those of this load"):
        reader(root).partitions(begin, end)
    one = reader(root / "flights" / "one")
    at = one.latestOffset(one.initialOffset(), ALL)
    one.stop()
    with pytest.raises(Misuse, match="not among those of this load"):
        reader(root / "flights" / "other").latestOffset(at, ALL)
    query = reader(root, failOnDataLoss=False)
    following = query.latestOffset(end, ALL)
    assert read(query, end, following) == rows_of("flights", 40, 42)
    query.stop()


def test_copies_of_one_log_are_refused(root):
    """Their messages would come twice."""
    shutil.copytree(root / "flights" / "one", root / "copy" / "one")
    with pytest.raises(Misuse, match="copies of one log"):
        reader(root).initialOffset()


def test_a_position_starts_one_log_only(root):
    """It means another place in another log."""
    with pytest.raises(Misuse, match="a position belongs to one log"):
        reader(root, startingPosition="0.0.0").initialOffset()


def test_progress_says_how_far_the_logs_are_behind(root):
    """By the names of Spark's Kafka source too, as dashboards have them."""
    query = reader(root)
    query.latestOffset(query.initialOffset(), ALL)
    publish(root, "flights", 6)
    found = query.reportLatestOffset()
    names = ("rows_behind", "minOffsetsBehindLatest", "maxOffsetsBehindLatest")
    assert [found[name] for name in names] == [6, 0, 6]
    assert found["avgOffsetsBehindLatest"] == 3.0
    assert found["bytes_behind"] > 0
    query.stop()
