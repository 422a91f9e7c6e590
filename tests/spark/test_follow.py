"""`rt export --follow`: failures are told and tried again, gaps end it, its state is shown."""

import json
import os
import signal
import subprocess
import sys

import pytest
from click.testing import CliRunner

from rt import Publisher
from rt.cli.program import rt
from rt.errors import GapError, Misuse
from rt.limits import MIB
from rt.position import START, Position
from rt.spark import to_parquet
from rt.spark.table import read_table
from rt.tables.dataset import DataFile
from rt.tables.export import ExportSettings, parquet_opener
from rt.tables.follow import TableFollower
from rt.tables.payloads import NO_COLUMNS, parse_columns, read_columns
from rt.tables.table_state import FEW_FILES, LogName, TableState, due_runs
from rt.web.programs.table_site import TableSite
from rt.web.serving.recent import RecentEvents
from tests.layout import ROOT
from tests.spark.random_logs import STREAM, Merging, plain_rows, random_log
from tests.spark.test_export import expected, exported

ALL = ExportSettings(include_active=True)


def follower(log, out, settings=ALL):
    """Return a follower whose turns the test calls."""
    return TableFollower(log, parquet_opener(str(out), settings), settings, 1.0)


def small(count, size=1, place="date=1"):
    """A table of small files."""
    files = tuple(DataFile(f"f{n}", place, 1, size, n) for n in range(count))
    return TableState(LogName("", ""), START, files, files, (), NO_COLUMNS)


def runs(state, **given):
    """The names of the files that are joined, and whether the results are finished."""
    settings = {"by_time": True, "finishes": True, "seal": False, **given}
    return [([f.path for f in run], done) for run, done in due_runs(state, 100, **settings)]


def test_small_files_are_joined_at_the_target_or_when_there_are_many():
    """Each row is written again a few times at most, and no partition has many small files."""
    assert runs(small(3)) == []
    assert runs(small(3, 60)) == [(["f0", "f1"], True)]
    [(names, is_done)] = runs(small(FEW_FILES))
    assert (len(names), is_done) == (FEW_FILES, False)
    assert runs(small(1), seal=True) == [(["f0"], True)]
    assert runs(small(1), seal=True, finishes=False) == []
    later = DataFile("later", "date=2", 1, 1, 9)
    both = TableState(
        LogName("", ""), START, (*small(1).files, later), small(1).files, (), NO_COLUMNS
    )
    assert runs(both) == [(["f0"], True)]
    assert runs(both, by_time=False) == []


def test_a_log_that_is_not_there_yet_is_waited_for_and_told(tmp_path):
    """A service may start before the first pull."""
    log, out = str(tmp_path / STREAM / "jfk"), tmp_path / "out"
    following = follower(log, out)
    following.turn()
    assert following.status.problem == f"there is no log at {log} yet"
    with Publisher(str(tmp_path), stream=STREAM, session="jfk") as publisher:
        publisher.publish_many([b"a", b"b"])
    following.turn()
    following.close()
    status = following.status
    assert (status.problem, status.messages, status.lag_messages) == ("", 2, 0)
    assert status.position == status.end > START


def test_a_disk_that_fails_is_told_and_the_table_is_whole_when_it_works_again(tmp_path):
    """A full disk is no reason to end, nor to add twice what was written half."""
    with random_log(str(tmp_path / "data"), 1) as merging:
        following = follower(merging.directory, tmp_path / "out")
        site = TableSite(following, "out", RecentEvents())
        in_the_way = tmp_path / "out.rt-export.json.tmp"
        in_the_way.mkdir()  # the manifest cannot be written
        assert following.turn() < following.turn()
        assert "is a directory" in following.status.problem
        assert site.health().unready
        assert site.overview()["verdict"]["level"] == "degraded"
        assert following.status.lag_messages == len(plain_rows(merging.directory))
        assert following.status.lag_s(2 * following.status.waits_since_ns) > 1e9
        in_the_way.rmdir()
        following.turn()
        following.close()
        assert not site.health().unready
        assert site.status()[0]["lag_messages"] == 0
        rows = [(r.position, r.session, r.payload) for r in plain_rows(merging.directory)]
    assert read_table(merging.directory, str(tmp_path / "out")).rows == len(rows)


def test_what_was_archived_before_it_was_added_ends_it_unless_allowed_and_is_recorded(tmp_path):
    """Never a silent hole: the table says what it lacks."""
    out = str(tmp_path / "out")
    with random_log(str(tmp_path / "data"), 3, file_bytes_max=1 << 14) as merging:
        [gone] = merging.archive(1)
        stopped = follower(merging.directory, out)
        with pytest.raises(GapError, match=r"from 0\.0\.0 to 0\.1\.0 was archived.*--allow-gaps"):
            stopped.turn()
        stopped.close()
        following = follower(
            merging.directory, out, ExportSettings(include_active=True, allow_gaps=True)
        )
        following.turn()
        following.close()
        state = read_table(merging.directory, out)
        assert state.gaps == ((gone, Position.parse("0.1.0")),)
        assert state.rows == len(plain_rows(merging.directory))
        found = CliRunner().invoke(rt, ["export", "status", merging.directory, out])
    assert "without the messages from 0.0.0 to 0.1.0" in found.stdout
    assert "0 messages of the log not added yet" in found.stdout


