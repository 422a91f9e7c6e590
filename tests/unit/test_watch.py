"""Watch: only a wake-up; polling finds what it misses."""

import errno
import os
import threading
import time

import pytest
from inotify_simple import INotify

from rt.errors import Misuse
from rt.log.notify.watch import POLL_S, Changes, Wake, Watch, directories_in

MODES = ["inotify", "poll"]


def is_quick(act):
    """Whether this takes less than a poll interval; a busy machine may delay some of its tries."""
    for _ in range(10):
        begin = time.monotonic()
        act()
        if time.monotonic() - begin < POLL_S:
            return True
    return False


def wait_for(ready, timeout_s=10.0):
    """Call `ready` until it says so; the pause between is a wait of its own."""
    deadline = time.monotonic() + timeout_s
    while not ready():
        assert time.monotonic() < deadline


def test_a_change_ends_the_wait_and_names_its_directory(tmp_path):
    """One watcher serves a thousand sessions; it must know which of them to look at."""
    ours, other = tmp_path / "jfk", tmp_path / "lga"
    ours.mkdir()
    other.mkdir()
    with Watch("inotify") as eyes:
        eyes.add(str(ours))
        eyes.add(str(other))
        assert not eyes.polls
        assert eyes.changes() == Changes()

        def is_named():
            (ours / "log.0.0").write_bytes(b"x")
            assert eyes.wait(10) == Changes(frozenset({str(ours)}))

        assert is_quick(is_named)


@pytest.mark.parametrize("mode", MODES)
def test_a_directory_that_is_not_there_yet_is_found_when_it_is_made(tmp_path, mode):
    """A subscriber may be started before the first publisher."""
    later = tmp_path / "later"
    with Watch(mode) as eyes:
        eyes.add(str(later))
        assert eyes.polls
        assert is_quick(lambda: eyes.wait(10)), "what causes no event is found by polling"
        later.mkdir()
        eyes.wait(10)
        assert eyes.polls == (mode == "poll")


def test_a_directory_that_is_made_again_is_watched_again(tmp_path):
    """A session deleted and made again keeps its path."""
    path = tmp_path / "jfk"
    path.mkdir()
    with Watch("inotify") as eyes:
        eyes.add(str(path))
        path.rmdir()
        wait_for(lambda: eyes.changes() is not None and eyes.polls)
        path.mkdir()
        eyes.wait(1)
        assert not eyes.polls
        (path / "log.0.0").write_bytes(b"x")
        assert str(path) in eyes.wait(10).directories


def test_a_name_that_does_not_matter_is_not_a_change(tmp_path):
    """Confirmations are written beside the shipped files, by the process that ships them."""
    with Watch("inotify", ignored=["confirmed"]) as eyes:
        eyes.add(str(tmp_path))
        (tmp_path / "confirmed").write_bytes(b"x")
        assert eyes.changes() == Changes()
        (tmp_path / "log.0.0").write_bytes(b"x")
        assert eyes.changes().directories == {str(tmp_path)}


