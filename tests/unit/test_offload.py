"""Offload: what leaves the disk for good was read back first, and can be read again."""

import json
import os
import shutil
import stat
import threading
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from logs import MergedLog

from rt.cli.common import exits
from rt.cli.logs.restore import restore as restore_command
from rt.errors import CorruptLog, GapError, Misuse
from rt.format.manifest import Archived, decode_entry, encode_entry
from rt.inspect.history import history
from rt.inspect.history_text import HistoryText
from rt.offload.offload import copies, offload, restore
from rt.offload.offloaded import (
    GAPS_MAX,
    Offloaded,
    gaps_of,
    offloaded_of,
    read_offloaded,
    write_offloaded,
)
from rt.offload.private import create_private
from rt.offload.store import DirectoryStore, FsspecStore, open_store
from rt.position import Position
from rt.subscriber import Subscriber
from tests.commands import run


@pytest.fixture
def out(tmp_path):
    """Make a merged log of three rolled files and one that grows."""
    path = tmp_path / "rt" / "flights" / "out"
    with MergedLog(str(path)) as log:
        for place in range(4):
            log.merge("jfk", [b"%d.%d" % (place, n) * 50 for n in range(100)])
            if place < 3:
                log.roll()
    return str(path)


def payloads(root, **options):
    """Read a stream to its end."""
    with Subscriber(str(root), stream="flights", follow=False, **options) as reader:
        return [message.payload for message in reader]


@pytest.fixture(params=["directory", "memory"])
def store(request, tmp_path):
    """A directory, and something that only fsspec reaches."""
    if request.param == "directory":
        yield open_store(str(tmp_path / "backup"))
        return
    fsspec = pytest.importorskip("fsspec")
    yield open_store("memory://backup/flights")
    fsspec.filesystem("memory").rm("/backup", recursive=True)


def test_a_place_that_has_keys_and_no_directories_begins_empty():
    """A bucket holds nothing before the first file, and most logs are offloaded to buckets."""
    memory = pytest.importorskip("fsspec.implementations.memory")

    class Bucket(memory.MemoryFileSystem):
        store, pseudo_dirs, cachable = {}, [""], False

        def makedirs(self, path, exist_ok=False):
            pass

    store = FsspecStore("s3://bucket/flights", Bucket(), "/bucket/flights")
    assert store.names() == []
    with store.write("log.0.0") as file:
        file.write(b"x")
    assert store.names() == ["log.0.0"]


def test_rolled_files_come_back_as_they_were(out, store, tmp_path):
    """A copy that was never read back is a hope."""
    seen = []
    assert offload(out, store, lambda *each: seen.append(each)).offloaded == Offloaded(
        store.address, Position.of(0, 3, 0)
    )
    assert [file for file, _ in seen] == ["log.0.0", "log.0.1", "log.0.2"]
    assert all(0 < size < 25_000 for _, size in seen)
    restored = tmp_path / "old" / "flights" / "out"
    assert restore(store, str(restored)) == 3
    for name in ("log.0.0", "log.0.1", "log.0.2"):
        with open(os.path.join(out, name), "rb") as file:
            assert file.read() == (restored / name).read_bytes()
    assert payloads(tmp_path / "old") == payloads(tmp_path / "rt")[:300]
    assert [row.line for row in history(str(restored))] == [row.line for row in history(out)[:3]]


def test_what_is_there_already_is_not_copied_again(out, store):
    """It runs every hour."""
    offload(out, store)
    seen = []
    offload(out, store, lambda *each: seen.append(each))
    assert seen == []


@pytest.mark.parametrize("before", [0, 1])
def test_what_an_offload_that_was_cut_had_copied_is_restored(tmp_path, before):
    """A machine that dies in the middle of it, and for good, is what the copies are for."""

    def cut_after_two(_file, _size):
        seen.append(1)
        if len(seen) == 2:
            raise KeyboardInterrupt

    seen, store = [], open_store(str(tmp_path / "backup"))
    with MergedLog(str(tmp_path / "rt" / "flights" / "out")) as log:
        for place in range(4):
            log.merge("jfk", [b"%d.%d" % (place, n) * 50 for n in range(100)])
            log.roll()
            if place < before:
                offload(log.directory, store)
        with pytest.raises(KeyboardInterrupt):
            offload(log.directory, store, cut_after_two)
    count = restore(store, str(tmp_path / "old" / "flights" / "out"))
    assert count == 2 + before
    assert payloads(tmp_path / "old") == payloads(tmp_path / "rt")[: 100 * count]


