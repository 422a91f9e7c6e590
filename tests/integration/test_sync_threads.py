"""SyncThreads: a few threads call the jobs of any number of sessions, each when it is due."""

import gc
import os
import threading

import pytest

from rt import Fsync, Publisher, WriterSettings
from rt.log.write.sync_threads import (
    HEAD_START_S,
    THREADS_MAX,
    SyncThreads,
    batch_threads,
    sync_threads,
)
from tests.replicator_host import eventually

LONG_S = 3600.0


class Job:
    """A job that notes its turns, and can be held in one."""

    def __init__(self, name="", calls=None, rest_s=None):
        self.name, self.rest_s = name, rest_s
        self.calls = [] if calls is None else calls
        self.begun, self.gate = threading.Semaphore(0), threading.Event()
        self.gate.set()
        self.inside = self.most = 0

    def turn(self):
        self.inside += 1
        self.most = max(self.most, self.inside)
        self.calls.append(self.name)
        self.begun.release()
        assert self.gate.wait(60)
        self.inside -= 1
        return self.rest_s

    def hold(self):
        self.gate.clear()

    def demand_turn(self):
        assert self.begun.acquire(timeout=60)


@pytest.fixture
def threads():
    """Return threads of no disk in particular."""
    return SyncThreads("test")


def joined(threads, *jobs):
    """Return the jobs, taken up."""
    for job in jobs:
        threads.join(job)
    return jobs


def names(verb):
    """Return the names of the threads there are that do something."""
    begin = f"{verb} sessions"
    return {each.name for each in threading.enumerate() if each.name.startswith(begin)}


def test_what_is_planned_for_later_is_called_at_once_when_it_is_asked_for(threads):
    """And what was asked for is not put off by a later plan."""
    (job,) = joined(threads, Job())
    threads.ask(job, LONG_S)
    threads.ask(job)
    job.demand_turn()
    assert eventually(lambda: not job.inside)
    job.hold()
    threads.ask(job)
    job.demand_turn()
    threads.ask(job)
    threads.ask(job, LONG_S)
    job.gate.set()
    job.demand_turn()
    threads.leave(job)
    assert job.calls == [""] * 3


def test_a_job_is_in_one_turn_at_a_time_and_is_called_again_if_it_was_asked_for_meanwhile(threads):
    """What was written after a sync began is not covered by that sync."""
    busy, other = joined(threads, Job(), Job())
    busy.hold()
    threads.ask(busy)
    busy.demand_turn()
    for _ in range(5):
        threads.ask(busy)
        threads.ask(other)
        other.demand_turn()
    busy.gate.set()
    busy.demand_turn()
    threads.leave(busy)
    threads.leave(other)
    assert (len(busy.calls), busy.most) == (2, 1)


def test_a_job_says_when_it_wants_its_next_turn(threads):
    """A session that is written all the time is synced again and again."""
    (job,) = joined(threads, Job(rest_s=0.001))
    threads.ask(job)
    for _ in range(10):
        job.demand_turn()
    threads.leave(job)


def test_what_a_thread_waits_for_comes_first_but_starves_nothing():
    """A flush does not wait until a thousand sessions are synced that are due."""
    threads, calls = SyncThreads("test", most=1), []
    busy, due, late, asked = joined(threads, *(Job(each, calls) for each in "bdla"))
    busy.hold()
    threads.ask(busy)
    busy.demand_turn()
    threads.ask(due, 0.0)
    threads.ask(late, -2 * HEAD_START_S)  # it has been due for long
    threads.ask(asked)
    busy.gate.set()
    due.demand_turn()
    assert calls == ["b", "l", "a", "d"]
    for job in (busy, due, late, asked):
        threads.leave(job)


def test_a_disk_that_hangs_in_one_sync_does_not_hold_up_the_next(threads):
    """Another thread starts where all are busy."""
    jobs = joined(threads, *(Job() for _ in range(THREADS_MAX)))
    for job in jobs:
        job.hold()
        threads.ask(job)
        job.demand_turn()
    for job in jobs:
        job.gate.set()
        threads.leave(job)


def test_what_is_due_does_not_wait_for_the_turn_of_the_thread_that_kept_the_time(threads):
    """An interval sync came as late as a flush of another session took."""
    slow, timed = joined(threads, Job(), Job())
    for _ in range(4):  # first of one thread, then of two
        assert eventually(lambda: not slow.inside)
        slow.hold()
        threads.ask(timed, 0.3)
        threads.ask(slow)
        slow.demand_turn()
        timed.demand_turn()
        slow.gate.set()
    for job in (slow, timed):
        threads.leave(job)


