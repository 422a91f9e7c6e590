"""GatherWindow: how long small updates are gathered."""

import threading
from types import SimpleNamespace

import pytest

from replicator.push.connection import PushConnection
from replicator.push.session_book import SessionBook
from replicator.source.gather_window import GatherWindow
from replicator.source.gathered_frames import GatheredFrames
from replicator.wire.dialer import Destination
from replicator.wire.messages import PUSH
from rt.limits import SMALL_BYTES
from rt.log.notify.in_process_notify import WrittenFrame
from rt.names import parse_glob
from rt.position import Position
from tests.dialogue import Log
from tests.links import Line

END = Position(1000)


class Clock:
    """Moves only when a test moves it."""

    def __init__(self):
        self.now_s = 100.0

    def window(self, nodes=3):
        """Return a window that reads this clock."""
        return GatherWindow(nodes, lambda: self.now_s)


@pytest.fixture
def clock():
    """Return the clock that gather windows read."""
    return Clock()


def after_rounds(gather, clock, seconds, rounds=100):
    """Make this many updates take this long each, one after another."""
    for _ in range(rounds):
        gather.sent("jfk", END)
        clock.now_s += seconds
        gather.merged("jfk", END, "n1")
    return gather


def with_updates(gather, count):
    """Send so many updates that are not merged; return the gap before the next."""
    for number in range(1, count + 1):
        gather.sent("jfk", Position(END + number))
    return gather.gap_s


def test_nothing_is_gathered_while_the_nodes_keep_up(clock):
    """A pause is a delay, and pays only if messages would wait for each other at the nodes."""
    gather = after_rounds(clock.window(), clock, 0.002)
    assert gather.gap_s == 0.0
    assert with_updates(gather, 1) == 0.0


def test_sends_are_spaced_by_a_round_trip_once_two_are_on_their_way(clock):
    """Sending faster than nodes merge is wasted; a cluster that hangs must not delay messages."""
    assert with_updates(clock.window(), 2) == 0.0, "nothing was measured yet"
    gather = after_rounds(clock.window(), clock, 0.002)
    assert with_updates(gather, 2) == pytest.approx(0.002, rel=0.01)
    gather.merged("jfk", Position(END + 1), "n1")
    assert gather.gap_s == 0.0
    assert with_updates(after_rounds(clock.window(), clock, 5.0), 2) == 0.004


def test_an_update_that_is_sent_to_three_nodes_is_one(clock):
    """Each connection reports what it has sent."""
    gather = after_rounds(clock.window(), clock, 0.002)
    for _ in range(3):
        gather.sent("jfk", END)
    assert gather.gap_s == 0.0


def test_a_single_node_is_sent_everything_at_once(clock):
    """There are no others for which each message has a cost."""
    gather = after_rounds(clock.window(1), clock, 0.002)
    assert gather.keeps_up
    assert with_updates(gather, 9) == 0.0
    assert not gather.keeps_up, "but not by the thread that publishes"
    gather.merged("jfk", Position(END + 9), "n1")
    assert gather.keeps_up


def test_only_what_was_sent_is_measured(clock):
    """Another session, or bytes before those that were sent, are no measurement."""
    gather = clock.window()
    gather.merged("jfk", END, "n1")
    gather.sent("jfk", END)
    gather.sent("ewr", END)
    clock.now_s += 0.002
    gather.merged("lga", END, "n1")
    gather.merged("jfk", Position(END - 1), "n1")
    assert gather.gap_s == 0.0
    gather.merged("jfk", END, "n1")
    assert with_updates(gather, 2) > 0.0


def test_the_node_that_confirms_an_update_first_is_taken_for_the_leader(clock):
    """The others confirm up to 25 ms later, and the next update is sent to the leader first."""
    gather = clock.window()
    assert gather.leader == ""
    for end, nodes in ((END, ("n2", "n1", "n3")), (Position(END + 1), ("n3", "n2"))):
        gather.sent("jfk", end)
        for node in nodes:
            gather.merged("jfk", end, node)
        assert gather.leader == nodes[0]


def test_what_is_never_merged_is_given_up(clock):
    """A refused session, or an absent majority, must not slow down the others for ever."""
    gather = after_rounds(clock.window(), clock, 0.002)
    with_updates(gather, 2)
    clock.now_s += 1.1
    assert gather.gap_s == 0.0
    after_rounds(gather, clock, 0.002)
    assert with_updates(gather, 2) == pytest.approx(0.002, rel=0.01)