def test_a_copy_that_is_damaged_is_never_restored(out, tmp_path):
    """Any byte of it, wherever it lies."""
    store = open_store(str(tmp_path / "backup"))
    offload(out, store)
    path = tmp_path / "backup" / "log.0.1.zst"
    whole = path.read_bytes()
    for place in range(0, len(whole), 7):
        damaged = bytearray(whole)
        damaged[place] ^= 1
        path.write_bytes(damaged)
        with pytest.raises(CorruptLog, match=r"log\.0\.1"):
            restore(store, str(tmp_path / f"old{place}"))


class Torn(DirectoryStore):
    """A store that loses what it is given, from the tenth byte on."""

    @contextmanager
    def write(self, name):
        with super().write(name) as file:
            yield file
        os.truncate(os.path.join(self.address, name), 10)


def test_a_copy_that_does_not_read_back_does_not_count(out, tmp_path):
    """GC is allowed by the facts beside a copy; they must not be there without it."""
    store = Torn(str(tmp_path / "backup"))
    with pytest.raises(CorruptLog):
        offload(out, store)
    assert copies(store) == {}


def test_what_was_archived_before_it_was_copied_is_a_gap_in_what_is_restored(out, tmp_path):
    """A reader of a restored log must not run over a hole."""
    store = open_store(str(tmp_path / "backup"))
    offload(out, store)
    for name in ("log.0.1.zst", "log.0.1.json"):
        os.unlink(tmp_path / "backup" / name)
    restore(store, str(tmp_path / "old" / "flights" / "out"))
    with pytest.raises(GapError, match="not copied"):
        payloads(tmp_path / "old")
    assert len(payloads(tmp_path / "old", on_gap="skip")) == 200


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError])
def test_a_restore_that_was_cut_leaves_nothing_and_can_be_repeated(out, tmp_path, error):
    """Half a log is useless without a manifest, and would be in the way of the next try."""

    def cut(file, _size):
        if file == "log.0.2":
            raise error

    store, old = open_store(str(tmp_path / "backup")), tmp_path / "old" / "flights" / "out"
    offload(out, store)
    for name in ("log.0.1.zst", "log.0.1.json"):
        os.unlink(tmp_path / "backup" / name)
    with pytest.raises(error):
        restore(store, str(old), cut)
    assert os.listdir(old) == []
    assert restore(store, str(old)) == 2
    assert len(payloads(tmp_path / "old", on_gap="skip")) == 200


def test_two_logs_do_not_share_a_place(out, store, tmp_path):
    """The second would overwrite the copies of the first."""
    offload(out, store)
    other = tmp_path / "other"
    shutil.copytree(out, other)
    line, *rest = (other / "manifest").read_bytes().splitlines(keepends=True)
    identity = decode_entry(line[:-1])._replace(id="1" * 32)
    (other / "manifest").write_bytes(b"".join([encode_entry(identity), *rest]))
    with pytest.raises(Misuse, match="another log"):
        offload(str(other), store)


def test_nothing_is_restored_over_what_is_there(out, store, tmp_path):
    """And from nothing, nothing."""
    with pytest.raises(Misuse, match="no copies"):
        restore(store, str(tmp_path / "old"))
    offload(out, store)
    with pytest.raises(Misuse, match="not empty"):
        restore(store, out)
    with pytest.raises(Misuse, match="no log"):
        offload(str(tmp_path / "nowhere"), store)


def test_history_says_where_the_copy_of_a_file_is(out):
    """Years later someone asks for a day that was archived."""
    offloaded = Offloaded("s3://bucket/flights", Position.of(0, 2, 0))
    write_offloaded(out, offloaded)
    assert read_offloaded(out) == offloaded
    text = HistoryText(out, 0, offloaded)
    told = [json.loads(text.json(row))["address"] for row in history(out)]
    assert told == [f"s3://bucket/flights/log.0.{n}.zst" for n in (0, 1)] + [None, None]
    assert json.loads(HistoryText(out, 0).json(history(out)[0]))["address"] is None
    assert offloaded_of({"url": 5}) is None
    assert read_offloaded(os.path.dirname(out)) is None


