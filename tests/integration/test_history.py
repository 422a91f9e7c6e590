"""History: what became of every file, without asking anyone or reading any file."""

import json
import os
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest

from rt.cli.common import exits
from rt.errors import CorruptLog, Misuse
from rt.format.manifest import MERGED, Archived, LogIdentity, Rolled, encode_entry
from rt.inspect.history import Row, active_row, history, rolled_rows
from rt.inspect.history_text import HistoryText
from rt.log.files.disk import OsDisk
from rt.log.files.identity import new_identity
from rt.log.write.appender import Appender
from rt.net import admin
from rt.net.authority.identity import CertificateRole, PeerIdentity
from rt.node.admin.node_admin import NodeAdmin
from rt.position import START, Position
from rt.publisher import Publisher
from tests.commands import Process, publish, run
from tests.control_fuzz import NODE
from tests.logs import TIME_NS, MergedLog

MS = 1_000_000
MINUTE_NS = 60_000_000_000
SUBSCRIBER = PeerIdentity("spark", CertificateRole.SUBSCRIBER, streams=("*",))


@pytest.fixture
def log(tmp_path):
    """Return the directory of a log of three files: archived, rolled, active."""
    with MergedLog(str(tmp_path / "out")) as log:
        log.merge("jfk", [b"AA1", b"B62"])
        log.merge("ewr", [b"UA7"])
        log.roll()
        log.merge("ewr", [b"UA8"])
        log.roll()
        log.merge("jfk", [b"DL3", b"DL4"])
        log.merge("jfk", [b"DL5"])
        log.appender.archive(Archived(START, TIME_NS + 90 * MINUTE_NS, "disk"))
    return str(tmp_path / "out")


def test_row_says_what_the_file_held_and_what_became_of_it(log):
    """Also when its bytes are gone."""
    first, second, third = history(log)
    assert first == Row(
        Rolled(START, 448, 0, 3, TIME_NS + MS, TIME_NS + 2 * MS, TIME_NS + 2 * MS),
        Archived(START, TIME_NS + 90 * MINUTE_NS, "disk"),
    )
    assert (first.state, first.messages, first.end) == ("archived", 3, Position.of(0, 0, 448))
    assert (second.file, second.state, second.messages) == ("log.0.1", "rolled", 1)
    assert (third.file, third.state, third.messages) == ("log.0.2", "active", 3)
    assert (third.line.first_time_ns, third.line.last_time_ns) == (
        TIME_NS + 4 * MS,
        TIME_NS + 5 * MS,
    )
    assert third.age_ns(time.time_ns()) is None


def test_archived_file_of_any_age_needs_no_file(log):
    """An operator may delete the empty ones; the manifest remembers."""
    before = history(log)
    os.unlink(os.path.join(log, "log.0.0"))
    assert history(log) == before


def test_active_file_is_listed_while_it_grows(tmp_path):
    """The row of the moment, torn end or not."""
    with Publisher(str(tmp_path), stream="stream", session="jfk") as publisher:
        publisher.publish_many([b"1", b"2"])
        directory = os.path.join(tmp_path, "stream", "jfk")
        (row,) = history(directory)
        assert (row.state, row.messages, row.line.first) == ("active", 2, 0)
        with open(os.path.join(directory, "log.0.0"), "ab") as file:
            file.write(b"half a frame")
        assert history(directory) == [row]


def test_log_without_a_message_has_no_rows(tmp_path):
    """It was made, and nothing came."""
    Appender(OsDisk(), str(tmp_path), LogIdentity(MERGED, "s", "out", "0" * 32, 0)).close()
    assert history(str(tmp_path)) == []
    assert run("log-history", tmp_path, "--json").stdout == "[]\n"


@pytest.mark.parametrize("line", [b"{} 00000000\n", b"x\n", b'{"what":1} 8d9b5a5e\n'])
def test_damaged_manifest_is_never_guessed_at(log, line):
    """A history that is wrong is worse than none."""
    with open(os.path.join(log, "manifest"), "ab") as file:
        file.write(line)
    with pytest.raises(CorruptLog):
        history(log)


def test_line_that_is_being_written_is_not_yet_history(log):
    """It has no newline, so it does not count."""
    before = history(log)
    with open(os.path.join(log, "manifest"), "ab") as file:
        file.write(b'{"rt":1,"what":"archived"')
    assert history(log) == before


def test_directory_without_a_log_is_refused(tmp_path):
    """An empty result would look like an empty log."""
    with pytest.raises(Misuse, match="holds no log"):
        history(str(tmp_path))


