"""`rt.read_arrow`: the same rows as a plain decoder, for pandas, Polars, DuckDB and Arrow."""

import subprocess
import sys

import pyarrow as pa
import pytest

import rt
from rt.errors import CorruptLog, GapError, Misuse
from tests.spark.random_logs import STREAM, plain_rows, random_log
from tests.spark.test_batch_reading import FIELDS, as_dicts, damaged


def read(path, **options):
    """The rows of a read, in the fields that the plain decoder knows."""
    return rt.read_arrow(path, columns=FIELDS, **options).read_all().to_pylist()


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_every_row_equals_the_plain_decoders(tmp_path, seed):
    """Runs, rolls, zstd, keys and repeats left out; every batch is valid Arrow."""
    with random_log(str(tmp_path), seed) as merging:
        rows = plain_rows(merging.directory)
        reader = rt.read_arrow(merging.directory)
        table = reader.read_all()
    table.validate(full=True)
    assert table.select(FIELDS).to_pylist() == as_dicts(rows)
    assert table.schema.field("merge_time").type == pa.timestamp("us", tz="UTC")
    assert [each.name for each in reader.schema][:4] == [
        "position",
        "time",
        "time_ns",
        "merge_time",
    ]


def test_starts_and_ends_are_those_of_a_subscriber(tmp_path):
    """Positions, times, `last:N` and words, as values and as text."""
    with random_log(str(tmp_path), 3) as merging:
        path, rows = merging.directory, plain_rows(merging.directory)
        expected = as_dicts(rows)
        first, last = rt.Position(rows[7].position), rt.Position(rows[40].position)
        assert read(path, start=first, end=str(last)) == expected[7:40]
        assert read(path, start="last:9") == read(path, start=rt.Last(9)) == expected[-9:]
        assert read(path, end="last:9") == expected[:-9]
        assert read(path, start="latest") == read(path, end="earliest") == []
        middle = rows[len(rows) // 2].merge_time_ns
        since = [row for row in expected if row["number"] >= _first_at(rows, middle)]
        assert read(path, start=rt.AtTime(middle)) == read(path, start=f"at:{middle}") == since
        assert read(path, end=rt.AtTime(middle)) + since == expected


def test_a_sequence_number_is_a_start_and_an_end_in_one_session(tmp_path):
    """What a program has handled of a session, and what it has not."""
    with random_log(str(tmp_path), 3) as merging:
        path, rows = merging.directory, plain_rows(merging.directory)
        name = rows[0].session
        own = as_dicts([row for row in rows if row.session == name])
        middle = own[len(own) // 2]["seq"]
        number = f"sequence:{middle}"
        later = read(path, start=number, sessions=name)
        assert later == [row for row in own if row["seq"] >= middle]
        assert read(path, end=rt.AtSequence(middle), sessions=[name]) + later == own
        reading = rt.spark.read(path).sessions(name).between(number)
        assert reading.options["startingPosition"] == str(rt.Position(later[0]["position"]))
        with pytest.raises(Misuse, match="choose exactly one"):
            read(path, start=number)
    with rt.Publisher(tmp_path, stream="own", session="jfk") as publisher:
        publisher.publish_many([b"a", b"b", b"c"])
    assert [row["seq"] for row in read(tmp_path / "own" / "jfk", start="sequence:1")] == [1, 2]
    with pytest.raises(Misuse, match="sequence:1 counts in one log"):
        read((str(tmp_path / "*" / "*")), start="sequence:1", sessions="jfk")


def _first_at(rows, merge_time_ns):
    return next(row.number for row in rows if row.merge_time_ns >= merge_time_ns)


def test_sessions_and_keys_select(tmp_path):
    """One name or several, globs of sessions, and prefixes of keys."""
    with random_log(str(tmp_path), 4) as merging:
        path, expected = merging.directory, as_dicts(plain_rows(merging.directory))
    session = expected[0]["session"]
    mine = [row for row in expected if row["session"] == session]
    assert read(path, sessions=session) == read(path, sessions=[session, "no-*"]) == mine
    key = next(row["key"] for row in expected if row["key"])
    assert read(path, keys=key) == [row for row in expected if row["key"] == key]
    prefixed = [row for row in expected if row["key"] and row["key"].startswith(key[:1])]
    assert read(path, keys=[key[:1].decode() + "*"]) == prefixed


def test_what_is_appended_after_the_call_is_not_read(tmp_path):
    """The end is fixed by the call, so that two queries of one reader's data agree."""
    with random_log(str(tmp_path), 5) as merging:
        rows = plain_rows(merging.directory)
        reader = rt.read_arrow(merging.directory, columns="number")
        with rt.Publisher(str(tmp_path), stream=STREAM, session="lga") as publisher:
            publisher.publish_many([b"late"] * 500)
        merging.merge()
        assert reader.read_all().num_rows == len(rows)


def test_a_gap_is_an_error_unless_it_may_be_skipped(tmp_path):
    """Rows that were archived are never missing silently."""
    with random_log(str(tmp_path), 8, file_bytes_max=1 << 15) as merging:
        path, rows = merging.directory, plain_rows(merging.directory)
        reader = rt.read_arrow(path)
        gone = merging.archive(2)
        with pytest.raises(GapError, match="was archived"):
            reader.read_all()
        with pytest.raises(GapError, match="was archived"):
            rt.read_arrow(path, start="0.0.0")
        left = as_dicts([row for row in rows if row.position >= gone[-1].next_file()])
        assert read(path) == read(path, start="0.0.0", on_gap="skip") == left


def test_damage_is_an_error_with_its_position(tmp_path):
    """Not a row less, and not a wrong one."""
    with random_log(str(tmp_path), 20) as merging:
        lost = damaged(merging, 150)
        with pytest.raises(CorruptLog, match="CRC") as raised:
            rt.read_arrow(merging.directory).read_all()
    assert raised.value.position <= lost[0].position


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"columns": ["payloads"]}, "there is no column 'payloads'; choose from position"),
        ({"columns": ["key", "key"]}, "a column is named twice: key, key"),
        ({"on_gap": "notify"}, "on_gap is 'notify'; use raise or skip"),
        ({"start": "yesterday"}, "not a start: 'yesterday'"),
        ({"sessions": ["JFK"]}, "JFK"),
        ({"start": "0.0.900", "end": "0.0.8"}, "is before the start"),
    ],
)
def test_wrong_arguments_are_refused_by_the_call(tmp_path, arguments, words):
    """Before anything is read, in one sentence."""
    with random_log(str(tmp_path), 1) as merging, pytest.raises(Misuse, match=words):
        rt.read_arrow(merging.directory, **arguments)


