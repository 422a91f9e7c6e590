"""rt.spark.read: cuts by position, time and session, and a summary from headers."""

import os
from datetime import UTC, datetime
from pathlib import Path
from random import Random

import pytest

import rt.spark
from rt import Publisher
from rt.errors import CorruptLog, Misuse
from rt.position import Position
from tests.spark.random_logs import STREAM, plain_rows, random_log
from tests.spark.reading import bytes_read


def expect(summary, rows):
    """Hold a summary of merged messages against a plain decoder's rows."""
    assert summary.messages == len(rows)
    if rows:
        assert (summary.position_min, summary.position_max) == (rows[0].position, rows[-1].position)
        assert (summary.number_min, summary.number_max) == (rows[0].number, rows[-1].number)
        times = rows[0].merge_time_ns, rows[-1].merge_time_ns
        assert (summary.merge_time_ns_min, summary.merge_time_ns_max) == times
    else:
        assert summary.position_min is None


@pytest.mark.parametrize("seed", range(12))
def test_a_summary_equals_that_of_all_rows(tmp_path, seed):
    """Whole, cut anywhere, and of some sessions: runs, rolls, repeats and incomplete ranges."""
    random = Random(seed)
    with random_log(str(tmp_path), seed) as merging:
        rows, load = plain_rows(merging.directory), rt.spark.read(merging.directory)
        expect(load.summary(), rows)
        jfk = [row for row in rows if row.session == "jfk"]
        expect(load.sessions("jfk").summary(), jfk)
        for _ in range(20):
            first, last = sorted(random.choices(range(len(rows)), k=2))
            start, stop = Position(rows[first].position), Position(rows[last].position)
            expect(load.between(start, stop).summary(), rows[first:last])
            cut = [row for row in jfk if start <= row.position < stop]
            expect(load.between(str(start), str(stop)).sessions("j*").summary(), cut)


def test_times_cut_as_positions_do(tmp_path):
    """An aware datetime, or text in ISO 8601."""
    with random_log(str(tmp_path), 3) as merging:
        rows, load = plain_rows(merging.directory), rt.spark.read(merging.directory)
        middle = rows[len(rows) // 2].merge_time_ns // 1000 * 1000
        time = datetime.fromtimestamp(middle / 1e9, UTC).replace(microsecond=middle // 1000 % 10**6)
        expect(load.between(time).summary(), [r for r in rows if r.merge_time_ns >= middle])
        text = time.isoformat()
        expect(load.between(end=text).summary(), [r for r in rows if r.merge_time_ns < middle])


def test_a_session_is_counted_by_messages_though_its_numbers_jump(tmp_path):
    """Numbers in a session may have holes; a merged stream's have none."""
    with Publisher(str(tmp_path), stream=STREAM, session="jfk") as publisher:
        publisher.publish_many([b"a", b"b"])
        publisher.skip_to(100)
        publisher.publish(b"c")
    summary = rt.spark.read(os.path.join(tmp_path, STREAM, "jfk")).summary()
    assert (summary.messages, summary.number_min, summary.number_max) == (3, 0, 100)
    assert summary.merge_time_ns_min is None


def test_whole_files_are_not_read_for_a_count(tmp_path):
    """The manifest counts them: only the first file, the last and those that are cut are read."""
    with random_log(str(tmp_path), 2, rounds=12, file_bytes_max=1 << 14) as merging:
        rows, load = plain_rows(merging.directory), rt.spark.read(merging.directory)
        expect(load.summary(), rows)
        before = bytes_read()
        load.summary()
        found = bytes_read() - before
    files = [path for path in Path(merging.directory).iterdir() if path.suffix != ".idx"]
    assert found < sum(path.stat().st_size for path in files) / 2


def test_damage_in_a_header_is_an_error(tmp_path):
    """A smaller count would be a wrong answer in silence."""
    with Publisher(str(tmp_path), stream=STREAM, session="jfk") as publisher:
        for _ in range(3):
            publisher.publish(b"x" * 1000)
            publisher.flush("written")
    path = os.path.join(tmp_path, STREAM, "jfk")
    with open(os.path.join(path, "log.0.0"), "r+b") as file:
        file.seek(1100)
        file.write(b"\xff" * 40)
    with pytest.raises(CorruptLog):
        rt.spark.read(path).summary()


def test_what_cannot_be_said_is_refused(tmp_path):
    """In one sentence each."""
    with Publisher(str(tmp_path), stream=STREAM, session="jfk") as publisher:
        publisher.publish(b"x")
    load = rt.spark.read(os.path.join(tmp_path, STREAM, "jfk"))
    with pytest.raises(Misuse, match="keys are not in them"):
        load.option(keys="a").summary()
    with pytest.raises(Misuse, match="would read nothing"):
        load.between("latest")
    with pytest.raises(Misuse, match="not a start"):
        load.between("yesterday")
    with pytest.raises(Misuse, match="no option"):
        load.option(colour="red").summary()


def test_it_loads_a_frame(spark, tmp_path):
    """The options it collects are those of a load."""
    with Publisher(str(tmp_path), stream=STREAM, session="jfk") as publisher:
        publisher.publish_many([b"a", b"bb", b"ccc"])
    path = tmp_path / STREAM / "jfk"
    read = rt.spark.read(path).between("last:2")
    frame = read.schema("headers map<string, binary>, payload_size int").load(spark)
    assert sorted((row.payload_size, row.headers) for row in frame.collect()) == [(2, {}), (3, {})]
    assert Position(0) == rt.spark.read(path).summary().position_min
