"""Receipts: futures resolved by an event loop, which must wait for no disk and no program."""

import threading
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from random import Random

import pytest
from faulty import FaultyDisk

import rt
from rt.client.receipts import Receipts
from rt.errors import Stopped, WriterFailed
from rt.log.notify.confirmations import Confirmations, ConfirmationsFile, Level
from rt.net.loop.event_loop import EventLoop
from tests.sim.loop_system import LoopSystem, SimLoop

PATIENCE_S = 60


class World:
    """A publisher that a test ships, its receipts, and the loop that resolves them."""

    def __init__(self, root, kind=rt.Publisher, **settings):
        self.disk, self.loop = FaultyDisk(), EventLoop()
        self.publisher = kind(root, stream="flights", session="jfk", disk=self.disk, **settings)
        self.confirmations = ConfirmationsFile(str(root / "flights" / "jfk"))
        self.receipts = Receipts(self.publisher, self.confirmations, self.loop)

    def future(self, level, payload=b"x"):
        """Publish, and return the future of a level."""
        return self.receipts.future(level, self.publisher.publish(payload))

    def merge_all(self):
        """Confirm all that was published, as a pusher does: in the loop."""
        end = self.publisher.flush("synced").position
        self.confirmations.write(Confirmations(end, end, end, end))
        self.loop.call(self.receipts.heard)

    def does_turns(self):
        """Whether the loop is free."""
        done = threading.Event()
        self.loop.post(done.set)
        return done.wait(PATIENCE_S)


@contextmanager
def world(root, kind=rt.Publisher, **settings):
    """Yield a world, and close it."""
    made = World(root, kind, **settings)
    try:
        yield made
    finally:
        made.receipts.close()
        made.publisher.close()
        made.confirmations.close()
        made.loop.stop()


def test_futures_resolve_at_their_own_level(tmp_path):
    """What is synced here is not yet on any node, and what a node has received is not merged."""
    with world(tmp_path) as ours:
        found = {level: ours.future(level) for level in Level}
        assert found[Level.WRITTEN].result(PATIENCE_S).level is Level.WRITTEN
        assert found[Level.SYNCED].result(PATIENCE_S).position >= found[Level.SYNCED].end
        assert not found[Level.RECEIVED].done()
        ours.merge_all()
        assert found[Level.MERGED].result(PATIENCE_S).merged_at is not None
        assert found[Level.RECEIVED].result(PATIENCE_S).merged_at is None


def test_a_message_that_waits_for_others_is_written_for_its_future(tmp_path):
    """It may linger for a minute; the loop leaves the write to its pool."""
    batching = rt.Batching(linger_s=60)
    with world(tmp_path, batching=batching) as ours:
        for _ in range(3):  # the first is written at once
            future = ours.future(Level.SYNCED)
        assert future.result(PATIENCE_S).level is Level.SYNCED


class Busy(rt.Publisher):
    """A publisher whose writes may always wait; during each, another message is published."""

    flood = None  # publishes one, with a future

    def begin_flush_now(self, *, synced):
        """As while messages wait for others."""
        return

    def begin_flush(self, *, synced):
        """Write what there is, and have more to write."""
        found = super().begin_flush(synced=synced)
        if self.flood is not None:
            self.flood()
        return found


def test_futures_resolve_while_others_are_made_all_the_time(tmp_path):
    """In a flood every write is put aside, and nothing else was looked at."""
    with world(tmp_path, Busy) as ours:
        ours.publisher.flood = lambda: ours.future(Level.SYNCED)
        try:
            assert ours.future(Level.SYNCED).result(PATIENCE_S).level is Level.SYNCED
        finally:
            ours.publisher.flood = None


def test_callbacks_that_get_no_thread_are_tried_again_and_keep_no_loop_turning(tmp_path):
    """Without threads left, each turn of the loop asked for one, as fast as it could."""
    system, called = LoopSystem(Random(1)), []
    loop = SimLoop(system, lambda _pause_s: None)
    confirmations = ConfirmationsFile(str(tmp_path / "flights" / "jfk"))
    with rt.Publisher(tmp_path, stream="flights", session="jfk") as publisher:
        receipts = Receipts(publisher, confirmations, loop)
        future = receipts.future(Level.WRITTEN, publisher.publish(b"x"))
        future.add_done_callback(called.append)
        system.has_threads = False
        system.after(1_000_000, setattr, system, "has_threads", True)
        system.after(2_000_000, loop.stop)
        loop.run()
        receipts.close()
    confirmations.close()
    assert called == [future]
    assert loop.poller.polls < 400


