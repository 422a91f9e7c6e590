"""Compares what a batch query reads of a log with a plain decoder; needs no Spark."""

import os
import re
import struct
from contextlib import closing
from pathlib import Path
from random import Random

import pyarrow as pa
import pytest
from logs import make_frame

from rt import Publisher, read_arrow
from rt.errors import CorruptLog, FrameError, GapError, Misuse
from rt.format.walk import Walk
from rt.position import Position
from rt.spark import gaps, to_parquet
from rt.spark.reading.arrays import PieceGroup
from rt.spark.reading.bodies import Body
from rt.spark.reading.options import read_options
from rt.spark.reading.pieces import Piece
from rt.spark.reading.plan import headers, open_log
from rt.spark.reading.task import Task
from tests.spark.random_logs import NOW_NS, STREAM, Merging, PlainRow, plain_rows, random_log
from tests.spark.reading import Load, wanted

FIELDS = ("position", "time_ns", "session", "seq", "number", "key", "payload")


def as_dicts(rows: list[PlainRow]) -> list[dict[str, object]]:
    """Return plain rows as Arrow gives them."""
    return [{name: getattr(row, name) for name in FIELDS} for row in rows]


def expect(load: Load, rows: list[PlainRow]) -> None:
    """Hold what a load reads against plain rows."""
    assert load.read(wanted(*FIELDS)).to_pylist() == as_dicts(rows)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("split", [500, 5_000, 100_000, "128m"])