def test_updates_on_their_way_are_kept_in_bounded_memory(clock):
    """A node that stops merging may be sent a million."""
    gather = after_rounds(clock.window(), clock, 0.002)
    assert with_updates(gather, 1000) > 0.0
    gather.merged("jfk", Position(END + 1000), "n1")
    assert gather.gap_s == 0.0


def test_what_the_connections_own_thread_sends_is_on_its_way_too(tmp_path):
    """On a busy machine it sends nearly everything; if that did not count, nothing would gather."""
    gather, logs = GatherWindow(3), [Log(tmp_path / "s" / name) for name in ("jfk", "lga")]
    for log in logs:
        log.write(8)
    book = SessionBook(str(tmp_path), "s", [parse_glob("*")])
    destination = Destination([("localhost", 1)], SimpleNamespace(successions=None), PUSH, "s")
    connection = PushConnection(destination, book, gather)
    line = Line().shipping(connection)
    line.has_left = True  # so that nothing is sent as it is announced
    for keeps_up in (True, False):
        logs[0].write(8)
        for name in ("jfk", "lga"):
            connection.offer(name)
        line.has_left = False
        connection.turn()
        line.has_left = True
        assert gather.keeps_up == keeps_up, "of lga nothing was sent"
    connection.end()


def frame(position, data=b"12345678", log="a", messages=1):
    """A frame at a position."""
    return WrittenFrame(log, Position(position), data, messages)


def gathered(*frames):
    """Return what is announced of a session that grew by these frames."""
    found = GatheredFrames()
    for each in frames:
        found.add("jfk", each)
    taken = found.pop("jfk")
    assert found.pop("jfk") is None
    assert found.pop("lga") is None
    return taken


def test_frames_that_follow_each_other_are_announced_as_one():
    """Each connection read them from the file, although they had just been in memory."""
    assert gathered(frame(0)) == frame(0)
    found = gathered(frame(8), frame(16, messages=3), frame(24, b"x" * 16))
    assert found == WrittenFrame("a", Position(8), b"12345678" * 2 + b"x" * 16, 5, 3)
    assert found.end == 40


@pytest.mark.parametrize(
    "frames",
    [
        (),
        (None,),
        (frame(0), None),
        (None, frame(0)),
        (frame(0), None, frame(16)),
        (frame(8), frame(0)),
        (frame(0), frame(16)),
        (frame(0), frame(8, log="b")),
        (frame(0, b"x" * SMALL_BYTES), frame(SMALL_BYTES)),
        (frame(0), frame(1 << 40)),
    ],
)
def test_frames_that_are_not_all_there_are_read_from_the_file(frames):
    """Two threads may announce theirs in the wrong order, and a large frame is not kept."""
    assert gathered(*frames) is None


class Hooked(WrittenFrame):
    """A frame that reports when its bytes are looked at."""

    hook = staticmethod(lambda: None)

    @property
    def data(self):
        """Its bytes, after the hook."""
        type(self).hook()
        return self[2]


def test_a_frame_added_while_others_are_joined_is_not_joined_unchecked():
    """It need not follow the last one: the update would claim to end where no frame ends."""
    is_late, may_append = threading.Event(), threading.Event()

    class Last(Hooked):
        """Is checked, then joined: by then the other thread has appended."""

        looks = 0

        @staticmethod
        def hook():
            Last.looks += 1
            if Last.looks > looks_before_join:
                may_append.set()
                adder.join(10)

    class Late(Hooked):
        """Is added by a thread that has the list in its hands already."""

        @staticmethod
        def hook():
            is_late.set()
            may_append.wait(10)

    found, last = GatheredFrames(), Last("a", Position(8), b"12345678", 1)
    found.add("jfk", frame(0))
    looks_before_join = 10
    found.add("jfk", last)
    looks_before_join = Last.looks + 1  # one look checks it, the next joins it
    adder = threading.Thread(target=found.add, args=("jfk", Late("a", Position(24), b"z" * 8, 1)))
    adder.start()
    assert is_late.wait(10)
    joined = found.pop("jfk")
    assert not adder.is_alive()
    assert (joined.data, joined.messages) == (b"12345678" * 2, 2)


def test_gathered_frames_take_bounded_memory():
    """The nodes may be away for days."""
    found, live = GatheredFrames(), []

    class Counted(WrittenFrame):
        def __del__(self):
            live.pop()

    for number in range(10_000):
        live.append(number)
        found.add("jfk", Counted("a", Position(8 * number), b"12345678", 1))
    assert len(live) < 100
    assert found.pop("jfk") is None
    found.add("jfk", frame(0))
    found.forget()
    assert found.pop("jfk") is None
