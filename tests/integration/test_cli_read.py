"""`rt subscribe`: writes a stream to stdout, from any position, for as long as wanted."""

import base64
import json
import os
import signal

import pytest

from rt.cli.common import exits
from rt.format.manifest import SESSION, Archived, LogIdentity
from rt.log.files.disk import OsDisk
from rt.log.write.appender import Appender
from rt.log.write.writer import WriterSettings
from rt.position import START, Position
from rt.publisher import Publisher
from tests.commands import PATIENCE_S, finish, publish, run, start
from tests.logs import MergedLog

OWN = ("--own-session", "jfk", "--no-follow")


def read(root, *options, **extra):
    """Run `rt subscribe` on stream `stream`."""
    return run("subscribe", "--root", root, *options, **extra)


def lines(result):
    """Return the lines of a command that succeeded."""
    assert result.exit_code == 0, result.stderr
    return result.stdout_bytes.split(b"\n")[:-1]


@pytest.fixture
def merged(tmp_path):
    """Return a merged log: ranges of jfk and ewr, keys of two bytes, one repeat left out."""
    (tmp_path / "stream").mkdir()
    with MergedLog(str(tmp_path / "stream" / "out")) as log:
        log.merge("jfk", [b"AA1", b"B62"], keys=True)
        log.merge("ewr", [b"UA7"], [b"AA9", b"UA8"], keys=True)
        log.roll()
        log.merge("jfk", [b"AA1", b"DL3"], keys=True, skip=1)
    return log


def test_lines_of_a_session_come_out_as_they_went_in(tmp_path):
    """Publish and subscribe are a pipe with a memory."""
    publish(tmp_path, [b"AA1", b"", b"\xff"])
    assert lines(read(tmp_path, *OWN)) == [b"AA1", b"", b"\xff"]


def test_raw_output_adds_nothing(tmp_path):
    """Payloads that carry their own ends, such as a file sent in pieces, are joined again."""
    publish(tmp_path, [b"AA", b"1\n", b"B6"])
    assert read(tmp_path, *OWN, "--output", "raw").stdout_bytes == b"AA1\nB6"


def test_json_holds_everything_about_a_message(tmp_path, merged):
    """Whatever a user asks of a message later, the line has it."""
    found = [json.loads(line) for line in lines(read(tmp_path, "--no-follow", "--output", "json"))]
    for line, row in zip(found, merged.expected, strict=True):
        assert line["session"] == row.session
        assert line["sequence"] == row.sequence
        assert line["number"] == row.number
        assert line["key"].encode() == row.key
        assert line["payload"].encode() == row.payload
        assert line["time_ns"] == row.time_ns
        assert line["merge_time_ns"] == row.merge_time_ns
        assert line["time"].startswith("2013-01-01T05:17:00.")
        assert line["merge_time"] == f"2013-01-01T05:17:00.{row.merge_time_ns % 10**9:09d}Z"
        assert Position.parse(line["next_position"]) == Position.parse(line["position"]) + 1


@pytest.mark.parametrize(
    ("payload", "key"), [(b"\xff\x00", b"\xfe"), ('é\n"\\\u2028'.encode(), b"k\x00"), (b"", b"")]
)
def test_json_carries_any_bytes(tmp_path, payload, key):
    """Not every payload is text, and not every text is harmless in JSON."""
    with Publisher(str(tmp_path), stream="stream", session="jfk") as publisher:
        publisher.publish(payload, key=key, time_ns=-1)
    (line,) = lines(read(tmp_path, *OWN, "--output", "json"))
    told = json.loads(line)
    for name, value in (("payload", payload), ("key", key)):
        if f"{name}_base64" in told:
            assert base64.b64decode(told[f"{name}_base64"]) == value
        else:
            assert told.get(name, "").encode() == value
    assert told["time"] == "1969-12-31T23:59:59.999999999Z"
    assert "merge_time" not in told


@pytest.mark.parametrize("output", ["raw", "lines", "json"])
@pytest.mark.parametrize("count", range(7))
def test_count_ends_inside_a_frame_and_the_position_resumes_after_it(
    tmp_path, merged, output, count
):
    """Two readings of a part are one reading of the whole."""
    whole = read(tmp_path, "--no-follow", "--output", output).stdout_bytes
    first = read(tmp_path, "--no-follow", "--output", output, "--count", count, "--show-position")
    assert first.exit_code == 0, first.stderr
    place = first.stderr.split()[-1]
    rest = read(tmp_path, "--no-follow", "--output", output, "--from", place)
    assert first.stdout_bytes + rest.stdout_bytes == whole