def test_a_directory_without_a_log_is_refused(tmp_path):
    """Not an empty table."""
    with pytest.raises(Misuse, match="holds no log"):
        rt.read_arrow(tmp_path)


def test_pandas_reads_it(tmp_path):
    """`read_pandas` is all there is to it."""
    pytest.importorskip("pandas")
    with random_log(str(tmp_path), 2) as merging:
        frame = rt.read_arrow(merging.directory, columns=["session", "payload_size"]).read_pandas()
        rows = plain_rows(merging.directory)
    assert list(frame["payload_size"]) == [len(row.payload) for row in rows]


def test_polars_reads_it(tmp_path):
    """Polars takes any object with an Arrow stream."""
    polars = pytest.importorskip("polars")
    with random_log(str(tmp_path), 2) as merging:
        frame = polars.from_arrow(rt.read_arrow(merging.directory, columns=["seq", "session"]))
        rows = plain_rows(merging.directory)
    assert frame["seq"].to_list() == [row.seq for row in rows]


def test_duckdb_reads_it(tmp_path):
    """DuckDB finds the reader by the name of its variable and reads it batch by batch."""
    duckdb = pytest.importorskip("duckdb")
    with random_log(str(tmp_path), 2) as merging:
        log = rt.read_arrow(merging.directory, columns=["session", "payload"])
        query = "select session, count(*), sum(octet_length(payload)) from log group by 1"
        found = {name: (count, size) for name, count, size in duckdb.sql(query).fetchall()}
        rows = plain_rows(merging.directory)
    assert log is not None
    for session, (count, size) in found.items():
        payloads = [row.payload for row in rows if row.session == session]
        assert (count, size) == (len(payloads), sum(map(len, payloads)))
    assert set(found) == {row.session for row in rows}


MEMORY = """
import resource, sys, rt
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
total = 0
first = rt.read_arrow(sys.argv[1], columns=["payload"], end="last:2000")
size = sum(batch.nbytes for batch in first)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for _ in range(3):
    total += sum(batch.nbytes for batch in rt.read_arrow(sys.argv[1], columns=["payload"]))
print(size, total, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def test_memory_does_not_grow_with_the_log(tmp_path):
    """A log of 96 MB, read three times, needs no more than its first read."""
    with rt.Publisher(tmp_path, stream=STREAM, session="big") as publisher:
        for _ in range(96):
            publisher.publish_many([bytes(10_000)] * 100)
    path = str(tmp_path / STREAM / "big")
    done = subprocess.run(
        [sys.executable, "-c", MEMORY, path], capture_output=True, text=True, check=True
    )
    size, total, grown_kib = map(int, done.stdout.split())
    assert size > 70_000_000
    assert total > 3 * 96_000_000
    assert grown_kib < 24_000


def test_without_pyarrow_the_error_names_the_extra(monkeypatch, tmp_path):
    """Arrow is optional; the message says how to get it."""
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.delitem(sys.modules, "rt.spark.reading.task", raising=False)
    with pytest.raises(ImportError, match=r"read_arrow needs pyarrow; .* the extra 'arrow'"):
        rt.read_arrow(tmp_path)