def test_an_overflow_means_anything_may_have_changed(tmp_path):
    """The kernel's queue holds 16,384 events; beyond that it only reports that some were lost."""
    with Watch("inotify") as eyes:
        eyes.add(str(tmp_path))
        with open("/proc/sys/fs/inotify/max_queued_events") as file:
            limit = int(file.read())
        names = [str(tmp_path / f"log.0.{count}") for count in range(2)]
        (tmp_path / "log.0.0").touch()
        for _ in range(limit // 2 + 10):
            # two names by turns: events that equal their predecessor are merged
            os.rename(*names)
            os.rename(*reversed(names))
        assert eyes.changes().rescan


def test_where_inotify_cannot_be_had_polling_takes_its_place(tmp_path):
    """128 instances per user, and containers that have none."""

    def refuse(**_kwargs):
        raise OSError(errno.EMFILE, "no more instances")

    with Watch("auto", inotify=refuse) as eyes:
        assert eyes.polls
        assert eyes.fileno() == -1
        eyes.add(str(tmp_path))
        assert eyes.wait(10).rescan
    with pytest.raises(OSError, match="no more instances"):
        Watch("inotify", inotify=refuse)


class FewWatches(INotify):
    """An inotify instance that may have no watch while `left` is 0."""

    left = 0

    def add_watch(self, path, mask):
        if not self.left:
            raise OSError(errno.ENOSPC, "no more watches")
        return super().add_watch(path, mask)


def test_where_no_watch_is_left_the_directory_is_polled(tmp_path):
    """`max_user_watches` is shared by everything a user runs."""
    few = FewWatches(nonblocking=True)
    with Watch("inotify", inotify=lambda **_options: few) as eyes:
        eyes.add(str(tmp_path))
        assert eyes.polls
        few.left = 1
        eyes.wait(1)
        assert not eyes.polls


@pytest.mark.parametrize("mode", MODES)
def test_another_thread_ends_the_wait(mode, tmp_path):
    """`stop` must not take a poll interval, and must not be lost if it comes first."""
    wake = Wake()
    with Watch(mode) as eyes:
        eyes.add(str(tmp_path))
        assert is_quick(lambda: (wake.set(), eyes.wait(10, wake)))
        thread = threading.Thread(target=wake.set)
        thread.start()
        wait_for(lambda: eyes.wait(10, wake) is not None)
        thread.join()
    wake.close()
    wake.set()
    wake.close()


def test_a_thread_that_is_woken_often_before_it_waits_costs_one_write():
    """Each system call hands the interpreter on, and each update wakes all of them."""
    wake = Wake()
    for end in (lambda: wake.wait(60), wake.clear, lambda: wake.wait(60)):
        wake.set()
        wake.set()
        assert os.eventfd_read(wake.fileno()) == 1  # the sum of what was written
        os.eventfd_write(wake.fileno(), 1)
        began_s = time.monotonic()
        end()
        assert time.monotonic() - began_s < 10
    wake.set()
    assert os.eventfd_read(wake.fileno()) == 1
    wake.close()


def test_a_wait_that_a_signal_handler_ends_leaves_a_wake_that_can_be_set_again(monkeypatch):
    """Its flag stayed up while the descriptor was empty: nothing woke the thread any more."""
    wake, read = Wake(), os.eventfd_read

    def interrupted(fd):
        read(fd)
        raise TimeoutError

    wake.set()
    monkeypatch.setattr(os, "eventfd_read", interrupted)
    with pytest.raises(TimeoutError):
        wake.wait(60)
    monkeypatch.undo()
    wake.set()
    began_s = time.monotonic()
    wake.wait(60)
    assert time.monotonic() - began_s < 10
    wake.close()


def test_no_update_is_lost_between_a_wake_and_its_clearing():
    """What was announced before `set` is seen after the wait that it ends, however they meet."""
    wake, announced, total = Wake(), [], 20_000
    threads = [
        threading.Thread(target=lambda: [(announced.append(1), wake.set()) for _ in range(total)])
        for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    seen = 0
    while seen < 3 * total:
        began_s = time.monotonic()
        wake.wait(30)
        assert time.monotonic() - began_s < 20
        seen = len(announced)
    for thread in threads:
        thread.join()
    wake.close()


def test_no_wait_is_longer_than_the_poll_interval(tmp_path):
    """Events may be lost, and a network file system sends none: the net under everything."""
    with Watch("inotify") as eyes:
        eyes.add(str(tmp_path))
        begin = time.monotonic()
        assert eyes.wait(3600) == Changes()
        assert POLL_S * 0.9 <= time.monotonic() - begin < POLL_S + 5


def test_a_wrong_mode_is_refused():
    """It comes from a settings file."""
    with pytest.raises(Misuse, match="auto, inotify, poll"):
        Watch("inotfy")


def test_only_directories_are_listed_and_links_are_none(tmp_path):
    """Sessions are found by this; a planted link must not become one."""
    (tmp_path / "jfk").mkdir()
    (tmp_path / "file").write_bytes(b"")
    (tmp_path / "link").symlink_to(tmp_path / "jfk")
    assert list(directories_in(str(tmp_path))) == ["jfk"]
    assert list(directories_in(str(tmp_path / "missing"))) == []


def test_a_directory_that_is_removed_from_the_watch_causes_no_change(tmp_path):
    """A publisher in the same process says itself what it writes."""
    ours, other = tmp_path / "jfk", tmp_path / "lga"
    ours.mkdir()
    other.mkdir()
    with Watch("inotify") as eyes:
        eyes.add(str(ours))
        eyes.add(str(other))
        eyes.add(str(tmp_path / "later"))
        eyes.remove(str(ours))
        eyes.remove(str(tmp_path / "later"))
        assert not eyes.polls
        (ours / "log.0.0").write_bytes(b"x")
        (other / "log.0.0").write_bytes(b"x")
        wait_for(lambda: eyes.changes() == Changes(frozenset({str(other)})))
        assert not eyes.polls, "the kernel confirms a removal; that is no directory made again"
        eyes.add(str(ours))
        (ours / "log.0.0").write_bytes(b"y")
        assert eyes.wait(10).directories == {str(ours)}


def test_a_directory_that_is_made_or_moved_here_is_named(tmp_path):
    """Who watches a thousand sessions need not list them to find the one that is new."""
    stream, other = tmp_path / "s", tmp_path / "other"
    stream.mkdir()
    other.mkdir()
    with Watch("inotify", ignored=["confirmed"]) as eyes:
        eyes.add(str(stream))
        (stream / "jfk").mkdir()
        other.rename(stream / "lgä")
        (stream / "file").write_bytes(b"x")
        (stream / "link").symlink_to(stream / "jfk")
        made = frozenset({str(stream / "jfk"), str(stream / "lgä")})
        assert eyes.changes() == Changes(frozenset({str(stream)}), made=made)
        (stream / "confirmed").mkdir()
        assert eyes.changes() == Changes()
