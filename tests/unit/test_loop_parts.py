"""The event loop's own bookkeeping: deadlines, readiness, bounded output. All of it pure."""

import random
import ssl
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replicator.wire.codec import FRAME_BYTES_MAX
from replicator.wire.outlet import QUEUED_BYTES_MAX, Outlet
from rt.errors import PeerError
from rt.limits import MIB
from rt.net.loop.deadlines import NEVER_S, Deadlines
from rt.net.loop.readiness import Readiness
from sequencer.peers.send_queue import SendQueue

steps = st.lists(
    st.tuples(
        st.sampled_from(["set", "clear", "take"]), st.integers(0, 4), st.integers(0, 9).map(float)
    )
)


@given(steps)
def test_deadlines_say_what_a_plain_table_of_them_would(done):
    """A deadline that is lost leaves a peer without heartbeats, or duties undone, for ever."""
    deadlines, table = Deadlines(), {}
    for what, name, at_s in done:
        if what == "set":
            deadlines.set(name, at_s)
            table[name] = at_s
        elif what == "clear":
            deadlines.clear(name)
            table.pop(name, None)
        else:
            due = {each: due_s for each, due_s in table.items() if due_s <= at_s}
            taken = deadlines.pop_due(at_s)
            assert sorted(taken) == sorted(due)
            assert [due[each] for each in taken] == sorted(due.values())
            table = {each: due_s for each, due_s in table.items() if each not in due}
        assert deadlines.next_s == min(table.values(), default=NEVER_S)
        assert len(deadlines) == len(table)


def test_a_deadline_that_is_put_off_at_each_message_leaves_nothing_in_the_heap():
    """A connection moves its deadline with each message; a million entries would be a leak."""
    deadlines = Deadlines()
    for at_s in range(10_000):
        deadlines.set("beat", float(at_s))
    assert deadlines.entries == 1
    assert deadlines.pop_due(9_998.0) == []
    assert deadlines.pop_due(9_999.0) == ["beat"]
    assert deadlines.entries == 0


def test_a_deadline_that_is_near_and_far_by_turns_leaves_nothing_in_the_heap():
    """A connection's heartbeat is seconds away, and its acknowledgement milliseconds, each time."""
    deadlines, most = Deadlines(), 0
    for now_s in range(10_000):
        deadlines.set("another", now_s + 2.0)
        deadlines.set("heartbeat", now_s + 5_000.0)
        deadlines.set("heartbeat", now_s + 1.0)
        assert deadlines.pop_due(now_s + 1.0)[-1] == "heartbeat"
        most = max(most, deadlines.entries)
    assert most < 30


def test_a_deadline_set_again_while_it_is_taken_waits_for_the_next_turn():
    """What is due at once again, as duties with a backlog are, must not hold the loop in a turn."""
    deadlines = Deadlines()
    deadlines.set("step", 1.0)
    for each in deadlines.pop_due(5.0):
        deadlines.set(each, 1.0)
    assert deadlines.next_s == 1.0


def test_what_other_nodes_sent_comes_before_any_client_even_in_the_middle_of_a_turn():
    """A heartbeat that waited for 64 pullers would end a leader's term."""
    ready, seen = Readiness(), []
    for name in ("pull 1", "pull 2", "pull 3"):
        ready.mark(name)
    for name in ready.turn(NEVER_S, lambda: 0.0):
        seen.append(name)
        if name == "pull 1":
            ready.mark("node", is_urgent=True)
    assert seen == ["pull 1", "node", "pull 2", "pull 3"]


def test_a_turn_ends_when_its_time_is_over_and_the_next_goes_on_with_the_rest():
    """The duties have to come round every few milliseconds, however many clients flood a node."""
    ready = Readiness()
    for name in range(5):
        ready.mark(name)
    clock = map(float, count()).__next__
    assert list(ready.turn(1.0, clock)) == [0, 1, 2]
    ready.mark(0)
    assert list(ready.turn(NEVER_S, clock)) == [3, 4, 0]
    assert not ready


