"""Disk: the few calls the log makes, against the real file system."""

import os

import pytest

from rt.log.files.disk import COPY_BYTES, IOV_MAX, OsDisk, OsFile, set_aside, sync_directory

DISK = OsDisk()


@pytest.fixture
def path(tmp_path):
    """Return where a file may be made."""
    return str(tmp_path / "file")


@pytest.mark.parametrize("count", [0, 1, 3, IOV_MAX, IOV_MAX + 1, 3 * IOV_MAX])
def test_every_part_is_written_in_order_however_many_there_are(path, count):
    """One writev takes 1,024 parts; the rest must not be lost."""
    file = DISK.open(path, create=True)
    parts = [b"%d," % place for place in range(count)]
    assert file.append([b"first,"]) == 6
    assert file.append(parts) == sum(map(len, parts))
    assert file.pread(1 << 20, 0) == b"first," + b"".join(parts)
    file.close()


class ShortFile(OsFile):
    """A file that takes at most so many bytes at once."""

    most, taken = 2, None

    def pwrite(self, data, offset):
        count = super().pwrite(data[: self.most], offset)
        if self.taken is not None:
            self.taken.append((offset, offset + count))
        return count


def short_file(path):
    """Open one."""
    return ShortFile(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))


def test_a_short_write_is_followed_by_the_rest(path):
    """The first sign of a full disk, a quota or a signal is fewer bytes than asked."""
    file = short_file(path)
    parts = [b"%04d," % number for number in range(IOV_MAX + 5)]  # so many that a call leaves some
    assert file.append(parts) == 5 * len(parts)
    assert file.append([b"departed"]) == 8
    assert file.pread(1 << 20, 0) == b"".join(parts) + b"departed"
    file.close()


def test_appends_continue_where_the_file_was_cut(path):
    """A half-written frame is cut, and the next one takes its place."""
    file = DISK.open(path, create=True)
    file.append([b"whole", b"half"])
    file.truncate(5)
    file.append([b"next"])
    assert file.pread(100, 0) == b"wholenext"
    assert file.size() == 9
    file.close()


