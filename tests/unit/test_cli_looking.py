"""`rt verify`, `rt dump`, `rt index`: looking into logs, whole and damaged."""

import json
import os
import re
import shutil

import pytest

from rt.cli.common import exits
from rt.publisher import Publisher
from tests.commands import publish, run
from tests.logs import MergedLog


def change(path, place, value):
    """Overwrite one byte."""
    with open(path, "r+b") as file:
        file.seek(place)
        file.write(bytes([value]))


@pytest.fixture
def log(tmp_path):
    """Return the directory of a merged log of two files."""
    with MergedLog(str(tmp_path / "out")) as log:
        log.merge("jfk", [b"AA1", b"B62"], keys=True)
        log.merge("ewr", [b"UA7"] * 50, level=3)
        log.roll()
        log.merge("jfk", [b"\x1b[31m", b"\xff"])
    return str(tmp_path / "out")


def test_verify_reports_each_file_and_the_whole(log):
    """The last line is for people in a hurry."""
    result = run("verify", log)
    assert result.exit_code == 0
    size = os.path.getsize(os.path.join(log, "log.0.0"))
    assert [line.split() for line in result.stdout.splitlines()[:3]] == [
        ["file", "state", "frames", "messages", "end", "position", "index"],
        ["log.0.0", "clean", "4", "52", f"0.0.{size}", "good"],
        ["log.0.1", "clean", "2", "2", "0.1.232", "good"],
    ]
    assert re.search(r": whole, 2 files, 54 messages, up to 0\.1\.232, digest [0-9a-f]{32}\n$",
                     result.stdout)  # fmt: skip


def test_verify_ends_with_1_and_names_the_place_of_damage(log):
    """A nightly job reads the code; the person it wakes reads the position."""
    change(os.path.join(log, "log.0.0"), 140, 0xFF)
    result = run("verify", log)
    assert result.exit_code == exits.FOUND_WRONG
    assert "log.0.0: at 0.0.128: the header's CRC does not match" in result.stdout
    assert f"{log}: wrong" in result.stdout


@pytest.mark.parametrize(("is_missing", "code"), [(True, 0), (False, exits.FOUND_WRONG)])
def test_verify_says_how_to_repair_an_index_and_that_repairs_it(log, is_missing, code):
    """A bad index is the one fault that anyone may repair at once; a missing one is not a fault."""
    path = os.path.join(log, "log.0.0.idx")
    os.unlink(path) if is_missing else change(path, 10, 0xFF)
    result = run("verify", log)
    assert result.exit_code == code
    kind = "no index" if is_missing else "bad index"
    [advice] = re.findall(rf"  {kind} \(log.0.0\): rt (.*?);", result.stdout)
    assert run(*advice.split()).exit_code == 0
    result = run("verify", log)
    assert (result.exit_code, "index (" in result.stdout) == (0, False)


def test_verify_as_json_is_one_object(log, tmp_path):
    """For a monitor that stores the result."""
    shutil.copytree(log, tmp_path / "copy")
    change(tmp_path / "copy" / "log.0.1", 200, 0)
    result = run("verify", log, tmp_path / "copy", "--json")
    assert result.exit_code == exits.FOUND_WRONG
    told = json.loads(result.stdout)
    assert [each["wrong"] for each in told["logs"]] == [False, False]  # the last file is torn
    assert [file["state"] for file in told["logs"][1]["files"]] == ["clean", "torn"]
    (comparison,) = told["comparisons"]
    assert (comparison["equal"], comparison["differs_at"]) == (False, "0.1.200")


def test_verify_compares_copies_and_only_copies(log, tmp_path):
    """Two sessions of one stream need not be equal."""
    shutil.copytree(log, tmp_path / "copy")
    jfk, ewr = (publish(tmp_path, [b"1"], session=name) for name in ("jfk", "ewr"))
    told = run("verify", log, tmp_path / "copy", jfk, ewr).stdout
    size = sum(os.path.getsize(os.path.join(log, name)) for name in ("log.0.0", "log.0.1"))
    assert told.count("are equal up to") == 1
    assert f"{log} and {tmp_path / 'copy'} are equal up to 0.1.232, {size:,} bytes" in told


def test_verify_compares_every_log_with_the_first_of_its_copies(tmp_path):
    """The sessions of two nodes come in any order; a copy that differs must not pass for equal."""
    for root in ("a", "b"):
        for session in ("jfk", "ewr"):
            publish(tmp_path / root, [root.encode()], session=session)
    logs = [tmp_path / root / "stream" / name for root in ("a", "b") for name in ("jfk", "ewr")]
    result = run("verify", *logs, "--json")
    told = json.loads(result.stdout)["comparisons"]
    assert result.exit_code == exits.FOUND_WRONG
    assert [(each["first"], each["second"], each["equal"]) for each in told] == [
        (str(logs[0]), str(logs[2]), False),
        (str(logs[1]), str(logs[3]), False),
    ]


def test_dump_shows_every_frame_and_message(log):
    """Exactly what the file holds, without a reader's interpretation."""
    result = run("dump", log)
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert sum("  range  " in line for line in lines) == 3
    assert sum("  messages  sequence " in line for line in lines) == 3
    assert sum(line.startswith("    ") for line in lines) == 54
    assert lines[2].split() == ["0.0.128", "0", "2013-01-01T05:17:00.000000000Z", "AA", "AA1"]