def test_plans_that_others_took_the_place_of_do_not_pile_up(threads):
    """A session that is flushed again and again would fill the memory until the next one is due."""
    late, busy = joined(threads, Job(), Job(rest_s=LONG_S))
    threads.ask(late, LONG_S)
    for _ in range(500):
        threads.ask(busy)
        busy.demand_turn()
        assert eventually(lambda: not busy.inside)
    assert len(gc.get_referrers(busy)) < 200
    for job in (late, busy):
        threads.leave(job)


def demand_waiting(threads, job, call):
    """Check that a call waits until the job's turn has ended."""
    job.hold()
    threads.ask(job)
    job.demand_turn()
    waiting = threading.Thread(target=call, args=(job,))
    waiting.start()
    assert waiting.is_alive()
    job.gate.set()
    waiting.join(60)
    assert not waiting.is_alive()


def test_leaving_waits_for_the_turn_and_ends_the_threads_with_the_last_job(threads):
    """The file may be closed then, and no thread is left behind."""
    (job,) = joined(threads, Job())
    demand_waiting(threads, job, threads.leave)
    threads.ask(job)  # too late
    assert eventually(lambda: not names("test"))
    assert len(job.calls) == 1


def test_a_turn_can_be_awaited_and_the_job_goes_on(threads):
    """A session that was left is not looked at once the turn of that moment has ended."""
    (job,) = joined(threads, Job())
    threads.await_turn(job)  # there is none
    demand_waiting(threads, job, threads.await_turn)
    threads.ask(job)
    job.demand_turn()
    threads.leave(job)


@pytest.fixture
def ended():
    """Return a semaphore that is released for each thread that ends with an error."""
    count, hook = threading.Semaphore(0), threading.excepthook
    threading.excepthook = lambda _failure: count.release()
    yield count
    threading.excepthook = hook


def test_a_job_that_fails_takes_only_its_own_turn_with_it(threads, ended):
    """More threads than there may be have ended by then."""

    class Broken(Job):
        def turn(self):
            super().turn()
            raise ValueError("a fault of ours")

    broken, sound = joined(threads, Broken(), Job())
    for _ in range(THREADS_MAX + 2):
        threads.ask(broken)
        assert ended.acquire(timeout=60)
    threads.ask(sound)
    sound.demand_turn()
    threads.leave(broken)
    threads.leave(sound)


@pytest.mark.parametrize("fsync", list(Fsync))
def test_a_hundred_publishers_share_a_few_threads(tmp_path, fsync):
    """Each once had a thread of its own, which woke twice for each sync."""
    settings, before = WriterSettings(fsync=fsync, fsync_interval_s=0.01), names("sync")
    publishers = [
        Publisher(tmp_path, stream="s", session=f"p{number}", writer=settings)
        for number in range(100)
    ]
    for publisher in publishers:
        publisher.publish(b"message")
    for publisher in publishers:
        publisher.flush("synced", 60)
    during = names("sync")
    assert during  # perhaps of those of an earlier test, which would have ended
    assert len(during - before) <= THREADS_MAX
    for publisher in publishers:
        publisher.close()
    assert eventually(lambda: names("sync") <= before)


@pytest.mark.parametrize("threads_of", [sync_threads, batch_threads])
def test_a_disk_that_hangs_holds_up_no_other_disk(tmp_path, threads_of):
    """Eight publishers on a hanging share kept the batches of all others from being written."""
    assert threads_of("/proc") is not threads_of(str(tmp_path))
    assert threads_of(str(tmp_path)) is threads_of(str(tmp_path.parent))


def test_a_forked_child_has_threads_of_its_own(tmp_path):
    """Those of its parent do not exist there, and a lock may be held for good."""
    with Publisher(tmp_path, stream="s", session="parent") as parent:
        parent.publish(b"message")
        parent.flush("synced", 60)
        child = os.fork()
        if not child:
            status = 1
            try:
                with Publisher(tmp_path, stream="s", session="child") as publisher:
                    publisher.publish(b"message")
                    publisher.flush("synced", 60)
                    status = 0
            finally:
                os._exit(status)
        assert os.waitpid(child, 0)[1] == 0
        parent.publish(b"another")
        parent.flush("synced", 60)