def test_a_record_of_an_earlier_version_is_taken_over(tmp_path):
    """It named the files of the log, and how far the active one was exported."""
    out = tmp_path / "out"
    with random_log(str(tmp_path / "data"), 1, file_bytes_max=1 << 15) as merging:
        to_parquet(merging.directory, str(out))
        path = tmp_path / "out.rt-export.json"
        now = json.loads(path.read_text())
        rolled = merging.executor.appender.manifest.rolled
        old = {
            "log": now["log"], "partition": "day", "pending": [], "active": {},
            "files": {file.file_name: 1 for file in rolled},
        }  # fmt: skip
        path.write_text(json.dumps(old))
        with pytest.raises(Misuse, match="earlier version"):
            read_table(merging.directory, str(out))
        assert to_parquet(merging.directory, str(out)).messages == 0
        assert read_table(merging.directory, str(out)).position == now["position"]
        assert exported(out) == expected(merging)
        first = next(iter(rolled))
        old |= {"files": {}, "active": {first.file_name: rolled[first].end}}
        path.write_text(json.dumps(old))
        assert to_parquet(merging.directory, str(out)).messages < len(expected(merging))


def test_payloads_are_parsed_strictly_and_what_does_not_fit_says_why(tmp_path):
    """A number that is rounded, or a text that is cut, would be wrong without a word."""
    columns = parse_columns("n int, x double, s string, b boolean")
    fits = [b'{"n": 1, "x": 2, "s": "a", "b": true, "more": []}', b"{}", b'{"n": null}']
    whole, real = "field n is not of type int", "field x is not of type double"
    unfit = {
        b"": "not JSON", b"null": "not a JSON object", b"[" * 100_000: "not JSON",
        b'{"x": NaN}': "not JSON", b'{"n": true}': whole,
        b'{"n": 2147483648}': whole, b'{"n": 1.0}': whole,
        b'{"x": "1"}': real, b'{"b": 1}': "field b is not of type boolean",
        b'{"s": "\\ud800"}': "field s is not of type string", b"\xff": "not JSON",
        b'{"x": 1' + b"0" * 400 + b"}": real,
    }  # fmt: skip
    with Merging(str(tmp_path)) as merging:
        with Publisher(str(tmp_path), stream=STREAM, session="jfk") as publisher:
            publisher.publish_many([*fits, *unfit])
        merging.merge()
        out = str(tmp_path / "out")
        done = to_parquet(merging.directory, out, include_active=True, columns=columns.text)
        assert (done.messages, done.dead) == (len(fits) + len(unfit), len(unfit))
        import pyarrow.dataset as ds  # it imports pandas

        rows = ds.dataset(out).to_table(["n", "x", "s", "b"]).to_pylist()
        assert rows[0] == {"n": 1, "x": 2.0, "s": "a", "b": True}
        dead = ds.dataset(out + ".dead").to_table(["payload", "reason"]).to_pylist()
        assert {each["payload"]: each["reason"] for each in dead} == unfit
        with pytest.raises(Misuse, match="has the JSON columns n int"):
            to_parquet(merging.directory, out, columns="n bigint")
        for text, words in (("n", "not a field"), ("n long", "choose one"), ("seq int", "rename")):
            (tmp_path / "fields").write_text(text)
            with pytest.raises(Misuse, match=words):
                read_columns(str(tmp_path / "fields"))


@pytest.mark.process
def test_the_command_follows_until_it_is_told_to_stop(tmp_path):
    """As the unit in deploy/ runs it; the exit code is 0, and what was begun is committed."""
    unit = (ROOT / "deploy/systemd/rt-table@.service").read_text()
    assert "rt export ${FORMAT} ${LOG} ${TABLE} --follow $OPTIONS" in unit
    out = str(tmp_path / "out")
    with random_log(str(tmp_path / "data"), 1) as merging:
        command = [
            sys.executable, "-m", "rt", "export", "parquet", merging.directory, out, "--follow",
            "--every", "50ms", "--target-size", str(MIB),
        ]  # fmt: skip
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        try:
            while process.poll() is None and not os.path.exists(out + ".rt-export.json"):
                pass
        finally:
            process.send_signal(signal.SIGTERM)
            answer, said = process.communicate(timeout=60)
        rows = len(plain_rows(merging.directory))
    assert process.returncode == 0, said
    assert f"stopped: {rows:,} messages added, complete up to" in answer
