"""Chore: work that waits for a disk has no thread of its own, and takes one turn at a time."""

import threading

from replicator_host import eventually

from rt.net.loop.chore import Chore
from rt.net.loop.event_loop import EventLoop


def test_a_chore_is_done_again_after_the_time_that_it_returned(loop):
    """Looking out and sweeping have deadlines, and no thread that sleeps between them."""
    turns = []
    chore = Chore(loop, lambda: turns.append(1) or (0.01 if len(turns) < 3 else None))
    chore.begin(0.01)
    assert eventually(lambda: len(turns) == 3)
    chore.ask()
    assert eventually(lambda: len(turns) == 4)
    chore.stop()


def test_what_is_asked_for_during_a_turn_is_done_after_it_and_never_beside_it(loop):
    """Two turns at once would share what belongs to one; a forgotten one would come too late."""
    begun, go, running, most = threading.Semaphore(0), threading.Semaphore(0), [], []

    def work():
        running.append(1)
        most.append(len(running))
        begun.release()
        assert go.acquire(timeout=60)
        running.pop()

    chore = Chore(loop, work)
    chore.ask()
    assert begun.acquire(timeout=60)
    for _ in range(3):
        chore.ask()
    go.release()
    assert begun.acquire(timeout=60), "asked for while it was under way"
    go.release()
    chore.stop()
    assert most == [1, 1]


class Told(EventLoop):
    """A loop that tells when something is stopped."""

    def __init__(self):
        self.forgot = threading.Event()
        super().__init__()

    def forget(self, party):
        super().forget(party)
        self.forgot.set()


def test_stopping_waits_for_the_turn_that_is_under_way():
    """A directory is closed afterwards, and its files must not be in use."""
    loop, begun, go, done = Told(), threading.Event(), threading.Event(), []

    def work():
        begun.set()
        done.append(go.wait(60))

    chore = Chore(loop, work)
    chore.ask()
    assert begun.wait(60)
    stopper = threading.Thread(target=chore.stop)
    stopper.start()
    assert loop.forgot.wait(60)
    chore.ask()
    go.set()
    stopper.join(60)
    assert done == [True]
    chore.ask()
    loop.call(lambda: None)
    loop.stop()
    assert done == [True], "it was stopped"


def test_an_error_ends_a_chore_and_is_reported_by_the_loop(loop):
    """A sweeper whose sync has failed ends the node."""
    failures = []

    def work():
        raise OSError(5, "Input/output error")

    chore = Chore(loop, work, lambda error: failures.append((error.errno, loop.is_own_thread)))
    chore.ask()
    assert eventually(lambda: failures)
    assert failures == [(5, True)]
    chore.ask()
    loop.call(lambda: None)
    chore.stop()
    assert failures == [(5, True)]


def test_a_chore_is_stopped_after_its_loop(loop):
    """The loop may have ended with an error, and the rest must be stopped nevertheless."""
    did = []
    chore = Chore(loop, lambda: did.append("work"))
    chore.ask()
    loop.stop()
    chore.stop()
    assert len(did) <= 1
