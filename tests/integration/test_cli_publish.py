"""`rt publish`: lines of files or of a pipe become messages, and none is lost on the way."""

import os
import re
import signal
import subprocess
import threading

import pytest
from replicator_host import eventually

from rt.cli.common import exits
from rt.log.notify.confirmations import Confirmations, ConfirmationsFile
from rt.position import Position
from rt.publisher import Publisher
from rt.subscriber import Subscriber
from tests.commands import PATIENCE_S, finish, publish, run, start


def messages(root, session="jfk"):
    """Return the messages of a session."""
    with Subscriber(str(root), stream="stream", session=session, follow=False) as subscriber:
        return list(subscriber)


def payloads(root, session="jfk"):
    """Return the payloads of a session."""
    return [message.payload for message in messages(root, session)]


def written(tmp_path, data, name="input"):
    """Write `data` to a file, and return its path."""
    path = tmp_path / name
    path.write_bytes(data)
    return path


def from_file(tmp_path, data, *options):
    """Publish a file's bytes to session jfk, and return the result."""
    return run("publish", "--root", tmp_path, "--session", "jfk", *options,
               written(tmp_path, data))  # fmt: skip


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", []),
        (b"\n", [b""]),
        (b"AA1", [b"AA1"]),
        (b"AA1\n", [b"AA1"]),
        (b"AA1\n\nB6 2\r\n", [b"AA1", b"", b"B6 2\r"]),
        (b"\xff\x00\n", [b"\xff\x00"]),
        (b"x" * 3_000_000 + b"\ny\n", [b"x" * 3_000_000, b"y"]),
    ],
)
def test_each_line_is_a_message_byte_for_byte(tmp_path, data, expected):
    """A log may hold any bytes; only the newline is ours to take."""
    assert from_file(tmp_path, data).exit_code == 0
    assert payloads(tmp_path) == expected


def test_files_are_published_in_the_order_given(tmp_path):
    """A shell expands its globs in order, too."""
    names = [written(tmp_path, b"%d\n" % number, f"f{number}") for number in range(3)]
    result = run("publish", "--root", tmp_path, "--session", "jfk", *names)
    assert payloads(tmp_path) == [b"0", b"1", b"2"]
    assert re.fullmatch(
        r"published 3 messages \(6 B\) in [0-9.]+ m?s, [0-9,]+/s to stream/jfk, "
        r"synced up to 0\.0\.[0-9]+\n", result.stdout,
    )  # fmt: skip
    assert result.stderr == ""


def test_missing_file_is_found_before_anything_is_published(tmp_path):
    """Half of an order is worse than none."""
    result = run("publish", "--root", tmp_path, "--session", "jfk",
                 written(tmp_path, b"AA1\n"), tmp_path / "nowhere")  # fmt: skip
    assert result.exit_code == exits.BAD_USE
    assert result.stderr == f"rt: {tmp_path / 'nowhere'}: no such file or directory\n"
    assert not (tmp_path / "stream").exists()


def test_directory_for_a_file_is_named(tmp_path):
    """It opens like a file and then cannot be read."""
    result = run("publish", "--root", tmp_path, "--session", "jfk", tmp_path)
    assert result.exit_code == exits.BAD_USE
    assert "is a directory" in result.stderr


