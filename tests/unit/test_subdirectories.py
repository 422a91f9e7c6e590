"""Subdirectories: who asks every second which sessions there are pays for what has changed."""

import os
import shutil

import pytest

from rt.log.notify.subdirectories import Subdirectories


class Clock:
    """A clock that is moved by hand, and how many names were looked at."""

    def __init__(self):
        self.now_s = 100.0
        self.looked_at = 0

    def of(self, path, but=""):
        """Return the subdirectories of a directory, by this clock."""

        def counts(name):
            self.looked_at += 1
            return name != but

        return Subdirectories(str(path), counts, lambda: self.now_s)


@pytest.fixture
def clock():
    """Return the clock."""
    return Clock()


def settled(found, clock):
    """Ask until the listing is sure; return the names."""
    names = found.names()
    clock.now_s += 3
    assert sorted(found.names()) == sorted(names)
    return sorted(names)


def test_a_directory_that_does_not_change_is_listed_no_more(tmp_path, clock):
    """Five threads of a pusher ask every second, and a thousand names are looked at each time."""
    for name in ("jfk", "lga", "in"):
        (tmp_path / name).mkdir()
    (tmp_path / "file").write_bytes(b"")
    found = clock.of(tmp_path, but="in")
    assert settled(found, clock) == ["jfk", "lga"]
    before = clock.looked_at
    for _ in range(9):
        clock.now_s += 1
        assert sorted(found.names()) == ["jfk", "lga"]
    assert clock.looked_at == before


def test_what_is_made_moved_or_removed_is_found_at_once(tmp_path, clock):
    """A new session must not wait for a second look."""
    found = clock.of(tmp_path / "stream")
    assert settled(found, clock) == []
    (tmp_path / "stream" / "jfk").mkdir(parents=True)
    assert settled(found, clock) == ["jfk"]
    (tmp_path / "lga").mkdir()
    (tmp_path / "lga").rename(tmp_path / "stream" / "lga")
    assert settled(found, clock) == ["jfk", "lga"]
    (tmp_path / "stream" / "jfk").rmdir()
    assert settled(found, clock) == ["lga"]
    shutil.rmtree(tmp_path / "stream")
    assert settled(found, clock) == []


def test_a_second_change_within_one_tick_of_the_file_system_is_found(tmp_path, clock):
    """Its clock may tick every two seconds, and be another machine's."""
    found = clock.of(tmp_path)
    settled(found, clock)
    for number in range(3):
        (tmp_path / f"s{number}").mkdir()
        os.utime(tmp_path, ns=(1, 1))
        assert len(found.names()) == number + 1
        clock.now_s += 0.7


def test_a_directory_in_its_place_is_another(tmp_path, clock):
    """A stream may be moved away, and restored with the times that it had."""
    stream = tmp_path / "stream"
    (stream / "jfk").mkdir(parents=True)
    found = clock.of(stream)
    assert settled(found, clock) == ["jfk"]
    was = stream.stat()
    stream.rename(tmp_path / "old")
    (stream / "lga").mkdir(parents=True)
    os.utime(stream, ns=(was.st_atime_ns, was.st_mtime_ns))
    assert settled(found, clock) == ["lga"]


def test_a_directory_whose_times_tell_nothing_is_listed_now_and_then(tmp_path, clock):
    """Some file systems do not move them, and send no event either."""
    (tmp_path / "jfk").mkdir()
    found = clock.of(tmp_path)
    assert settled(found, clock) == ["jfk"]
    before = clock.looked_at
    clock.now_s += 11
    assert found.names() == ("jfk",)
    assert clock.looked_at > before
