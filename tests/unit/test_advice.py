"""What `rt verify` advises for each kind of finding; for a good log it advises nothing."""

import json
import os
import shutil
import time

import pytest

from rt.cli.common import exits
from rt.format.manifest import Archived
from rt.position import Position
from tests.commands import publish, run
from tests.logs import MergedLog


@pytest.fixture
def out(tmp_path):
    """Return the directory of a merged log of three rolled files and an active one."""
    directory = str(tmp_path / "out")
    with MergedLog(directory) as log:
        for _ in range(3):
            log.merge("jfk", [b"x" * 40] * 50)
            log.roll()
        log.merge("jfk", [b"tail"] * 10)
    return directory


def damage(path, place=100):
    """Flip the bits of one byte."""
    with open(path, "r+b") as file:
        file.seek(place)
        [byte] = file.read(1)
        file.seek(place)
        file.write(bytes([byte ^ 0xFF]))


def advice(*directories):
    """Return what `rt verify` says to do about the first log, by kind, and its exit code."""
    done = run("verify", *directories, "--json")
    found = json.loads(done.stdout)["logs"][0]["advice"]
    return {each["finding"]: (each["files"], each["text"]) for each in found}, done.exit_code


def test_a_log_that_is_well_gets_no_advice(out):
    """Advice on a healthy log would be followed, too."""
    assert advice(out) == ({}, 0)


def test_a_freshly_restored_log_is_whole_and_needs_nothing(out, tmp_path):
    """An operator who restored at the worst hour and verified heard that the log was wrong."""
    with MergedLog(out) as log:
        log.appender.archive(Archived(Position.of(0, 1, 0), 1, "time"))
    backup, old = tmp_path / "backup", tmp_path / "old"
    assert run("archive", "offload", backup, "--dir", out).exit_code == 0
    restored = run("restore", backup, "--root", old, "--json")
    directory = json.loads(restored.stdout)["directory"]
    done = run("verify", directory)
    assert (done.exit_code, done.stderr) == (0, "")
    assert ": whole, 4 files" not in done.stdout  # log.0.3 was active, and has no copy
    assert ": whole, 3 files" in done.stdout
    assert advice(directory) == ({}, 0)
    assert run("index", "check", directory).exit_code == 0


def test_a_rolled_file_is_replaced_by_that_of_another_copy_as_advised(out, tmp_path):
    """Copies are equal byte for byte, so one file can be taken from another machine."""
    shutil.copytree(out, tmp_path / "other")
    damage(os.path.join(out, "log.0.1"))
    (found, code), other = advice(out), os.path.join(tmp_path, "other", "log.0.1")
    assert code == exits.FOUND_WRONG
    files, text = found["damaged"]
    assert files == ["log.0.1"]
    assert "replace it by the same file of another node's out" in text
    assert "with nothing writing to " + out in text
    shutil.copyfile(other, os.path.join(out, "log.0.1"))
    assert advice(out) == ({}, 0)


def test_a_missing_file_is_called_missing(out):
    """A directory was tidied up by hand."""
    os.unlink(os.path.join(out, "log.0.1"))
    found, code = advice(out)
    assert (found["missing"][0], code) == (["log.0.1"], exits.FOUND_WRONG)


def test_a_torn_end_needs_nothing(out):
    """Every crash leaves one; it is not a reason to delete a log."""
    with open(os.path.join(out, "log.0.3"), "r+b") as file:
        file.truncate(os.path.getsize(file.name) - 5)
    found, code = advice(out)
    assert (list(found), code) == (["torn"], 0)
    assert found["torn"][1].startswith("nothing to do")


def test_a_damaged_session_says_where_its_messages_are_safe(tmp_path):
    """No copy can replace a publisher's log, so it must not be deleted unread."""
    directory = publish(tmp_path, [b"1"])
    publish(tmp_path, [b"2"])
    damage(os.path.join(directory, "log.0.0"), 70)
    found, code = advice(directory)
    assert code == exits.FOUND_WRONG
    assert "rt subscribe --own-session jfk --from POSITION" in found["damaged"][1]


def test_copies_that_differ_should_be_compared_with_a_third(out, tmp_path):
    """Two that differ do not show which of them is right."""
    shutil.copytree(out, tmp_path / "other")
    damage(tmp_path / "other" / "log.0.2", 1000)
    done = run("verify", out, tmp_path / "other")
    assert done.exit_code == exits.FOUND_WRONG
    assert "compare each with a third copy" in done.stdout
    (one, two) = (publish(tmp_path / root, [b"1"]) for root in "ab")
    assert "different logs that share a name" in run("verify", one, two).stdout


@pytest.mark.parametrize("command", ["verify", "log-history", "dump", "subscribe", "plan"])
@pytest.mark.parametrize("kind", ["fifo", "link", "device", "sparse"])
def test_a_manifest_that_is_not_a_file_of_ours_ends_the_command(tmp_path, out, command, kind):
    """A planted FIFO hung the command, and 3 GiB of nothing filled its memory."""
    root = tmp_path / "stream"
    root.mkdir()
    shutil.move(out, root / "out")
    manifest = root / "out" / "manifest"
    os.unlink(manifest)
    if kind == "fifo":
        os.mkfifo(manifest)
    elif kind == "link":
        os.symlink("/etc/passwd", manifest)
    elif kind == "device":
        try:
            os.mknod(manifest, 0o20600, os.makedev(1, 5))  # /dev/zero
        except PermissionError:
            pytest.skip("only root makes devices")
    else:
        with open(manifest, "wb") as file:
            file.truncate(3 << 30)
    arguments = {
        "subscribe": ["subscribe", "--root", tmp_path, "--no-follow"],
        "plan": ["archive", "plan", "--dir", root / "out"],
    }.get(command, [command, root / "out"])
    done = run(*arguments)
    if command == "dump" and kind == "sparse":  # shows what the files hold, and says so
        assert "not one of ours" in done.stderr
        return
    assert done.exit_code in (exits.FOUND_WRONG, exits.DISK_FAILED)
    assert str(manifest) in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_log_file_of_3_gib_without_a_byte_is_judged_quickly(out):
    """A sparse file costs an attacker nothing; the reader must not pay for it either."""
    with open(os.path.join(out, "log.0.3"), "r+b") as file:
        file.truncate(3 << 30)
    began = time.process_time()
    found, code = advice(out)
    assert (found["damaged"][0], code) == (["log.0.3"], exits.FOUND_WRONG)
    assert "0.3." in run("dump", out).output
    assert time.process_time() - began < 3


@pytest.mark.parametrize("command", ["verify", "dump", "index", "log-history"])
@pytest.mark.parametrize("kind", ["fifo", "link"])
def test_a_log_file_that_is_not_a_file_ends_the_command(out, command, kind):
    """A FIFO under the name of a log file hung whatever looked at it."""
    path = os.path.join(out, "log.0.3")
    os.unlink(path)
    os.mkfifo(path) if kind == "fifo" else os.symlink("/etc/passwd", path)
    words = ["index", "check", "--active"] if command == "index" else [command]
    done = run(*words, out)
    assert done.exit_code == exits.DISK_FAILED
    assert path in done.stderr.splitlines()[-1]