@pytest.mark.parametrize("length", [0, 1, COPY_BYTES, 2 * COPY_BYTES + 7])
def test_bytes_are_written_again_where_they_are(path, length):
    """Only bytes that were written since a failed sync does the next one write."""
    file = short_file(path)
    file.most = COPY_BYTES // 2 + 1
    file.append([b"head", bytes(range(256)) * (length // 256), bytes(length % 256)])
    before = file.pread(length + 5, 0)
    file.taken = written = []
    file.write_again(4)
    assert file.pread(length + 5, 0) == before
    file.taken = None
    ends = [4, *(end for _, end in written)]
    assert [begin for begin, _ in written] == ends[:-1]
    assert ends[-1] == 4 + length
    file.append([b"tail"])
    assert file.pread(5, 4 + length) == b"tail"
    file.close()


@pytest.mark.parametrize("length", [1, 900_000, COPY_BYTES, 2 * COPY_BYTES + 7])
def test_bytes_are_copied_from_any_place_to_any_other(tmp_path, length):
    """The merge copies ranges, through a buffer that is smaller than the longest."""
    source = DISK.open(str(tmp_path / "source"), create=True)
    source.append([bytes(range(256)) * 10_000])
    target = DISK.open(str(tmp_path / "target"), create=True)
    target.append([b"head"])
    target.copy(source, 100, length)
    assert target.pread(length + 1, 4) == source.pread(length, 100)
    target.append([b"tail"])
    assert target.size() == length + 8
    with pytest.raises(EOFError):
        target.copy(source, 2_500_000, 100_000)
    source.close()
    target.close()


@pytest.mark.parametrize(
    "make", [os.mkdir, os.mkfifo, lambda path: os.symlink("/etc/passwd", path)]
)
def test_anything_but_a_regular_file_is_refused_at_once(path, make):
    """A pipe with the name of a log would make a reader wait for ever; a link leads elsewhere."""
    make(path)
    with pytest.raises(OSError, match=r"regular|directory|symbolic"):
        DISK.open_read(path)
    with pytest.raises(OSError, match=r"regular|directory|symbolic"):
        DISK.open(path, create=True)


@pytest.mark.parametrize(
    "act",
    [
        lambda file: file.append([b"x"]),
        lambda file: file.pread(1, 0),
        lambda file: file.truncate(0),
        OsFile.size,
        OsFile.sync,
        OsFile.close,
    ],
)
def test_a_file_that_was_closed_touches_no_other(tmp_path, act):
    """A copy that is given up is closed while a connection may still append to it."""
    closed = DISK.open(str(tmp_path / "a"), create=True)
    number = closed.fileno()
    closed.close()
    other = DISK.open(str(tmp_path / "b"), create=True)
    assert other.fileno() == number
    other.append([b"whole"])
    with pytest.raises(OSError, match="Bad file descriptor"):
        act(closed)
    assert other.pread(9, 0) == b"whole"
    other.close()


def test_a_missing_file_is_said_to_be_missing(tmp_path):
    """Readers wait for it; everything else is a fault."""
    missing = str(tmp_path / "missing")
    with pytest.raises(FileNotFoundError):
        DISK.open_read(missing)
    with pytest.raises(FileNotFoundError):
        DISK.open(missing)
    assert DISK.names(missing) == []


def test_names_and_directories_are_synced_even_if_they_are_there_already(tmp_path, monkeypatch):
    """The process that made them may have been killed before the sync, and we rely on them."""
    synced = []
    real = os.fsync
    monkeypatch.setattr(
        os, "fsync", lambda fd: synced.append(os.readlink(f"/proc/self/fd/{fd}")) or real(fd)
    )
    directory = tmp_path / "a" / "b"
    for _ in range(2):
        synced.clear()
        DISK.make_directory(str(directory))
        DISK.open(str(directory / "file"), create=True).close()
        assert synced[-2:] == [str(tmp_path / "a"), str(directory)]
    assert oct((tmp_path / "a").stat().st_mode)[-3:] == "700"
    assert oct((directory / "file").stat().st_mode)[-3:] == "600"


def test_a_name_is_replaced_and_the_directory_synced(tmp_path, monkeypatch):
    """A snapshot becomes the new one in one step, or not at all."""
    (tmp_path / "new").write_bytes(b"new")
    (tmp_path / "old").write_bytes(b"old")
    calls = []
    real = os.fsync
    monkeypatch.setattr(os, "fsync", lambda fd: calls.append(fd) or real(fd))
    DISK.replace(str(tmp_path / "new"), str(tmp_path / "old"))
    assert DISK.names(str(tmp_path)) == ["old"]
    assert (tmp_path / "old").read_bytes() == b"new"
    assert len(calls) == 1
    sync_directory(str(tmp_path))


def test_a_file_where_a_directory_should_be_is_an_error(tmp_path):
    """Nothing is deleted to make room for a log."""
    (tmp_path / "x").write_bytes(b"")
    with pytest.raises(FileExistsError):
        DISK.make_directory(str(tmp_path / "x" / "y"))
    with pytest.raises(FileExistsError):
        DISK.make_directory(str(tmp_path / "x"))


def test_of_what_is_set_aside_under_one_name_the_first_and_the_last_are_kept(tmp_path):
    """A failing disk, which sets its merged log aside again and again, would be full of them."""
    disk = OsDisk()
    for number in range(4):
        (tmp_path / "out").mkdir()
        (tmp_path / "out" / "log.0.0").write_text(f"log {number}")
        (tmp_path / "log.0.0").write_text(f"file {number}")
        for name in ("out", "log.0.0"):
            kept = set_aside(disk, str(tmp_path / name))
            assert kept == f"quarantine.{name}.{min(number, 1)}"
    assert (tmp_path / "quarantine.out.0" / "log.0.0").read_text() == "log 0"
    assert (tmp_path / "quarantine.out.1" / "log.0.0").read_text() == "log 3"
    assert (tmp_path / "quarantine.log.0.0.0").read_text() == "file 0"
    assert (tmp_path / "quarantine.log.0.0.1").read_text() == "file 3"
    assert len(os.listdir(tmp_path)) == 4
