"""What an event loop leaves to threads: nothing is lost or done twice, and the loop never waits."""

import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from queue import SimpleQueue

import pytest

from rt.errors import PeerError, RtError
from rt.net.loop.event_loop import EventLoop
from rt.net.loop.timer import Aside, Timer

PATIENCE_S = 60


def thread_of(loop):
    """The loop's thread."""
    found = []
    loop.call(lambda: found.append(threading.get_ident()))
    return found[0]


def away(loop, work):
    """Have a thread for peers do this; return what its end is reported to."""
    ends = SimpleQueue()
    loop.ask(work, lambda error: ends.put((error, threading.get_ident())))
    return ends


def test_what_waits_for_a_peer_is_done_by_another_thread_and_reported_in_the_loop(loop):
    """The loop serves connections meanwhile."""
    gate, seen = threading.Event(), []

    def work():
        seen.append(threading.get_ident())
        gate.wait(PATIENCE_S)

    ends = away(loop, work)
    own = thread_of(loop)
    gate.set()
    assert ends.get(timeout=PATIENCE_S) == (None, own)
    assert own not in seen


def test_many_may_wait_at_once_and_leave_no_thread(loop):
    """A question that hangs must not keep a sign of life waiting."""
    gate, threads = threading.Event(), []

    def work():
        threads.append(threading.current_thread())
        gate.wait(PATIENCE_S)

    hanging = [away(loop, work) for _ in range(40)]
    assert away(loop, lambda: None).get(timeout=PATIENCE_S)[0] is None
    gate.set()
    for ends in hanging:
        ends.get(timeout=PATIENCE_S)
    for each in threads:
        each.join(PATIENCE_S)
        assert not each.is_alive()


def fail(error):
    """Raise it."""
    raise error


def test_work_that_is_done_after_the_loop_has_ended_is_told_so_once():
    """What it opened was closed by nothing: a connection of a client that had been stopped."""
    loop, gate, told = EventLoop(), threading.Event(), SimpleQueue()
    loop.ask(
        lambda: gate.wait(PATIENCE_S), lambda _error: told.put("back"), lambda: told.put("late")
    )
    loop.stop()
    gate.set()
    assert told.get(timeout=PATIENCE_S) == "late"
    assert told.empty()


def test_an_expected_error_is_reported_as_it_is(loop):
    """A node that is off is not an error of the program."""
    refused = PeerError("no answer")
    assert away(loop, lambda: fail(refused)).get(timeout=PATIENCE_S)[0] is refused


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_an_internal_error_ends_its_thread_and_is_reported_too(loop):
    """A caller that waits for the end would wait for ever."""
    threads = []

    def work():
        threads.append(threading.current_thread())
        fail(KeyError("x"))

    error, _ = away(loop, work).get(timeout=PATIENCE_S)
    assert "internal error" in str(error)
    threads[0].join(PATIENCE_S)
    assert away(loop, lambda: None).get(timeout=PATIENCE_S)[0] is None


def test_a_system_without_threads_left_is_an_error_of_what_was_to_be_done(loop, monkeypatch):
    """The loop goes on, and it is tried again."""
    with monkeypatch.context() as limited:
        limited.setattr(threading.Thread, "start", lambda _thread: fail(RuntimeError("no more")))
        error, _ = away(loop, lambda: None).get(timeout=PATIENCE_S)
    assert isinstance(error, OSError)


def test_a_timer_calls_again_when_it_was_told_to_and_when_it_is_set(loop):
    """And not before: a sign of life each turn would be a flood."""
    calls, pauses = SimpleQueue(), iter([0.0, None, None])
    timer = Timer(loop, lambda: (calls.put(1), next(pauses))[1], pytest.fail)
    timer.set()
    for _ in range(2):
        calls.get(timeout=PATIENCE_S)
    thread_of(loop)
    assert calls.empty()
    timer.set()
    calls.get(timeout=PATIENCE_S)
    assert timer.stop()
    timer.set()
    thread_of(loop)
    assert calls.empty()


@pytest.mark.parametrize("is_peer", [True, False])
def test_a_timer_is_not_called_while_its_work_is_under_way_and_a_stop_waits_for_it(loop, is_peer):
    """A cursor is released after its last sign of life, or that would be refused as another's."""
    gate, began, calls = threading.Event(), threading.Event(), []

    def work():
        began.set()
        gate.wait(PATIENCE_S)

    def act():
        calls.append(1)
        return Aside(work, lambda _error: calls.append("back"), is_peer=is_peer)

    timer = Timer(loop, act, pytest.fail)
    timer.set()
    assert began.wait(PATIENCE_S)
    timer.set()
    thread_of(loop)
    assert not timer.stop(0.01)
    gate.set()
    assert timer.stop(PATIENCE_S)
    thread_of(loop)
    assert calls == [1]