@pytest.mark.parametrize(
    ("start_at", "expected"),
    [
        ("earliest", [b"AA1", b"B62", b"UA7", b"AA9", b"UA8", b"DL3"]),
        ("latest", []),
        ("last:2", [b"UA8", b"DL3"]),
        ("0.1.0", [b"DL3"]),
        ("2013-01-01T05:17:00.002Z", [b"UA7", b"AA9", b"UA8", b"DL3"]),
        ("2100-01-01T00:00:00Z", []),
    ],
)
def test_reading_starts_at_the_given_place(tmp_path, merged, start_at, expected):
    """Each of the written forms, end to end."""
    assert lines(read(tmp_path, "--no-follow", "--from", start_at)) == expected


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--session", "ewr"], [b"UA7", b"AA9", b"UA8"]),
        (["--session", "e*", "--session", "jfk"], [b"AA1", b"B62", b"UA7", b"AA9", b"UA8", b"DL3"]),
        (["--key-prefix", "AA"], [b"AA1", b"AA9"]),
        (["--key-prefix", "UA", "--count", "1"], [b"UA7"]),
        (["--session", "jfk", "--key-prefix", "D"], [b"DL3"]),
        (["--session", "lga*"], []),
    ],
)
def test_only_what_is_wanted_comes_out(tmp_path, merged, options, expected):
    """Filtering here costs less than filtering after the pipe."""
    assert lines(read(tmp_path, "--no-follow", *options)) == expected


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--from", "yesterday"], "not a start: 'yesterday'"),
        (["--session", "A"], "not a name or glob name"),
        (["--own-session", "../x"], "not a session name"),
        (["--output", "xml"], "'xml'"),
        (["--count", "-1"], "-1"),
        (["--on-gap", "panic"], "'panic'"),
        (["--no-follow"], "holds no log: there is no such directory"),
        (["--no-follow", "--stream", "S"], "not a stream name"),
    ],
)
def test_wrong_use_is_reported(tmp_path, options, words):
    """And a reader creates nothing."""
    result = read(tmp_path, *options)
    assert result.exit_code == exits.BAD_USE
    assert words in result.stderr
    assert not list(tmp_path.iterdir())


def test_fewer_messages_than_asked_for_is_reported_to_a_script(tmp_path):
    """`--count 1 --timeout 5` is how a script waits for an answer."""
    publish(tmp_path, [b"AA1"])
    result = read(tmp_path, "--own-session", "jfk", "--count", "2", "--timeout", "0.01")
    assert result.exit_code == exits.FOUND_WRONG
    assert result.stdout == "AA1\n"
    assert result.stderr == "rt: 2 messages wanted, 1 missing at 10 ms without a message\n"


def test_timeout_without_a_count_is_an_end_like_any_other(tmp_path):
    """All that came was wanted."""
    result = read(tmp_path, "--timeout", "0.01")
    assert result.exit_code == 0
    assert "there is no log yet; waiting for one" in result.stderr


@pytest.fixture
def archived(tmp_path):
    """Return the root of a session whose first file of two was archived."""
    publish(tmp_path, [b"gone"])
    directory = publish(tmp_path, [b"here"], writer=WriterSettings())
    appender = Appender(OsDisk(), directory, LogIdentity(SESSION, "stream", "jfk", "0" * 32, 0))
    appender.archive(Archived(START, 1, "time"))
    appender.close()
    return tmp_path


def test_gap_ends_it_unless_allowed(archived):
    """Messages that were missed must not be missed unnoticed."""
    from_start = (*OWN, "--from", "0.0.0")
    result = read(archived, *from_start)
    assert result.exit_code == exits.FOUND_WRONG
    assert "was archived (time; log.0.0); start from 1.0.0" in result.stderr
    told = read(archived, *from_start, "--on-gap", "notify")
    assert (told.exit_code, told.stdout) == (0, "here\n")
    assert "was archived" in told.stderr
    silent = read(archived, *from_start, "--on-gap", "skip")
    assert (silent.exit_code, silent.stdout) == (0, "here\n")
    assert "archived" not in silent.stderr


def test_damage_ends_it_after_the_messages_before_it(tmp_path):
    """Nothing after the damage may pass for what was published."""
    directory = publish(tmp_path, [b"first"])
    publish(tmp_path, [b"second"])
    with open(os.path.join(directory, "log.1.0"), "r+b") as file:
        file.seek(84)
        file.write(b"X")
    result = read(tmp_path, *OWN)
    assert result.exit_code == exits.FOUND_WRONG
    assert result.stdout == "first\n"
    assert "corrupt at 1.0.0" in result.stderr