def test_dump_lets_no_payload_speak_to_the_terminal(log):
    """A message may hold any bytes, also those that clear a screen."""
    text = run("dump", log, "--from", "0.1.0").stdout
    assert "\x1b" not in text
    assert r"'\x1b[31m'" in text
    assert "base64:/w==" in text


def test_dump_as_json_holds_all_fields(log):
    """For jq."""
    frames = [json.loads(line) for line in run("dump", log, "--json").stdout.splitlines()]
    assert [frame["kind"] for frame in frames] == ["range", "messages"] * 3
    assert frames[0]["range"]["session"] == "jfk"
    assert len(frames[0]["range"]["digest"]) == 32
    assert frames[3]["codec"] == "zstd"
    assert [each["payload"] for each in frames[3]["content"]] == ["UA7"] * 50
    assert frames[1]["content"][1] == {
        "position": "0.0.129", "sequence": 1, "time": "2013-01-01T05:17:00.000001000Z",
        "time_ns": 1357017420000001000, "key": "B6", "payload": "B62",
    }  # fmt: skip
    assert "content" not in json.loads(run("dump", log, "--json", "--headers", "--count", 1).stdout)


def test_dump_in_hex_is_the_bytes_of_the_file(log):
    """The format's worked example can be compared with it."""
    with open(os.path.join(log, "log.0.0"), "rb") as file:
        whole = file.read()
    shown = run("dump", log, "--hex", "--headers", "--count", 1).stdout.splitlines()[1:]
    data = b"".join(bytes.fromhex(line[12:59].strip()) for line in shown)
    assert len(data) == 64 + 59  # the header and the body of a range frame of session jfk
    assert whole.startswith(data)
    told = json.loads(run("dump", log, "--json", "--hex", "--count", 1).stdout)
    assert told["body"] == data[64:].hex()


@pytest.mark.parametrize(
    ("begin", "first"),
    [("0.0.0", "0.0.0"), ("0.0.127", "0.0.0"), ("0.0.128", "0.0.128"), ("0.1.1", "0.1.0")],
)
def test_dump_begins_with_the_frame_that_holds_a_position(log, begin, first):
    """A message's position is inside its frame."""
    result = run("dump", log, "--from", begin, "--headers", "--count", "1")
    assert result.stdout.split()[0] == first
    assert len(result.stdout.splitlines()) == 1


@pytest.mark.parametrize("place", [0, 70, 130, 225])
def test_dump_of_a_damaged_file_ends_where_it_breaks(log, place):
    """It shows what is whole before the damage, and the files after it."""
    change(os.path.join(log, "log.0.0"), place, 0xFF)
    whole = run("dump", log, "--headers")
    assert whole.exit_code == exits.FOUND_WRONG
    (at,) = re.findall(r"log\.0\.0: breaks at 0\.0\.([0-9]+): ", whole.stderr)
    assert int(at) <= place
    assert "0.1.0  range" in whole.stdout
    assert run("dump", os.path.join(log, "log.0.1")).exit_code == 0


@pytest.mark.parametrize("merged", [True, False])
def test_dump_of_a_file_alone_needs_neither_manifest_nor_name(tmp_path, log, merged):
    """Sent by mail as `evidence.bin`."""
    source = log if merged else publish(tmp_path, [b"1", b"2"])
    alone = tmp_path / "evidence.bin"
    shutil.copyfile(os.path.join(source, "log.0.0"), alone)
    result = run("dump", alone)
    assert result.exit_code == 0
    assert result.stdout == run("dump", os.path.join(source, "log.0.0")).stdout


@pytest.mark.parametrize("command", ["dump", "verify", "log-history"])
def test_missing_place_is_bad_use(tmp_path, command):
    """Whether it does not exist, or is not a log."""
    (tmp_path / "empty").mkdir()
    for path in (tmp_path / "nowhere", tmp_path / "empty"):
        result = run(command, path)
        assert result.exit_code == exits.BAD_USE
        assert len(result.stderr.splitlines()) == 1
        assert str(path) in result.stderr


def test_damaged_manifest_is_named(log):
    """And dump still shows what it can."""
    change(os.path.join(log, "manifest"), 30, 0xFF)
    for command in ("verify", "log-history"):
        result = run(command, log)
        assert result.exit_code == exits.FOUND_WRONG
        assert os.path.join(log, "manifest") in result.stderr
    assert "0.0.0  range" in run("dump", log).stdout


def test_index_check_and_rebuild_leave_the_file_that_is_written_alone(tmp_path):
    """A live writer keeps its index open, and would go on writing to the one that was replaced."""
    root = str(tmp_path)
    publish(root, [b"1"])
    with Publisher(root, stream="stream", session="jfk") as publisher:
        publisher.publish(b"2")
        publisher.flush()
        directory = os.path.join(root, "stream", "jfk")
        index = os.path.join(directory, "log.1.0.idx")
        node = os.stat(index).st_ino
        assert run("index", "rebuild", directory).exit_code == 0
        assert os.stat(index).st_ino == node
    os.unlink(index)
    result = run("index", "check", directory)
    assert result.exit_code == exits.FOUND_WRONG
    advice = f"rebuild with: rt index rebuild {directory}"
    assert result.stdout == f"log.0.0  good\nlog.1.0  missing\n{advice}\n"
    assert run("index", "rebuild", directory).exit_code == 0
    assert run("index", "check", directory).exit_code == 0