def test_json_lines_give_key_and_time(tmp_path):
    """The payload is the line itself: readers get exactly what was written."""
    lines = [
        b'{"flight": "AA1", "at": "2013-01-01T05:17:00.000000001Z"}',
        b'{"flight": 7, "at": 12}',
        b'{"flight": null, "at": "2013-01-01 00:17:00-05:00"}',
    ]
    result = from_file(tmp_path, b"\n".join(lines) + b"\n\n  \n", "--format", "ndjson",
                       "--key-field", "flight", "--time-field", "at")  # fmt: skip
    assert result.exit_code == 0, result.stderr
    found = [(message.payload, message.key, message.time_ns) for message in messages(tmp_path)]
    second = 1_357_017_420_000_000_000
    assert found == [(lines[0], b"AA1", second + 1), (lines[1], b"7", 12), (lines[2], b"", second)]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b"AA1", "not JSON: Expecting value"),
        (b"\xff", "not JSON: "),
        (b"[" * 100_000, "not JSON: "),
        (b"[1]", "a JSON array, not an object"),
        (b"{}", "the object has no field 'k'"),
        (b'{"k": true, "t": 1}', "the key is a JSON boolean"),
        (b'{"k": 1.5, "t": 1}', "the key is a JSON number, not a string or a whole number"),
        (b'{"k": "a", "t": null}', "the time is a JSON null"),
        (b'{"k": "a", "t": "noon"}', "the time 'noon' is not ISO 8601"),
        (b'{"k": "a", "t": 9223372036854775808}', "the time is a JSON number"),
        (b'{"k": "a", "t": "9999-12-31T00:00:00Z"}', "the time '9999-12-31T00:00:00Z' is not of"),
        (b'{"k": "a", "t": "0001-01-01"}', "the time '0001-01-01' is not of the years"),
    ],
)
def test_bad_line_is_named_and_what_came_before_it_is_kept(tmp_path, line, words):
    """Once line 3 is fixed, publishing must be able to continue there."""
    good = b'{"k": "a", "t": 1}'
    result = from_file(tmp_path, b"\n".join([good, good, line, good]) + b"\n", "--format",
                       "ndjson", "--key-field", "k", "--time-field", "t")  # fmt: skip
    assert result.exit_code == exits.BAD_USE
    assert result.stderr.startswith(f"rt: {tmp_path / 'input'}:3: {words}")
    assert result.stderr.endswith("published before it: 2 messages\n")
    assert payloads(tmp_path) == [good, good]


def test_line_that_is_too_long_is_named_by_its_number(tmp_path):
    """Limits are hit by accident, and then the input is searched for the line."""
    result = from_file(tmp_path, b"a\nbb\nccc\ndddd\n", "--message-bytes-max", "2")
    assert result.exit_code == exits.BAD_USE
    assert f"{tmp_path / 'input'}:3: a message of 3 bytes is larger than the limit of 2" in (
        result.stderr
    )
    assert payloads(tmp_path) == [b"a", b"bb"]


def test_line_without_an_end_is_refused_before_it_fills_the_memory(tmp_path):
    """/dev/zero has no newline."""
    result = run("publish", "--root", tmp_path, "--session", "jfk", "--message-bytes-max", "64Ki",
                 "/dev/zero")  # fmt: skip
    assert result.exit_code == exits.BAD_USE
    assert result.stderr == (
        "rt: /dev/zero:1: the line is longer than 65536 bytes; send it in parts\n"
    )


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--session", "../jfk"], "not a session name"),
        (["--session", "jfk", "--stream", "A"], "not a stream name"),
        (["--session", "jfk", "--fsync", "often"], "use always, interval or never"),
        (["--session", "jfk", "--flush", "sent"], "no level is called 'sent'; use one of written"),
        (["--session", "jfk", "--compression", "20"], "compression"),
        (["--session", "jfk", "--file-bytes", "1"], "file_bytes_max is 1"),
        (["--session", "jfk", "--rate", "fast"], "not a rate: 'fast'"),
        (["--session", "jfk", "--rate", "0"], "not a rate: '0'"),
        (["--session", "jfk", "--key-field", "k"], "give --format ndjson"),
        (["--session", "jfk", "--flight", "-1"], "flight is -1; use a number of messages, or 0"),
        (["--session", "jfk", "--flight", "9", "--keep-bytes", "1Mi"], "leave out one"),
        (["--session", "jfk", "--config", "nowhere.toml"], "nowhere.toml"),
        ([], "session is not set: give --session, RT_SESSION"),
    ],
)
def test_wrong_option_is_refused_before_anything_is_made(tmp_path, options, words):
    """A directory named after a typo would stay for years."""
    result = run("publish", "--root", tmp_path, *options, os.devnull)
    assert result.exit_code == exits.BAD_USE
    assert words in result.stderr
    assert not list(tmp_path.iterdir())


