"""Connections that pull and wait: what each costs a node, and how long it may say nothing."""

import tracemalloc
from contextlib import closing
from types import SimpleNamespace

import pytest

from replicator.serve.pull_connection import BEGIN_S, PullConnection
from replicator.wire.codec import DATA_HEAD_BYTES, encode
from replicator.wire.frame_buffer import FrameBuffer
from replicator.wire.large_messages import LargeMessages
from replicator.wire.messages import Open, Standing
from rt.errors import Refused
from rt.limits import KIB, MIB
from rt.log.files.damaged_files import DamagedFiles
from rt.log.files.disk import OsDisk
from rt.position import START, Position
from tests.dialogue import Log, Pipe


class Link(Pipe):
    """A connection in memory."""

    def __init__(self):
        super().__init__()
        self.other = Pipe()
        self.other.other = self


class Bell:
    """Ends a wait; counts how often it was rung."""

    def __init__(self):
        self.rung = 0

    def set(self):
        """Ring."""
        self.rung += 1


@pytest.fixture
def log(tmp_path):
    """Return a log with 60 KiB in it."""
    return Log(tmp_path / "out").write(*[10 * KIB] * 6)


@pytest.fixture
def pulling(log):
    """Return a connection that pulls it, with its link and bell."""
    clock = [0.0]
    link, bell = Link(), Bell()
    feed = SimpleNamespace(
        directory=log.directory, damaged=DamagedFiles(), end=lambda: log.appender.end,
        is_whole=lambda: True, release=lambda: None, recent=lambda _first, _end: None,
    )  # fmt: skip
    connection = PullConnection(
        link, bell, lambda _bell: feed, lambda _error, _growing: None, clock=lambda: clock[0]
    )
    return SimpleNamespace(connection=connection, link=link, bell=bell, clock=clock)


def take_turns(pulling, seconds):
    """Let a second pass after each turn, until these are over."""
    while pulling.clock[0] <= seconds and not pulling.connection.is_over:
        pulling.connection.turn()
        pulling.clock[0] += 1.0


def sent(pulling):
    """Return what the connection has sent."""
    return list(pulling.link.other.receive())


def test_a_puller_that_does_not_say_where_its_copy_ends_is_refused(pulling):
    """It holds a thread and memory, and 480 of them slowed the stream for everyone."""
    with pytest.raises(Refused, match="did not say within 30 s where its copy"):
        take_turns(pulling, 2 * BEGIN_S)
    assert BEGIN_S < pulling.clock[0] < BEGIN_S + 3


def test_a_puller_that_has_said_so_may_wait_for_ever(pulling):
    """A stream on which nothing happens has readers, too."""
    pulling.link.other.send(encode(Standing(0, START)))
    take_turns(pulling, 4 * BEGIN_S)
    assert isinstance(sent(pulling)[0], Open)


def test_a_puller_that_waits_for_nothing_is_not_woken_by_each_message(pulling):
    """The publisher waits while 128 of them are: its p99 rose from 8 ms to 44."""
    turns = []
    for _ in range(4):
        turns.append(pulling.bell.rung)
        pulling.connection.set()
        pulling.connection.turn()
    assert turns == [0, 1, 1, 1]  # it was woken before it had offered the log, and not after


@pytest.mark.parametrize("who", ["the loop", "another thread", "the loop, while a thread has it"])
def test_what_is_merged_is_sent_by_the_thread_that_rings_only_if_it_is_the_loop(log, who):
    """A step that waits for a disk is done by a thread, and so is a turn that reads old files."""
    link, bell = Link(), Bell()
    feed = SimpleNamespace(
        directory=log.directory, damaged=DamagedFiles(), end=lambda: log.appender.end,
        is_whole=lambda: True, release=lambda: None, recent=lambda _first, _end: None,
    )  # fmt: skip
    connection = PullConnection(
        link, bell, lambda _bell: feed, lambda _error, _growing: None,
        loop=SimpleNamespace(is_own_thread=who != "another thread"),
    )  # fmt: skip
    connection.turn()
    link.other.send(encode(Standing(0, START)))
    while connection.turn() == 0:
        pass
    list(link.other.receive())
    log.write(KIB)
    connection.is_lent = who == "the loop, while a thread has it"
    connection.set()
    sent_at_once = bool(list(link.other.receive()))
    assert (sent_at_once, bell.rung) == ((True, 0) if who == "the loop" else (False, 1))
    connection.close()


def test_a_connection_that_waits_has_no_room_for_a_backlog():
    """Each took 1.1 MB, of which 1 MiB was this buffer, and 480 idle ones 700 MB."""
    tracemalloc.start()
    try:
        held = [FrameBuffer() for _ in range(128)]
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(held) * 40 * KIB > taken


def test_what_a_backlog_took_is_given_back(log):
    """A reader that has caught up may wait for days."""
    memory = LargeMessages(64 * MIB)
    buffer = FrameBuffer(memory=memory.of("subscriber/spark"))
    with closing(OsDisk().open_read(f"{log.directory}/log.0.0")) as file:
        message = buffer.data_message(0, file, START, log.appender.end.offset)
        assert len(message) == DATA_HEAD_BYTES + log.appender.end.offset
        assert memory.held.total() == MIB
        buffer.rest()
    assert memory.held.total() == 0


def test_readers_of_one_name_that_have_no_memory_left_take_smaller_steps(log):
    """Refused, a subscriber with many backlogs could read none of them."""
    memory = LargeMessages(64 * MIB)
    memory.of("subscriber/spark").take(64 * MIB)
    buffer = FrameBuffer(memory=memory.of("subscriber/spark"))
    position, steps = START, 0
    with closing(OsDisk().open_read(f"{log.directory}/log.0.0")) as file:
        while position < log.appender.end:
            whole = (
                len(buffer.data_message(0, file, position, log.appender.end.offset))
                - DATA_HEAD_BYTES
            )
            assert whole > 0
            position, steps = Position(position + whole), steps + 1
    assert steps > 1