def test_table_has_a_row_for_each_file(log):
    """What a person looks at first."""
    result = run("log-history", log)
    assert result.exit_code == 0
    rows = [line.split() for line in result.stdout.splitlines()[1:-1]]
    assert [row[:2] for row in rows] == [
        ["log.0.0", "archived"], ["log.0.1", "rolled"], ["log.0.2", "active"],
    ]  # fmt: skip
    assert rows[0][-2:] == ["2013-01-01T06:47:00.000000000Z", "disk"]
    assert result.stdout.endswith("\n3 files, 7 messages\n")
    assert result.stderr == ""


def test_json_has_our_names_and_those_of_the_system_this_one_follows(log):
    """So that tools that were written for the other one go on working."""
    first, second, third = json.loads(run("log-history", log, "--json").stdout)
    assert first["state"] == "archived"
    assert first["path"] == os.path.join(log, "log.0.0")
    assert (first["first_position"], first["end_position"]) == ("0.0.0", "0.0.448")
    assert first["first_time"] == "2013-01-01T05:17:00.001000000Z"
    assert (first["messages"], first["bytes"]) == (3, 448)
    assert first["archived_at"] == "2013-01-01T06:47:00.000000000Z"
    assert first["archive_reason"] == "disk"
    assert third["age_s"] is None
    assert third["rolled_at"] is None
    assert second["archived_at"] is None
    assert second["age_s"] > 0


def test_json_has_the_fields_of_the_system_this_one_follows(log):
    """Their types, too: minutes, -1 for active, a time without a zone, a leading colon."""
    rows = json.loads(run("log-history", log, "--json").stdout)
    minutes = (time.time_ns() - TIME_NS) // MINUTE_NS
    assert [
        (row["logPath"], row["logPos"], row["truncationTime"]) for row in rows
    ] == [
        (f":{log}/log.0.0", 0, "2013-01-01T06:47:00.000000000"),
        (f":{log}/log.0.1", 1 << 30, ""),
        (f":{log}/log.0.2", 2 << 30, ""),
    ]  # fmt: skip
    assert rows[0]["logTime"] == "2013-01-01T05:17:00.001000000"
    assert rows[2]["logAge"] == -1
    assert rows[0]["logAge"] in (minutes - 1, minutes)


def test_path_and_reason_are_quoted_as_json_wants_them(tmp_path):
    """They are written by hand, for speed."""
    row = Row(Rolled(START, 8, 0, 1, 1, 1, 1), Archived(START, 1, 'a "b"\n'))
    told = json.loads(HistoryText('/x "y"\\é', 0).json(row))
    assert told["logPath"] == ':/x "y"\\é/log.0.0'
    assert told["archive_reason"] == 'a "b"\n'


@pytest.mark.parametrize(
    ("options", "files"),
    [
        ([], "012"),
        (["--archived"], "0"),
        (["--live"], "12"),
        (["--since", "2013-01-01T05:17:00.003Z"], "12"),
        (["--until", "2013-01-01T05:17:00.003Z"], "0"),
        (["--since", "2013-01-01T05:17:00.002Z", "--until", "2013-01-01T05:17:00.0035Z"], "01"),
        (["--since", "2100-01-01"], ""),
        (["--from-position", "0.0.0"], "012"),
        (["--from-position", "0.0.447"], "012"),
        (["--from-position", "0.0.448"], "12"),
        (["--from-position", str(1 << 30)], "12"),
        (["--from-position", "0.2.5000"], ""),
        (["--to-position", "0.1.0"], "0"),
        (["--to-position", "0.1.1"], "01"),
        (["--from-position", "0.1.8", "--to-position", "0.1.9"], "1"),
        (["--from-position", "0.0.8", "--to-position", "0.2.0", "--live"], "1"),
        (["--from-position", "0.1.0", "--until", "2013-01-01T05:17:00.0035Z"], "1"),
    ],
)
def test_files_are_chosen_by_time_place_and_state(log, options, files):
    """Which files hold yesterday afternoon, or a reader's position?"""
    rows = json.loads(run("log-history", log, "--json", *options).stdout)
    assert "".join(row["path"][-1] for row in rows) == files


@pytest.mark.parametrize("option", ["--from-position", "--to-position"])
def test_invalid_position_is_bad_use(log, option):
    """One sentence, as everywhere."""
    result = run("log-history", log, option, "here")
    assert result.exit_code == exits.BAD_USE
    assert "not a position: 'here'" in result.stderr


def test_invalid_time_is_bad_use(log):
    """One sentence, as everywhere."""
    result = run("log-history", log, "--since", "yesterday")
    assert result.exit_code == exits.BAD_USE
    assert "the time 'yesterday' is not ISO 8601" in result.stderr