def test_one_that_always_has_more_takes_one_turn_at_a_time():
    """A flood marks itself again; the others, and the duties, have their turn between."""
    ready = Readiness()
    ready.mark("flood")
    seen = []
    for name in ready.turn(NEVER_S, lambda: 0.0):
        seen.append(name)
        ready.mark(name)
    assert seen == ["flood"]
    assert ready


@given(st.lists(st.tuples(st.sampled_from(["mark", "urgent", "drop", "turn"]), st.integers(0, 3))))
def test_whoever_is_marked_has_a_turn_unless_it_is_dropped(done):
    """One that is never served again is a client that waits for ever, without an error."""
    ready, waiting = Readiness(), set()
    for what, name in done:
        if what == "turn":
            taken = list(ready.turn(-1.0, lambda: 0.0))
            assert taken or not waiting
            assert set(taken) <= waiting
            waiting -= set(taken)
        elif what == "drop":
            ready.drop(name)
            waiting.discard(name)
        else:
            ready.mark(name, is_urgent=what == "urgent")
            waiting.add(name)
    for _ in range(len(waiting)):
        waiting -= set(ready.turn(-1.0, lambda: 0.0))
    assert not waiting
    assert not ready


def test_one_that_was_dropped_by_another_in_the_same_turn_is_not_called():
    """A connection may end another one, whose socket is closed then."""
    ready = Readiness()
    ready.mark("first", is_urgent=True)
    ready.mark("second", is_urgent=True)
    seen = []
    for name in ready.turn(NEVER_S, lambda: 0.0):
        seen.append(name)
        ready.drop("second")
    assert seen == ["first"]


class Full:
    """A TLS socket of a peer that reads now and then: it demands the same bytes again."""

    def __init__(self):
        self.room, self.got, self.refused = 0, b"", None

    def send(self, data):
        data = bytes(data)
        assert 0 < len(data) <= 128 * 1024
        assert self.refused in {None, data}, "TLS was given other bytes than it had no room for"
        self.room, has_room = self.room - 1, self.room > 0
        self.refused = None if has_room else data
        if not has_room:
            raise ssl.SSLWantWriteError
        self.got += data
        return len(data)


def test_what_waits_for_a_peer_leaves_in_order_and_in_parts_that_stay_the_same():
    """TLS demands the same bytes again after it had no room for them."""
    chance, sock, said = random.Random(1), Full(), b""
    outlet = Outlet(sock)
    for _ in range(20):
        sock.room = chance.randrange(4)
        part = chance.randbytes(chance.randrange(400_000))
        outlet.send(memoryview(part), 60)
        said += part
    while outlet.has_left:
        sock.room = 2
        outlet.send(b"", 60)
    assert sock.got == said


def test_a_peer_that_reads_nothing_takes_no_more_memory_than_its_bound():
    """One that asks and never reads would have the node keep every answer."""
    outlet = Outlet(Full())
    for _ in range((QUEUED_BYTES_MAX >> 20) + 1):
        outlet.send(bytes(1 << 20), 60)
    with pytest.raises(PeerError, match="has not read 9437184 bytes"):
        outlet.send(b"x", 60)


def test_the_largest_frame_waits_for_a_peer_that_takes_it_slowly():
    """What the socket did not take at once of more than 8 MiB ended the connection, every time."""
    outlet = Outlet(Full())
    outlet.send(b"the notice of an archived file", 60)
    outlet.send(bytes(FRAME_BYTES_MAX), 60)
    outlet.send(b"a session that is closed meanwhile", 60)
    assert outlet.has_left
    with pytest.raises(PeerError, match="has not read"):
        outlet.send(bytes(FRAME_BYTES_MAX), 60)


def test_what_a_node_is_sent_next_is_little_beside_what_waits_for_it():
    """A slow node took twice its bound: 32 MiB that were being sent, and 32 that came meanwhile."""
    queue, messages = SendQueue(), [bytes([number]) * MIB for number in range(40)]
    for each in messages:
        queue.put(each)
    taken = []
    while queue:
        taken.append(queue.pop())
        assert len(taken[-1]) <= MIB
    assert taken == messages[8:], "32 MiB, the latest ones"