def test_settings_come_from_file_then_environment_then_option(tmp_path):
    """A service is configured by a file, a container by its environment, a person by options."""
    config = written(tmp_path, b'[publish]\nsession = "a"\nstream = "s"\nroot = "nowhere"\n', "c")
    environment = {"RT_STREAM": "stream", "RT_SESSION": "b", "RT_CONFIG": str(config)}
    result = run("publish", "--root", tmp_path, "--session", "jfk",
                 written(tmp_path, b"AA1\n"), env=environment)  # fmt: skip
    assert result.exit_code == 0, result.stderr
    assert payloads(tmp_path) == [b"AA1"]


def test_unknown_key_of_the_file_is_refused(tmp_path):
    """A misspelt setting must not be ignored."""
    config = written(tmp_path, b'[publish]\nsesion = "a"\n', "c")
    result = run("publish", "--config", config, os.devnull)
    assert result.exit_code == exits.BAD_USE
    assert "did you mean session?" in result.stderr


def test_second_writer_of_a_session_is_refused(tmp_path):
    """Two writers would interleave two runs."""
    with Publisher(str(tmp_path), stream="stream", session="jfk"):
        result = from_file(tmp_path, b"AA1\n")
    assert result.exit_code == exits.BAD_USE
    assert "has a live writer; stop it, or choose another name" in result.stderr


def test_level_that_is_not_reached_in_time_is_reported_and_nothing_is_lost(tmp_path):
    """Nothing is pushed here, so nothing can be merged."""
    result = from_file(tmp_path, b"AA1\n", "--flush", "merged", "--flush-timeout-s", "10ms")
    assert result.exit_code == exits.FOUND_WRONG
    assert re.search(r"merged was not reached within 10 ms, only (written|synced)", result.stderr)
    assert payloads(tmp_path) == [b"AA1"]


def test_level_that_is_reached_is_reported_with_its_place_in_the_merged_log(tmp_path):
    """A subscriber starts from that position."""
    directory = publish(tmp_path, [b"AA1"])
    far = Position.of(9, 0, 0)

    def confirm():
        """Confirm what the second run writes; a run begins after all that was confirmed."""
        assert eventually(lambda: os.path.exists(os.path.join(directory, "log.1.0")), PATIENCE_S)
        ConfirmationsFile(directory).write(Confirmations(far, far, far, Position.of(0, 0, 4096)))

    thread = threading.Thread(target=confirm)
    thread.start()
    result = from_file(tmp_path, b"AA2\n", "--flush", "merged")
    thread.join()
    assert result.exit_code == 0, result.stderr
    assert "merged up to 1.0.88 at 0.0.4096" in result.stdout


@pytest.mark.process
def test_a_flight_limit_holds_publishing_back_until_the_nodes_have_merged(tmp_path):
    """A pipe that is faster than the cluster would otherwise fill the publisher's disk."""
    lines = b"".join(b"%d\n" % number for number in range(1000))
    options = "--root", tmp_path, "--session", "jfk", "--flight", "80", "--flush", "merged"
    directory = tmp_path / "stream" / "jfk"
    with start("publish", *options, written(tmp_path, lines)) as process:
        said = process.stderr.readline().decode()
        assert (
            said == "rt: waiting: 80 messages published and not merged yet (is rt push running?)\n"
        )
        assert len(payloads(tmp_path)) == 80
        far = Position.of(9, 0, 0)
        ConfirmationsFile(str(directory)).write(Confirmations(far, far, far, far))
        code, _, err = finish(process)
    assert code == 0, err
    assert payloads(tmp_path) == lines.split()