def test_history_hides_a_password_that_an_older_version_recorded(out):
    """The ledger still has it, and every subscriber may ask for the history."""
    offloaded = Offloaded("s3://me:planted@bucket/flights", Position.of(0, 2, 0))
    text = HistoryText(out, 0, offloaded).json(history(out)[0])
    assert json.loads(text)["address"] == "s3://(left out)@bucket/flights/log.0.0.zst"


def test_only_what_was_copied_has_an_address(out, tmp_path):
    """An operator who follows an address to nothing will believe that the copies are lost."""
    with MergedLog(out) as log:
        log.appender.archive_all([Archived(Position.of(0, n, 0), 1, "time", n) for n in (0, 1)])
    store = open_store(str(tmp_path / "backup"))
    write_offloaded(out, offload(out, store).offloaded)
    text = HistoryText(out, 0, read_offloaded(out))
    told = [json.loads(text.json(row))["address"] for row in history(out)]
    assert told == [None, None, f"{store.address}/log.0.2.zst", None]


def test_offload_on_the_command_line(out, tmp_path):
    """It says up to where everything is copied, and leaves a note of that beside the log."""
    backup = str(tmp_path / "backup")
    for count in ("3 files", "0 files"):
        done = run("archive", "offload", backup, "--dir", out)
        assert (done.exit_code, done.output.endswith("everything before 0.3.0 is there\n")) == (
            0,
            True,
        )
        assert done.output.startswith(f"{count} copied to {backup}")
    assert read_offloaded(out) == Offloaded(backup, Position.of(0, 3, 0))


def test_of_many_gaps_the_oldest_become_one():
    """A note of the cluster has 1,024 bytes; what has no copy is never said to have one."""
    files = [Position.of(0, roll, 0) for roll in range(5, 105)]
    missing = [*files[:4], *files[4::2]]
    gaps = gaps_of(files, missing)
    assert len(gaps) == GAPS_MAX
    assert gaps[0] == (Position(0), Position.of(0, 74, 0))
    offloaded = Offloaded("s3://bucket/flights", files[-1].next_file(), gaps)
    assert not any(offloaded.address_of(file) for file in missing)
    assert offloaded.address_of(files[-1])
    assert offloaded_of(offloaded.fields()) == offloaded
    assert len(json.dumps(offloaded.fields())) < 700


def test_restore_on_the_command_line(out, tmp_path):
    """`rt restore` makes what `rt subscribe` reads."""
    from click.testing import CliRunner

    offload(out, open_store(str(tmp_path / "backup")))
    arguments = [str(tmp_path / "backup"), "--root", str(tmp_path / "old"), "--stream", "flights"]
    done = CliRunner().invoke(restore_command, arguments)
    assert (done.exit_code, "3 files" in done.output) == (0, True)
    assert len(payloads(tmp_path / "old")) == 300


def test_an_archived_file_is_not_copied(out, tmp_path):
    """It is empty; what was copied before stays."""
    with MergedLog(out) as log:
        log.appender.archive(Archived(Position(0), 1, "time"))
    store = open_store(str(tmp_path / "backup"))
    offload(out, store)
    assert sorted(copies(store)) == ["log.0.1", "log.0.2"]


@pytest.mark.parametrize("folded", [False, True])
def test_a_file_that_is_archived_while_others_are_copied_is_passed_over(out, tmp_path, folded):
    """The rules do not wait for the first copies, and an archived file is not a damaged one."""

    def archive(file, _size):
        if file == "log.0.0":
            with MergedLog(out) as log:
                log.appender.archive(Archived(Position.of(0, 1, 0), 1, "disk"))
            if folded:
                os.unlink(os.path.join(out, "log.0.1"))

    store = open_store(str(tmp_path / "backup"))
    outcome = offload(out, store, archive)
    assert (outcome.offloaded.to, outcome.missing) == (Position.of(0, 3, 0), ("log.0.1",))
    assert sorted(copies(store)) == ["log.0.0", "log.0.2"]