def test_a_timer_goes_on_with_what_came_of_its_work(loop):
    """What the work has learned decides when the next call is due."""
    errors, done = [], threading.Event()

    def act():
        if errors:
            done.set()
            return None
        return Aside(lambda: fail(PeerError("no answer")), errors.append)

    timer = Timer(loop, act, pytest.fail)
    timer.set()
    assert done.wait(PATIENCE_S)
    assert [str(each) for each in errors] == ["no answer"]
    assert timer.stop()


def test_work_that_gets_no_thread_is_tried_again_and_done_once(loop, monkeypatch):
    """A copy that could not be synced once, as a limit of threads was reached, would have ended."""
    start, refused, done = threading.Thread.start, [], SimpleQueue()

    def seldom(thread):
        if not refused:
            refused.append(thread)
            raise RuntimeError("can't start new thread")
        start(thread)

    wanted = iter(
        [Aside(partial(done.put, each), lambda _error: None, is_peer=False) for each in (1, 2)]
    )
    timer = Timer(loop, lambda: next(wanted, None), pytest.fail)
    with monkeypatch.context() as limited:
        limited.setattr(threading.Thread, "start", seldom)
        timer.set()
        assert done.get(timeout=PATIENCE_S) == 2
    assert timer.stop()
    assert done.empty()


class Exhausted(ThreadPoolExecutor):
    """A pool that is given work, and then gets no further thread for it."""

    def __init__(self, *, until):
        super().__init__(1)
        self.until = until

    def submit(self, *work):
        super().submit(*work)
        assert self.until.wait(PATIENCE_S)
        raise RuntimeError("can't start new thread")


def test_work_that_is_refused_for_want_of_a_thread_is_never_done(loop):
    """A connection ends then, and must not be used by a thread that comes to the work later."""
    gate, at_once, done = threading.Event(), threading.Event(), []
    at_once.set()
    with Exhausted(until=at_once) as pool:
        ThreadPoolExecutor.submit(pool, gate.wait, PATIENCE_S)
        with pytest.raises(RuntimeError, match="new thread"):
            loop.call(lambda: loop.away(partial(done.append, "work"), done.append, pool) and None)
        gate.set()
        ThreadPoolExecutor.submit(pool, int).result(PATIENCE_S)  # it comes after the refused work
    loop.call(lambda: None)  # and this after the report of its end
    assert not done


def test_work_that_a_busy_thread_took_meanwhile_is_not_refused(loop):
    """It would be done, and its connection ended at the same time."""
    begun, backs = threading.Event(), SimpleQueue()
    with Exhausted(until=begun) as pool:
        loop.call(lambda: loop.away(begun.set, backs.put, pool) and None)
        assert backs.get(timeout=PATIENCE_S) is None


def test_a_stop_does_not_wait_for_work_that_got_no_thread(loop, monkeypatch):
    """A registered cursor whose sign of life got none could never be closed."""
    errors, wanted = SimpleQueue(), iter([Aside(pytest.fail, lambda error: errors.put(error))])
    timer = Timer(loop, lambda: next(wanted, None), pytest.fail)
    with monkeypatch.context() as limited:
        limited.setattr(threading.Thread, "start", lambda _thread: fail(RuntimeError("no more")))
        timer.set()
        assert isinstance(errors.get(timeout=PATIENCE_S), OSError)
    assert timer.stop(PATIENCE_S)


def test_an_internal_error_of_a_timer_is_its_owners(loop, caplog):
    """The other connections of the program go on."""
    broken = SimpleQueue()
    timer = Timer(loop, lambda: 1 // 0, broken.put)
    timer.set()
    assert isinstance(broken.get(timeout=PATIENCE_S), RtError)
    assert "ZeroDivisionError" in caplog.text
    thread_of(loop)
    timer.stop()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_timer_says_that_its_loop_has_ended_unless_it_was_stopped_before():
    """What waits for it would wait for ever."""
    loop, broken = EventLoop(), SimpleQueue()
    Timer(loop, lambda: None, broken.put)
    Timer(loop, lambda: None, pytest.fail).stop()
    loop.post(lambda: fail(ValueError("a fault of the loop")))
    assert "event loop" in str(broken.get(timeout=PATIENCE_S))
    loop.stop()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_timer_that_begins_after_its_loop_has_ended_says_so():
    """A member of a group would have waited for its first range for ever, without a word."""
    loop, broken = EventLoop(), SimpleQueue()
    loop.post(lambda: fail(ValueError("a fault of the loop")))
    assert not loop.call(lambda: None)
    timer = Timer(loop, lambda: None, broken.put)
    timer.set()
    assert "event loop" in str(broken.get(timeout=PATIENCE_S))
    assert timer.stop()
    loop.stop()