def test_every_row_equals_the_plain_decoders(tmp_path, seed, split):
    """Runs, rolls, zstd, keys and repeats left out, for any size of splits."""
    with random_log(str(tmp_path), seed) as merging:
        rows = plain_rows(merging.directory)
        load = Load(merging.directory, partitionBytes=split)
        table = load.read()
    assert rows
    assert table.select(FIELDS).to_pylist() == as_dicts(rows)
    assert table["payload_size"].to_pylist() == [len(row.payload) for row in rows]
    micros = [row.merge_time_ns // 1000 for row in rows]
    assert table["merge_time"].cast(pa.int64()).to_pylist() == micros
    assert table["time"].cast(pa.int64()).to_pylist() == [row.time_ns // 1000 for row in rows]
    if split == 500:
        assert len(load.splits()) > 10


@pytest.mark.parametrize("options", [{}, {"sessions": "jfk"}, {"partitionBytes": 3000}])
def test_no_task_has_more_messages_than_it_may(tmp_path, options):
    """As maxRecordsPerPartition of Spark's Kafka source: what follows a row may be expensive."""
    with random_log(str(tmp_path), 4) as merging:
        rows = plain_rows(merging.directory)
    rows = [row for row in rows if row.session == "jfk" or "sessions" not in options]
    load = Load(merging.directory, maxRecordsPerPartition=70, **options)
    tasks = [load.read(wanted(*FIELDS), [split]) for split in load.splits()]
    assert [row for task in tasks for row in task.to_pylist()] == as_dicts(rows)
    assert max(task.num_rows for task in tasks) == 70
    if "partitionBytes" not in options:
        assert len(tasks) == -(-len(rows) // 70)


@pytest.mark.parametrize("seed", range(10, 14))
def test_any_two_positions_cut_exactly_what_lies_between(tmp_path, seed):
    """A start or an end may lie inside a frame, a range, a run of repeats or between files."""
    random = Random(seed)
    with random_log(str(tmp_path), seed) as merging:
        rows = plain_rows(merging.directory)
        for _ in range(30):
            first, last = sorted(random.choices(range(len(rows)), k=2))
            start = rows[first].position - random.randrange(2) * (first == 0)
            stop = rows[last].position
            load = Load(
                merging.directory, startingPosition=Position(max(0, start)),
                endingPosition=Position(stop), partitionBytes=random.choice((1000, 1 << 27)),
            )  # fmt: skip
            expect(load, rows[first:last])


def test_a_time_window_gives_what_was_merged_in_it(tmp_path):
    """Merge times never go back, so a window is two positions, and nothing outside it is read."""
    with random_log(str(tmp_path), 3, rounds=12) as merging:
        rows = plain_rows(merging.directory)
        times = sorted({row.merge_time_ns for row in rows})
        low, high = times[len(times) // 3], times[len(times) // 2]
        load = Load(merging.directory, startingTimestamp=low, endingTimestamp=high)
        expect(load, [row for row in rows if low <= row.merge_time_ns < high])
        assert Load(merging.directory, startingTimestamp=times[-1] + 1).read().num_rows == 0


def test_sessions_and_keys_select(tmp_path):
    """Names, globs, exact keys and prefixes, together."""
    with random_log(str(tmp_path), 4) as merging:
        rows = plain_rows(merging.directory)
        jfk = [row for row in rows if row.session in ("jfk", "one")]
        expect(Load(merging.directory, sessions="j*,one"), jfk)
        expect(Load(merging.directory, keys="k1,k3"), [r for r in rows if r.key in (b"k1", b"k3")])
        expect(Load(merging.directory, keys='["k*"]', sessions="jfk"), [
            row for row in rows if row.session == "jfk" and row.key is not None
        ])  # fmt: skip
        assert Load(merging.directory, keys="k1,k3").read(wanted("number")).num_rows


def test_a_key_of_a_json_array_is_taken_literally(tmp_path):
    """A key may begin or end with a blank; another key's rows would be returned for it."""
    with Publisher(str(tmp_path), stream=STREAM, session="jfk") as publisher:
        for key in (b"AA", b"AA ", b" AA", b" A"):
            publisher.publish(b"of " + key, key)
    path = os.path.join(tmp_path, STREAM, "jfk")
    found = [Load(path, keys=keys).read(wanted("key")) for keys in ('["AA "]', '[" A*"]', "AA , x")]
    assert [rows["key"].to_pylist() for rows in found] == [[b"AA "], [b" AA", b" A"], [b"AA"]]


def test_a_log_without_its_index_is_split_all_the_same(tmp_path):
    """An index is rebuildable and never believed: without one, headers are read."""
    with random_log(str(tmp_path), 5) as merging:
        pass
    rows = plain_rows(merging.directory)
    for name in os.listdir(merging.directory):
        if name.endswith(".idx"):
            os.unlink(os.path.join(merging.directory, name))
    load = Load(merging.directory, partitionBytes=20_000)
    assert len(load.splits()) > 3
    expect(load, rows)


def test_a_damaged_index_moves_no_row(tmp_path):
    """Each entry is held against the frame it leads to."""
    with random_log(str(tmp_path), 5) as merging:
        pass
    rows = plain_rows(merging.directory)
    for name in os.listdir(merging.directory):
        if name.endswith(".idx"):
            path = os.path.join(merging.directory, name)
            with open(path, "r+b") as file:
                file.write(Random(1).randbytes(os.path.getsize(path)))
    expect(Load(merging.directory, partitionBytes=20_000), rows)


def test_a_torn_tail_counts_as_not_yet_written(tmp_path):
    """A copy that grows ends in half a frame most of the time."""
    with random_log(str(tmp_path), 6) as merging:
        pass
    rows = plain_rows(merging.directory)
    last = max(Position(row.position).file for row in rows)
    path = os.path.join(merging.directory, last.file_name)
    with open(path, "rb") as file:
        data = file.read()
    with open(path, "ab") as file:
        file.write(data[:100])
    expect(Load(merging.directory), rows)
    os.truncate(path, len(data) - 3)
    load = Load(merging.directory)
    found = load.read(wanted(*FIELDS)).to_pylist()
    assert found == as_dicts(rows)[: len(found)]
    assert 0 < len(rows) - len(found) <= 400


def test_what_is_appended_after_the_load_is_not_read(tmp_path):
    """The end is fixed once per load: a query run twice gives the same rows."""
    with random_log(str(tmp_path), 7) as merging:
        rows = plain_rows(merging.directory)
        load = Load(merging.directory, partitionBytes=10_000)
        before = load.splits()
        with Publisher(str(tmp_path), stream=STREAM, session="lga") as publisher:
            publisher.publish_many([b"late"] * 5000)
        merging.merge()
        assert len(plain_rows(merging.directory)) == len(rows) + 5000
        expect(load, rows)
        assert load.read(wanted(*FIELDS), before).to_pylist() == as_dicts(rows)


def test_what_is_archived_after_the_load_fails_with_its_position(tmp_path):
    """Never silently fewer rows: the task names what is gone, and why."""
    with random_log(str(tmp_path), 8, file_bytes_max=1 << 15) as merging:
        rows = plain_rows(merging.directory)
        load, lenient = Load(merging.directory), Load(merging.directory, failOnDataLoss=False)
        planned = load.splits()
        gone = merging.archive(2)
        for parts in (planned, None):
            with pytest.raises(GapError, match=r"from 0.0.0 to 0.1.0 was archived \(limit;"):
                load.read(parts=parts)
        left = [row for row in rows if row.position >= gone[-1].next_file()]
        expect(lenient, left)
        expect(Load(merging.directory), left)
        with pytest.raises(GapError):
            Load(merging.directory, startingPosition="0.0.0")
        with pytest.raises(GapError):
            Load(merging.directory, startingTimestamp=NOW_NS)
    (gap,) = gaps(merging.directory)
    assert (gap.begin, gap.end, gap.reason) == (0, gone[-1].next_file(), "limit")


@pytest.mark.parametrize("place", [0, 2, -1])
def test_a_file_that_was_deleted_by_hand_is_an_error_that_names_it(tmp_path, place):
    """No line of the manifest archives it: batches, Arrow, streams and exports say so."""
    with random_log(str(tmp_path), 3, file_bytes_max=1 << 14) as merging:
        path, file = merging.directory, merging.executor.appender.manifest.order[place]
        left = [row for row in plain_rows(path) if not file <= row.position < file.next_file()]
        os.unlink(os.path.join(path, file.file_name))
        named = rf"is missing, though it was not archived \({file.file_name}\); start from "
        for read in (
            lambda: Load(path),
            lambda: Load(path, startingTimestamp=1),
            lambda: read_arrow(path),
            lambda: to_parquet(path, str(tmp_path / "out"), include_active=True),
            lambda: stream_rows(path),
        ):
            with pytest.raises(GapError, match=named):
                read()
        expect(Load(path, failOnDataLoss=False), left)
        assert stream_rows(path, failOnDataLoss="false") == len(left)


def stream_rows(path, **options):
    """Return how many rows a streaming query reads of what is there."""
    pytest.importorskip("pyspark")
    from pyspark.sql.streaming.datasource import ReadAllAvailable
    from pyspark.sql.types import LongType, StructField, StructType

    from rt.spark.formats.stream import RtStreamReader

    schema = StructType([StructField("position", LongType())])
    query = RtStreamReader(read_options({"path": path, **options}), schema)
    begin = query.initialOffset()
    end = query.latestOffset(begin, ReadAllAvailable())
    found = [batch for part in query.partitions(begin, end) for batch in query.read(part)]
    query.stop()
    return sum(batch.num_rows for batch in found)


@pytest.mark.parametrize("gone", [5, 11])
def test_a_window_inside_one_archived_file_is_a_gap(tmp_path, gone):
    """A file may hold a day: an hour whose rows are gone is not an hour without rows."""
    with random_log(str(tmp_path), 3, file_bytes_max=1 << 14) as merging:
        manifest = merging.executor.appender.manifest
        line, later = (manifest.rolled[manifest.order[place]] for place in (3, 5))
        first, last = line.first_time_ns + 1, line.last_time_ns
        window = {"startingTimestamp": first, "endingTimestamp": last}
        assert Load(merging.directory, **window).read().num_rows
        merging.archive(gone)
        if gone == len(manifest.order):
            os.unlink(os.path.join(merging.directory, manifest.order[-1].next_file().file_name))
        with pytest.raises(GapError, match="was archived"):
            Load(merging.directory, **window)
        expect(Load(merging.directory, **window, failOnDataLoss=False), [])
        # between two files nothing was merged, so nothing of that is lost
        pause = (manifest.rolled[manifest.order[4]].last_time_ns + 1, later.first_time_ns)
        quiet = {"startingTimestamp": pause[0], "endingTimestamp": pause[1]}
        expect(Load(merging.directory, **quiet), [])


def test_a_file_archived_while_a_task_reads_it_is_a_gap(tmp_path):
    """The rows before are right; the later ones are gone, and the error says so."""
    with random_log(str(tmp_path), 9, file_bytes_max=1 << 22, rounds=3) as merging:
        with Publisher(str(tmp_path), stream=STREAM, session="lga") as publisher:
            publisher.publish_many([bytes(1000)] * 12_000)
        merging.merge()
        load = Load(merging.directory, startingPosition="0.0.0")
        files = [file for file, _ in load.snapshots[0].files]
        assert len(files) > 2
        batches = Task((load.snapshots[0].place,), load.options, wanted()).read(load.splits()[0])
        next(batches)  # all of the first two files is in memory now
        merging.archive(3)
        with pytest.raises(GapError, match="archived"):
            list(batches)


def test_a_log_that_was_made_again_is_not_read(tmp_path):
    """Positions of one log mean nothing in another."""
    with random_log(str(tmp_path / "a"), 1) as first, random_log(str(tmp_path / "b"), 1) as second:
        load = Load(first.directory)
        planned = load.splits()
        os.rename(first.directory, first.directory + ".gone")
        os.rename(second.directory, first.directory)
        with pytest.raises(Misuse, match="not the log that was loaded"):
            load.read(parts=planned)


def test_a_session_loads_too(tmp_path):
    """Where it was published, with sequence numbers for numbers and no merge time."""
    with Publisher(str(tmp_path), stream=STREAM, session="jfk") as publisher:
        for place in range(300):
            publisher.publish_many([b"%d" % place] * 50)
    path = str(tmp_path / STREAM / "jfk")
    load = Load(path, partitionBytes=2000)
    table = load.read()
    assert table["payload"].to_pylist() == [
        b"%d" % place for place in range(300) for _ in range(50)
    ]
    assert table["seq"].to_pylist() == table["number"].to_pylist() == list(range(15_000))
    assert set(table["merge_time"].to_pylist()) == {None}
    assert set(table["session"].to_pylist()) == {"jfk"}


def damaged(merging: Merging, place: int) -> list[PlainRow]:
    """Flip a byte inside the frame of the row at `place`; return the rows of that frame."""
    rows = plain_rows(merging.directory)
    row = rows[place]
    frame = [r for r in rows if r.position - r.number == row.position - row.number]
    at = Position(frame[0].position)
    path = os.path.join(merging.directory, at.file_name)
    with open(path, "r+b") as file:
        file.seek(at.offset + 70)
        byte = file.read(1)
        file.seek(at.offset + 70)
        file.write(bytes([byte[0] ^ 1]))
    return frame


@pytest.mark.parametrize("split", [5_000, "128m"])
def test_a_damaged_frame_in_each_mode(tmp_path, split):
    """Fail at once, return one row that says so, or skip it; never a wrong row."""
    with random_log(str(tmp_path), 20) as merging:
        pass
    rows = plain_rows(merging.directory)
    place = next(i for i in range(100, len(rows)) if rows[i].position == rows[i - 1].position + 1)
    lost = damaged(merging, place)
    kept = [row for row in rows if row not in lost]
    path = merging.directory
    with pytest.raises(CorruptLog, match="CRC"):
        Load(path, partitionBytes=split).read()
    expect(Load(path, partitionBytes=split, mode="DROPMALFORMED"), kept)
    load = Load(path, partitionBytes=split, mode="permissive")
    found = load.read(wanted(*FIELDS, "_corrupt")).to_pylist()
    bad = [row for row in found if row.pop("_corrupt") and found]
    assert [row for row in found if row not in bad] == as_dicts(kept)
    assert len(bad) == 1
    assert bad[0]["session"] == lost[0].session
    assert bad[0]["payload"] is None


@pytest.mark.parametrize("kind", ["merged", "session"])
def test_reading_goes_on_at_the_next_frame_after_any_header_that_is_damaged(tmp_path, kind):
    """In a merged log at the next range, which says whose messages follow."""
    with random_log(str(tmp_path), 5, rounds=4) as merging:
        path = merging.directory if kind == "merged" else f"{tmp_path}/{STREAM}/lga"
        with Publisher(str(tmp_path), stream=STREAM, session="lga") as publisher:
            for count in range(1, 15):
                publisher.publish_many([b"x"] * count)
                publisher.flush("written")
    whole = Load(path).read(wanted("position", "session", "seq")).to_pylist()
    with open_log(path) as view:
        file, end = max(view.files(), key=lambda each: each[1])
        with closing(view.log.open_file(file)) as data:
            walk = Walk(file, merged=kind == "merged", session=view.log.session)
            frames = [at for at, _ in headers(data, walk, end)]
    assert len(frames) > 5
    name = os.path.join(path, file.file_name)
    for number in range(0, len(frames) - 2, max(1, len(frames) // 12)):
        with open(name, "r+b") as data:
            kept = os.pread(data.fileno(), 64, frames[number].offset)
            os.pwrite(data.fileno(), bytes(64), frames[number].offset)
            found = Load(path, mode="DROPMALFORMED").read(wanted("position", "session", "seq"))
            os.pwrite(data.fileno(), kept, frames[number].offset)
        rows = found.to_pylist()
        left = {row["position"] for row in rows}
        assert [row for row in whole if row["position"] in left] == rows
        assert rows[-1] == whole[-1]
        assert len(rows) < len(whole)


@pytest.mark.parametrize("seed", range(8))
def test_no_damage_makes_a_wrong_row(tmp_path, seed):
    """Whatever bytes are written over: each row that is given out is one that was written."""
    random = Random(seed)
    with random_log(str(tmp_path), seed) as merging:
        pass
    rows = {row.position: row for row in plain_rows(merging.directory)}
    names = [f for f in os.listdir(merging.directory) if f.startswith("log") and "idx" not in f]
    # of the last file a reader cannot tell damage from a tail that is not written yet
    path = os.path.join(merging.directory, random.choice(sorted(names)[:-1]))
    with open(path, "r+b") as file:
        for _ in range(5):
            file.seek(random.randrange(os.path.getsize(path)))
            file.write(random.randbytes(random.choice((1, 8, 500))))
    for split in (3000, "128m"):
        for mode in ("DROPMALFORMED", "PERMISSIVE"):
            load = Load(merging.directory, mode=mode, partitionBytes=split)
            for row in load.read(wanted(*FIELDS, "_corrupt")).to_pylist():
                if row.pop("_corrupt") is None:
                    assert row == as_dicts([rows[row["position"]]])[0]
        with pytest.raises(CorruptLog):
            Load(merging.directory, partitionBytes=split).read()


@pytest.mark.parametrize("ends", [(0, 2, 1 << 30, 6), (0, 4, 2, 6), (0, 1 << 31, 4, 6)])
@pytest.mark.parametrize(("first", "last"), [(0, 2), (1, 2), (1, 3), (0, 3)])
def test_offsets_that_lead_out_of_a_body_are_refused_for_any_cut_of_a_frame(ends, first, last):
    """A writer can seal any nonsense; the JVM would read past the buffer it is handed."""
    frame = make_frame(0, [b"AA", b"BB", b"CC"])
    columns = memoryview(frame.parts[1][:24] + struct.pack("<4I", *ends))
    body = Body(columns, memoryview(b"AABBCC and another frame's"), 0, 6, b"")
    group = PieceGroup([Piece(frame.header, body, Position(0), "jfk", None, first, last, 0)])
    with pytest.raises(FrameError, match="the offsets of the messages"):
        group.payload.validate(full=True)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"topic": "x"}, "no option 'topic'"),
        ({"startingPosition": "0.0.0", "startingTimestamp": "1"}, "contradict"),
        ({"startingPosition": "0.0.9", "endingPosition": "0.0.8"}, "before the start"),
        ({"startingPosition": "first"}, "startingPosition='first'"),
        ({"startingPosition": "0.7.0"}, "the log ends at"),
        ({"mode": "FAST"}, "FAILFAST, PERMISSIVE, DROPMALFORMED"),
        ({"partitionBytes": "many"}, "partitionBytes='many'"),
        ({"maxBytesPerTrigger": ""}, "maxBytesPerTrigger=''"),
        ({"keys": "AA, ,BB"}, "give comma-separated names"),
        ({"keys": "[" * 100_000}, "give comma-separated names"),
        ({"minPartitions": "0"}, "whole number of at least 1"),
        ({"sessions": "JFK"}, "sessions='JFK'"),
        ({"failOnDataLoss": "maybe"}, "TRUE, FALSE"),
    ],
)
def test_impossible_options_are_refused_with_a_reason(tmp_path, options, words):
    """Spark takes any option in silence, so a misspelt one would read everything."""
    with random_log(str(tmp_path), 1, rounds=1) as merging, pytest.raises(Misuse, match=words):
        Load(merging.directory, **options)


def test_a_directory_without_a_log_is_refused(tmp_path):
    """An empty result would hide a misspelt path."""
    with pytest.raises(Misuse, match="holds no log"):
        Load(str(tmp_path))


def test_the_options_of_sparks_kafka_source_are_taken_by_their_names():
    """Those that SPARK.md's table has in bold: a query that is moved here keeps them."""
    text = (Path(__file__).parents[2] / "docs" / "SPARK.md").read_text(encoding="utf-8")
    table = text.partition("### Coming from Spark's Kafka source")[2].partition("**What is")[0]
    names = re.findall(r"\*\*([a-zA-Z]+)\*\*", "".join(re.findall(r"(?m)^\| [^|]*", table)))
    values = {"subscribe": "s", "failOnDataLoss": "false", "maxTriggerDelay": "15m"}
    values |= {f"{edge}Timestamp": "2013-01-01T10:00Z" for edge in ("starting", "ending")}
    values |= {"startingOffsets": "earliest", "endingOffsets": "latest"}
    assert len(names) > 10
    for name in set(names) - {"topic"}:
        assert read_options({"path": "p", name: values.get(name, "5")}), name
    for name in ("subscribePattern", "assign", "kafka.bootstrap.servers"):
        with pytest.raises(Misuse, match=f"has no option {name}: "):
            read_options({"path": "p", name: "x"})
    with pytest.raises(Misuse, match=r"^startingOffsets='x': "):
        read_options({"path": "p", "startingOffsets": "x"})
    pytest.importorskip("pyspark")
    from rt.spark.formats.sink import sink_options

    assert sink_options({"path": "p", "topic": "s"}).stream == "s"