@pytest.mark.process
def test_a_signal_ends_the_wait_for_room_and_everything_read_is_published(tmp_path):
    """A service manager would kill the command, and what its pipe had said would be lost."""
    options = "--root", tmp_path, "--session", "jfk", "--flight", "1"
    with start("publish", *options, stdin=subprocess.PIPE) as process:
        process.stdin.write(b"a\nb\nc\n")
        process.stdin.flush()
        assert process.stderr.readline().startswith(b"rt: waiting: 1 message published and")
        process.send_signal(signal.SIGTERM)
        code, _, err = finish(process)
    assert code == 0, err
    assert payloads(tmp_path) == [b"a", b"b", b"c"]


@pytest.fixture
def tiny_disk(tmp_path):
    """Return a directory on a file system of 1 MiB."""
    path = tmp_path / "tiny"
    path.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", path], capture_output=True, check=False
    )
    if done.returncode:
        pytest.skip("this user may not mount a file system")
    yield path
    subprocess.run(["umount", path], check=True)


@pytest.mark.process
def test_really_full_disk_keeps_what_was_confirmed_and_takes_more_when_there_is_room(tiny_disk):
    """The real thing writes in part, then refuses, and has no room for a manifest line either."""
    ballast = tiny_disk / "ballast"
    ballast.write_bytes(bytes(400_000))
    line = b"x" * 999 + b"\n"
    options = "--root", tiny_disk, "--session", "jfk", "--frame-bytes", "16Ki"
    code, _, err = finish(start("publish", *options, stdin=subprocess.PIPE), line * 2000)
    assert code == exits.DISK_FAILED, err
    taken = int(re.search(r"after ([0-9,]+) messages?", err)[1].replace(",", ""))
    assert "Traceback" not in err
    ballast.unlink()
    code, _, err = finish(start("publish", *options, stdin=subprocess.PIPE), b"last\n")
    assert code == 0, err
    assert payloads(tiny_disk) == [line[:-1]] * taken + [b"last"]


@pytest.mark.process
def test_line_of_a_slow_pipe_is_published_at_once(tmp_path):
    """`tail -F app.log | rt publish` is a live source: no buffer may sit on a line."""
    subscriber = Subscriber(str(tmp_path), stream="stream", session="jfk")
    found = subscriber.messages(timeout_s=PATIENCE_S)
    options = "--root", tmp_path, "--session", "jfk"
    with subscriber, start("publish", *options, stdin=subprocess.PIPE, bufsize=0) as process:
        for number in range(5):
            process.stdin.write(b"%d\nhalf" % number)
            assert next(found).payload == (b"half" if number else b"") + b"%d" % number
        code, _, _ = finish(process)
    assert code == 0
    assert payloads(tmp_path)[-1] == b"half"


def manifest_bytes(directory):
    """Return a log's manifest; nothing if there is none yet."""
    path = directory / "manifest"
    return path.read_bytes() if path.exists() else b""


def test_a_short_run_gives_up_what_it_need_not_keep_at_its_end(tmp_path):
    """One a minute, each over within a second, filled the disk all the same."""
    options = "--file-bytes", "64Ki", "--frame-bytes", "8Ki", "--keep-bytes", "128Ki"
    result = from_file(tmp_path, (b"x" * 99 + b"\n") * 5000, *options)
    assert result.exit_code == 0, result.stderr
    log = tmp_path / "stream" / "jfk"
    sizes = [
        each.stat().st_size for each in log.iterdir() if re.fullmatch(r"log\.0\.\d+", each.name)
    ]
    assert 0 < sum(sizes) <= 128 * 1024
    with Publisher(str(tmp_path), stream="stream", session="jfk") as following:
        assert following.publish(b"more") == 5000


@pytest.mark.process
@pytest.mark.parametrize("keep", [("--keep-bytes", "128Ki"), ("--keep-s", "1ms")])
def test_a_session_that_is_not_shipped_keeps_no_more_than_it_is_told_to(tmp_path, keep):
    """A pipe that runs for months would fill the disk."""
    options = "--root", tmp_path, "--session", "jfk", "--file-bytes", "64Ki", "--frame-bytes", "8Ki"
    first = tmp_path / "stream" / "jfk" / "log.0.0"
    with start("publish", *options, *keep, stdin=subprocess.PIPE, bufsize=0) as process:
        process.stdin.write((b"x" * 99 + b"\n") * 5000)
        assert eventually(lambda: b'"archived"' in manifest_bytes(first.parent), PATIENCE_S)
        code, _, err = finish(process)
    assert code == 0, err
    assert not first.stat().st_size