def test_a_file_that_lost_its_bytes_is_damaged_and_not_passed_over(out, tmp_path):
    """Nothing in the manifest says that they may be gone."""
    os.truncate(os.path.join(out, "log.0.1"), 100)
    with pytest.raises(CorruptLog, match="the frame is incomplete"):
        offload(out, open_store(str(tmp_path / "backup")))


def test_a_file_whose_bytes_are_rotten_is_not_copied(out, tmp_path):
    """The nodes would believe that everything is copied, and give up the good files."""
    path, store = os.path.join(out, "log.0.1"), open_store(str(tmp_path / "backup"))
    with open(path, "r+b") as file:
        file.seek(400)
        file.write(b"\xff\xff")
    with pytest.raises(CorruptLog, match=r"log\.0\.1: corrupt at 0\.1\.128: the body's CRC"):
        offload(out, store)
    assert sorted(copies(store)) == ["log.0.0"]


def test_copies_are_private_and_no_planted_link_is_followed(out, tmp_path):
    """On a shared mount anyone may plant a link; the log must not be written where it leads."""
    backup, victim = tmp_path / "backup", tmp_path / "victim"
    backup.mkdir()
    victim.write_bytes(b"precious")
    for name in ("manifest.part", "log.0.0.zst.part", "log.0.1.json.part"):
        os.symlink(victim, backup / name)
    os.symlink(victim, os.path.join(out, "offloaded.tmp"))
    before = os.umask(0)
    try:
        done = run("archive", "offload", backup, "--dir", out)
    finally:
        os.umask(before)
    assert done.exit_code == 0, done.output
    assert victim.read_bytes() == b"precious"
    paths = [*backup.iterdir(), os.path.join(out, "offloaded")]
    assert {stat.S_IMODE(os.lstat(path).st_mode) for path in paths} == {0o600}
    assert restore(open_store(str(backup)), str(tmp_path / "old")) == 3
    restored = (tmp_path / "old").iterdir()
    assert {stat.S_IMODE(os.lstat(path).st_mode) for path in restored} == {0o600}


def create_often(path):
    """Create a file so often that a link is planted between two steps of it."""
    for _ in range(100_000):
        create_private(path).close()


def test_a_link_that_comes_back_is_not_followed_either(tmp_path):
    """Planted again in the instant between the removal of one and our own file."""
    victim, path = tmp_path / "victim", tmp_path / "part"
    victim.write_bytes(b"precious")
    is_over = threading.Event()

    def plant():
        while not is_over.is_set():
            with suppress(FileExistsError):
                path.symlink_to(victim)

    planting = threading.Thread(target=plant)
    planting.start()
    try:
        with pytest.raises(FileExistsError):
            create_often(str(path))
    finally:
        is_over.set()
        planting.join()
    assert victim.read_bytes() == b"precious"


@pytest.mark.parametrize("kind", ["fifo", "link"])
@pytest.mark.parametrize("name", ["log.0.0.zst", "log.0.0.json", "manifest"])
def test_a_copy_that_is_not_a_file_is_refused_and_never_waited_for(out, tmp_path, kind, name):
    """A FIFO in the place of a copy hung the restore."""
    backup = tmp_path / "backup"
    offload(out, open_store(str(backup)))
    path, other = backup / name, tmp_path / "other"
    os.rename(path, other)
    os.mkfifo(path) if kind == "fifo" else os.symlink(other, path)
    done = run("restore", backup, "--root", tmp_path / "old")
    assert done.exit_code == exits.DISK_FAILED
    assert str(path) in done.stderr


@pytest.mark.parametrize("kind", ["fifo", "link", "garbage", "deep"])
def test_a_foreign_note_about_copies_hangs_no_command(out, tmp_path, kind):
    """The note lies beside the log, where others may write."""
    path = os.path.join(out, "offloaded")
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "link":
        os.symlink("/etc/passwd", path)
    else:
        Path(path).write_bytes(b"[" * 100_000 if kind == "deep" else b"x")
    done = run("log-history", out)
    assert done.exit_code == (exits.DISK_FAILED if kind in ("fifo", "link") else 0)
    assert "Traceback" not in done.output
