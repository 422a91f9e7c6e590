"""PooledDisk: more files than descriptors, without a promise being lost."""

import os
import resource
import threading
from random import Random

import pytest

from rt.log.files.disk import OsDisk
from rt.log.files.pooled_disk import PooledDisk


def descriptors():
    """How many this process has."""
    return len(os.listdir("/proc/self/fd"))


def test_any_number_of_files_is_open_on_a_few_descriptors(tmp_path):
    """At a limit of 1,024 some 200 sessions ended a node, and it did not start again."""
    before, disk = descriptors(), PooledDisk(10)
    files = [disk.open(str(tmp_path / f"f{number}"), create=True) for number in range(200)]
    for turn in range(3):
        for number, file in enumerate(files):
            file.append([b"%d of %d;" % (turn, number)])
            file.sync()
        assert descriptors() <= before + 11
    for number, file in enumerate(files):
        assert file.pread(100, 0) == b"".join(b"%d of %d;" % (turn, number) for turn in range(3))
        assert file.size() == (tmp_path / f"f{number}").stat().st_size
        file.close()
    assert descriptors() <= before


def test_a_file_that_was_written_and_not_synced_keeps_its_descriptor(tmp_path):
    """An error of the disk is reported to descriptors that were open when it happened."""
    before, disk = descriptors(), PooledDisk(4)
    files = [disk.open(str(tmp_path / f"f{number}"), create=True) for number in range(20)]
    for file in files:
        file.append([b"x"])
    assert descriptors() >= before + 20
    for file in files:
        file.sync()
    disk.open_read(str(tmp_path / "f0"))
    assert descriptors() <= before + 5


def test_a_closed_file_is_not_opened_again_and_neither_is_another_of_its_name(tmp_path):
    """A copy that was set aside must not be continued in the one that took its place."""
    disk, path = PooledDisk(1), tmp_path / "f"
    file = disk.open(str(path), create=True)
    path.rename(tmp_path / "g")
    path.write_bytes(b"another")
    disk.open(str(tmp_path / "h"), create=True)  # takes the descriptor
    with pytest.raises(FileNotFoundError, match="replaced"):
        file.pread(1, 0)
    other = disk.open(str(path))
    other.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        other.append([b"x"])


def test_a_file_that_is_closed_during_a_write_is_not_closed_under_it(tmp_path):
    """Else the write could go into the file that is given the same descriptor next."""
    disk, path = PooledDisk(4), tmp_path / "f"
    file = disk.open(str(path), create=True)
    before = descriptors()

    class ClosedMeanwhile(list):
        def __iter__(self):
            file.close()
            (tmp_path / "g").touch()
            disk.open(str(tmp_path / "g"))  # would get the descriptor
            return super().__iter__()

    file.append(ClosedMeanwhile([b"x"]))
    assert (path.read_bytes(), (tmp_path / "g").read_bytes()) == (b"x", b"")
    assert descriptors() == before
    with pytest.raises(OSError, match="Bad file descriptor"):
        file.append([b"y"])


def test_a_file_that_cannot_be_opened_leaves_no_descriptor(tmp_path):
    """Short of descriptors, each attempt would take another one for good."""
    disk, path = PooledDisk(4), tmp_path / "f"
    path.touch()
    before, limits = descriptors(), resource.getrlimit(resource.RLIMIT_NOFILE)
    free = [os.dup(0), os.dup(0)]
    for fd in free:
        os.close(fd)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free[1], limits[1]))  # one more can be opened
    try:
        with pytest.raises(OSError, match="Too many"):
            disk.open_read(str(path))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert descriptors() == before


def test_threads_that_share_descriptors_read_and_write_their_own_files(tmp_path):
    """A descriptor that is given up while it is used would be another file's."""
    disk, failures = PooledDisk(3), []

    def work(seed):
        chance = Random(seed)
        files = {n: disk.open(str(tmp_path / f"{seed}.{n}"), create=True) for n in range(4)}
        expected = dict.fromkeys(files, b"")
        for step in range(300):
            number = chance.choice(list(files))
            data = b"%d.%d.%d;" % (seed, number, step)
            files[number].append([data])
            expected[number] += data
            if chance.random() < 0.7:
                files[number].sync()
            if files[number].pread(1 << 20, 0) != expected[number]:
                failures.append((seed, number, step))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_a_file_of_a_pooled_disk_has_the_bytes_of_one_of_a_plain_disk(tmp_path):
    """Appending, copying, cutting and rewriting: a log must not notice the difference."""
    source = OsDisk().open(str(tmp_path / "source"), create=True)
    source.append([bytes(range(256)) * 16])
    copies = []
    for disk in (OsDisk(), PooledDisk(1)):
        target = disk.open(str(tmp_path / type(disk).__name__), create=True)
        target.append([b"head"])
        target.copy(disk.open_read(str(tmp_path / "source")), 100, 3000)
        target.truncate(2000)
        target.append([b"tail"])
        target.write_again(0)
        target.sync()
        copies.append(target.pread(5000, 0))
        target.close()
    assert copies[0] == copies[1]
    assert len(copies[0]) == 2004