@pytest.mark.parametrize(
    ("age_ns", "words"), [(59 * 10**9, "59 s"), (61 * 10**9, "1 min 1 s"),
                          (3700 * 10**9, "1 h 1 min"), (90_000 * 10**9, "1 d 1 h")],
)  # fmt: skip
def test_age_is_shown_in_two_units(age_ns, words):
    """Ages in tens of thousands of minutes mean nothing to people."""
    row = Row(Rolled(START, 8, 0, 1, 1, 1, at_ns=0))
    assert words in HistoryText("/x", age_ns).cells(row)


def test_history_covers_sessions_too(tmp_path):
    """A publisher's own files age and are archived, too."""
    for _ in range(3):
        directory = publish(tmp_path, [b"1", b"2"])
    assert [(row.file, row.messages, row.line.first) for row in history(directory)] == [
        ("log.0.0", 2, 0), ("log.1.0", 2, 2), ("log.2.0", 2, 4),
    ]  # fmt: skip


def test_the_history_of_many_files_opens_none_of_them(tmp_path):
    """Years of files: the benchmarks hold the time, this is the reason for it."""
    lines, start = [encode_entry(LogIdentity(MERGED, "s", "out", "0" * 32, 0))], START
    for number in range(2000):
        lines.append(encode_entry(Rolled(start, 8, number, number + 1, number, number, number)))
        start = start.next_file()
    (tmp_path / "manifest").write_bytes(b"".join(lines))
    rows = history(str(tmp_path))  # fails if it opens one, since none is there
    assert [row.line.first for row in rows] == list(range(2000))


def test_a_long_history_lists_every_file_once_and_in_order(tmp_path):
    """It is written in pieces; a reader that leaves early is not an error."""
    count = 20_003
    lines = [encode_entry(new_identity(MERGED, "flights", "out", created_ns=1))]
    for number in range(count):
        file = Position.of(number >> 14, number & 16383, 0)
        lines.append(encode_entry(Rolled(file, 8, number, number + 1, number, number, number)))
    (tmp_path / "manifest").write_bytes(b"".join(lines))
    command = [sys.executable, "-m", "rt", "log-history", str(tmp_path), "--json"]
    told = subprocess.run(command, capture_output=True, check=True)
    assert told.stderr == b""
    rows = json.loads(told.stdout)
    assert [row["first_number"] for row in rows] == list(range(count))
    assert told.stdout.count(b"\n") == count + 2
    with Process(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == b""


@pytest.mark.parametrize("look", ["end", "is_open", "facts"])
def test_a_file_rolled_while_a_node_reports_its_history_is_listed_once(tmp_path, look):
    """The lines and the end are read one after the other, while the node keeps writing."""
    with MergedLog(str(tmp_path / "out")) as log:
        log.merge("jfk", [b"AA1", b"B62"])

        class Rolling:
            """The appender; the file is rolled, and the next begun, just before one look at it."""

            def __getattr__(self, name):
                if name == look and not log.appender.manifest.rolled:
                    log.roll()
                    log.merge("ewr", [b"UA7"])
                return getattr(log.appender, name)

        member = SimpleNamespace(
            executor=SimpleNamespace(appender=Rolling(), lacks_log=False),
            execution=SimpleNamespace(suspended=False),
        )
        sequencing = SimpleNamespace(
            view=SimpleNamespace(
                notes={}, end=Position(0), leads=True, engine=SimpleNamespace(term=1)
            ),
            ask=lambda question: question(),
        )
        settings = SimpleNamespace(name="n1", stream="flights")
        asked = NodeAdmin(settings, sequencing, member, None)
        answer = asked.answer(b'{"do": "log-history"}', NODE)
    rows = admin.parse_history(answer, "n1:1").rows
    assert [(row.file, row.messages) for row in rows if not row.is_active][:1] == [("log.0.0", 2)]
    assert [row.file for row in rows] in (["log.0.0"], ["log.0.0", "log.0.1"])


def test_the_first_file_rolled_while_a_directory_is_read_is_listed(tmp_path):
    """A file that the manifest did not list was active when it was read, whatever followed."""
    with MergedLog(str(tmp_path / "out")) as log:
        log.merge("jfk", [b"AA1", b"B62"])
        rows = rolled_rows((tmp_path / "out" / "manifest").read_bytes(), "manifest")
        log.roll()
        log.merge("ewr", [b"UA7"])
        assert rows == []
        row = active_row(log.directory, rows)
        assert (row.file, row.messages) == ("log.0.0", 2)