def test_new_run_is_reported_on_stderr(tmp_path):
    """A reader that keeps state per session must learn that its publisher was restarted."""
    publish(tmp_path, [b"1"])
    publish(tmp_path, [b"2"])
    result = read(tmp_path, *OWN)
    assert result.stdout == "1\n2\n"
    assert result.stderr == "rt: session jfk was restarted, at 1.0.0\n"


def test_caught_up_is_reported_on_request(tmp_path):
    """It would be a line for every message of a slow stream."""
    publish(tmp_path, [b"1"])
    result = run("-v", "subscribe", "--root", tmp_path, *OWN)
    assert "caught up at 0.0." in result.stderr


@pytest.mark.process
def test_message_comes_out_as_soon_as_it_is_published(tmp_path):
    """Started before the log is there, and read line by line: nothing is kept in a buffer."""
    with start("subscribe", "--root", tmp_path, "--own-session", "jfk") as process:
        assert b"waiting for one" in process.stderr.readline()
        with Publisher(str(tmp_path), stream="stream", session="jfk") as publisher:
            for number in range(5):
                publisher.publish(b"%d" % number)
                assert process.stdout.readline() == b"%d\n" % number
        process.terminate()
        assert process.wait(PATIENCE_S) == 0


@pytest.mark.process
@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, exits.INTERRUPTED)]
)
def test_signal_ends_it_and_the_position_is_printed(tmp_path, number, code):
    """The next one continues where this one was stopped."""
    publish(tmp_path, [b"1", b"2"])
    options = "--root", tmp_path, "--own-session", "jfk", "--show-position"
    with start("subscribe", *options) as process:
        assert [process.stdout.readline() for _ in range(2)] == [b"1\n", b"2\n"]
        process.send_signal(number)
        got, _, said = finish(process)
    assert got == code
    assert "Traceback" not in said
    place = said.split("resume from ")[1].split()[0]
    publish(tmp_path, [b"3"])
    assert lines(read(tmp_path, *OWN, "--from", place)) == [b"3"]


@pytest.mark.process
def test_killed_reader_disturbs_no_other_process(tmp_path):
    """It only reads."""
    directory = publish(tmp_path, [b"1"])
    before = sorted(os.listdir(directory))
    with start("subscribe", "--root", tmp_path, "--own-session", "jfk") as process:
        assert process.stdout.readline() == b"1\n"
        process.kill()
    assert sorted(os.listdir(directory)) == before
    publish(tmp_path, [b"2"])
    assert lines(read(tmp_path, *OWN)) == [b"1", b"2"]


@pytest.mark.process
def test_two_ends_of_a_real_pipe_agree(tmp_path):
    """A few megabytes through both commands, as processes, are the bytes that went in."""
    data = b"".join(b"%d %s\n" % (number, b"x" * (number % 300)) for number in range(20_000))
    options = "--root", tmp_path, "--session", "jfk", "--compression", "1"
    code, _, err = finish(start("publish", *options, stdin=-1), data)
    assert code == 0, err
    code, out, err = finish(start("subscribe", "--root", tmp_path, *OWN))
    assert code == 0, err
    assert out == data


@pytest.mark.parametrize("output", ["lines", "json"])
def test_a_stream_archived_whole_is_a_gap_and_not_a_silent_end(tmp_path, output):
    """Nothing was printed and the exit code was 0: a job took it for an empty stream."""
    with MergedLog(str(tmp_path / "stream" / "out")) as log:
        for _number in range(2):
            log.merge("jfk", [b"AA1"])
            log.roll()
        for number in range(2):
            log.appender.archive(Archived(Position.of(0, number, 0), 1, "time"))
    result = read(tmp_path, "--no-follow", "--from", "0.0.0", "--output", output)
    assert (result.exit_code, result.stdout) == (exits.FOUND_WRONG, "")
    assert "archived (time; log.0.0, log.0.1)" in result.stderr
    told = read(tmp_path, "--no-follow", "--from", "0.0.0", "--on-gap", "notify")
    assert (told.exit_code, "archived" in told.stderr) == (0, True)


def test_a_session_that_the_log_does_not_have_is_an_error_with_the_nearest_name(tmp_path, merged):
    """A misspelt session printed nothing and ended with 0, as a silent day would."""
    result = read(tmp_path, "--no-follow", "--session", "ewrr")
    assert result.exit_code == exits.BAD_USE
    assert "did you mean 'ewr'?" in result.stderr
    assert "no session matches ewrr" in result.stderr
    later = read(tmp_path, "--no-follow", "--session", "ewrr", "--from", "latest")
    assert later.exit_code == 0  # it may just be silent
    passed = read(tmp_path, "--no-follow", "--key-prefix", "ZZ")
    assert "no message matched the conditions" in passed.stderr