def test_a_publisher_that_closes_waits_until_the_program_was_called(tmp_path):
    """Programs note there what was confirmed, and end once everything is closed."""
    gate, called = threading.Event(), []
    with world(tmp_path) as ours:

        def note(_done):
            gate.wait(PATIENCE_S)
            called.append(1)

        futures = [ours.future(Level.MERGED) for _ in range(2)]
        for each in futures:
            each.add_done_callback(note)
        ours.merge_all()
        for each in futures:
            each.result(PATIENCE_S)
        ours.receipts.wait_idle(0.01)
        assert not called
        with ThreadPoolExecutor(1) as threads:
            waiting = threads.submit(ours.receipts.wait_idle, PATIENCE_S)
            try:
                with pytest.raises(TimeoutError):
                    waiting.result(0.1)
            finally:
                gate.set()
            waiting.result(PATIENCE_S)
        assert called == [1, 1]


def test_a_callback_that_closes_does_not_wait_for_itself(tmp_path):
    """Nor for those that are called after it."""
    ended = threading.Event()
    with world(tmp_path) as ours:

        def close(_done):
            ours.receipts.wait_idle(PATIENCE_S)
            ended.set()

        ours.future(Level.SYNCED).add_done_callback(close)
        assert ended.wait(PATIENCE_S / 2)


def test_those_who_wait_for_a_future_hear_that_it_was_cancelled(tmp_path):
    """Else `wait` and `as_completed` of the standard library, which a program may use, hang."""
    with world(tmp_path) as ours:
        future = ours.future(Level.MERGED)
        assert future.cancel()
        ours.merge_all()
        done, _ = wait([future], PATIENCE_S)
        assert done == {future}
        assert future.cancel()


def test_a_callback_that_waits_keeps_neither_the_loop_nor_the_next_future_waiting(tmp_path):
    """The loop also says that registered cursors are alive; one that is silent is taken."""
    gate, called, later = threading.Event(), [], threading.Event()
    with world(tmp_path) as ours:

        def linger(done):
            called.append((done, threading.get_ident()))
            gate.wait(PATIENCE_S)

        first, second = ours.future(Level.MERGED), ours.future(Level.MERGED)
        first.add_done_callback(linger)
        second.add_done_callback(lambda _done: later.set())
        ours.merge_all()
        for each in (first, second):
            assert each.result(PATIENCE_S).level is Level.MERGED
        assert ours.does_turns()
        assert not later.is_set(), "they are called in order"
        gate.set()
        assert later.wait(PATIENCE_S)
        ((done, thread),) = called
        assert done is first
        idents = []
        ours.loop.call(lambda: idents.append(threading.get_ident()))
        assert thread not in {*idents, threading.get_ident()}


def test_a_callback_may_publish_wait_and_close(tmp_path):
    """It could when a publisher had a thread for them."""
    ended = threading.Event()
    with world(tmp_path) as ours:

        def go_on(_done):
            ours.future(Level.SYNCED).result(PATIENCE_S)
            ours.receipts.close()
            ended.set()

        ours.future(Level.SYNCED).add_done_callback(go_on)
        assert ended.wait(PATIENCE_S)


def test_an_error_of_a_callback_is_logged_and_the_next_is_called(tmp_path, caplog):
    """As for any future."""
    called = threading.Event()
    with world(tmp_path) as ours:
        first, second = ours.future(Level.MERGED), ours.future(Level.MERGED)
        first.add_done_callback(lambda _done: 1 // 0)
        second.add_done_callback(lambda _done: called.set())
        ours.merge_all()
        assert called.wait(PATIENCE_S)
    assert "ZeroDivisionError" in caplog.text


def test_a_sync_that_hangs_keeps_no_close_waiting(tmp_path):
    """Closing joined the thread that waited for the sync, without a limit."""
    gate = threading.Semaphore(0)
    with world(tmp_path) as ours:
        ours.disk.step = lambda call: gate.acquire(timeout=PATIENCE_S) if call == "sync" else None
        future = ours.future(Level.SYNCED)
        with ThreadPoolExecutor(1) as threads:
            closing = threads.submit(ours.receipts.close)
            closing.result(PATIENCE_S / 2)
        with pytest.raises(Stopped, match="closed before that"):
            future.result(0)
        assert ours.does_turns()
        gate.release(1000)


def test_a_failed_sync_fails_the_futures_that_wait_for_it(tmp_path):
    """And the loop, which serves other publishers, goes on."""

    def fail(call):
        if call == "sync":
            raise OSError(5, "Input/output error")

    made = World(tmp_path)
    try:
        made.disk.step = fail
        with pytest.raises(WriterFailed):
            made.future(Level.MERGED).result(PATIENCE_S)
        assert made.does_turns()
    finally:
        made.receipts.close()
        with pytest.raises(WriterFailed):
            made.publisher.close()
        made.loop.stop()


def test_nothing_is_waited_for_that_no_loop_resolves(tmp_path):
    """It would wait for ever."""
    with world(tmp_path) as ours:
        left = ours.future(Level.MERGED)
        ours.receipts.close()
        with pytest.raises(Stopped):
            left.result(PATIENCE_S)
        with pytest.raises(Stopped):
            ours.future(Level.MERGED)