@pytest.mark.process
@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGTERM, 0), (signal.SIGHUP, 0), (signal.SIGINT, exits.INTERRUPTED)],
)
def test_signal_ends_it_with_everything_that_was_read_kept(tmp_path, number, code):
    """A service is always stopped in the middle of its work."""
    subscriber = Subscriber(str(tmp_path), stream="stream", session="jfk")
    found = subscriber.messages(timeout_s=PATIENCE_S)
    options = "--root", tmp_path, "--session", "jfk", "--fsync", "never"
    with subscriber, start("publish", *options, stdin=subprocess.PIPE, bufsize=0) as process:
        process.stdin.write(b"AA1\nB6 2\nhalf a li")
        assert [next(found).payload, next(found).payload] == [b"AA1", b"B6 2"]
        process.send_signal(number)
        assert process.wait(PATIENCE_S) == code
        outcome, said = process.stdout.read(), process.stderr.read().decode()
    assert "its 9 bytes were not published" in said
    assert outcome.startswith(b"published 2 messages")
    assert "Traceback" not in said
    assert payloads(tmp_path) == [b"AA1", b"B6 2"]


@pytest.mark.process
def test_signal_ends_a_slow_rate_and_the_rest_of_what_was_read_is_written(tmp_path):
    """At one message a minute no one waits for the end, but what was read from the pipe is gone."""
    subscriber = Subscriber(str(tmp_path), stream="stream", session="jfk")
    found = subscriber.messages(timeout_s=PATIENCE_S)
    options = "--root", tmp_path, "--session", "jfk", "--rate", "0.01/s"
    with subscriber, start("publish", *options, stdin=subprocess.PIPE, bufsize=0) as process:
        process.stdin.write(b"1\n2\n3\n")
        next(found)
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 0
    assert payloads(tmp_path) == [b"1", b"2", b"3"]


@pytest.mark.process
def test_signal_ends_the_wait_for_a_level(tmp_path):
    """Otherwise stopping a service takes as long as its longest timeout."""
    options = "--session", "jfk", "--flush", "merged", "--flush-timeout-s", "1h"
    subscriber = Subscriber(str(tmp_path), stream="stream", session="jfk")
    with subscriber, start("publish", "--root", tmp_path, *options,
                           stdin=subprocess.PIPE) as process:  # fmt: skip
        process.stdin.write(b"AA1\n")
        process.stdin.close()
        assert next(subscriber.messages(timeout_s=PATIENCE_S)).payload == b"AA1"
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 0


@pytest.mark.process
def test_killed_publisher_loses_nothing_it_wrote_and_the_next_continues(tmp_path):
    """A kill -9 leaves no time to clean up."""
    subscriber = Subscriber(str(tmp_path), stream="stream", session="jfk")
    found = subscriber.messages(timeout_s=PATIENCE_S)
    options = "--root", tmp_path, "--session", "jfk"
    with subscriber:
        for life in range(3):
            with start("publish", *options, stdin=subprocess.PIPE, bufsize=0) as process:
                process.stdin.write(b"%d\n" % life)
                message = next(found)
                process.kill()
            assert (message.payload, message.sequence) == (b"%d" % life, life)


@pytest.mark.process
def test_progress_is_for_terminals_only(tmp_path):
    """A log file full of carriage returns is useless."""
    options = "--root", tmp_path, "--session", "jfk", "--rate", "3/s"
    code, out, err = finish(start("publish", *options, stdin=subprocess.PIPE), b"1\n2\n3\n4\n5\n")
    assert (code, err) == (0, "")
    assert len(out.splitlines()) == 1
    assert b"\x1b" not in out
