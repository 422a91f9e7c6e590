"""Fork: a process that forks keeps publishing and reading, and its child opens its own."""

import os
import subprocess
import threading
import weakref
from contextlib import contextmanager

import pytest
from logs import MergedLog
from replicator_host import STREAM, Certificates, DiskHost, HostEnd, eventually

from replicator.pull.client import PullClient
from replicator.push.client import PushClient
from replicator.serve.server import Server
from rt import Batching, Fsync, Misuse, Publisher, RtError, Subscriber, WriterSettings
from rt.client.groups.claims import Claims
from rt.client.groups.group import Group
from rt.client.readers.registered import Registered, RegisteredReader
from rt.inspect.verify import LogState, open_log, verify_log
from rt.log.notify.fork_guard import ForkGuard
from rt.log.notify.watch import Watch
from rt.net.loop.event_loop import EventLoop
from rt.position import START
from tests.replicator_host import only

# From Python 3.12 on a fork beside threads warns; that it is safe for us is what is tested here.
pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")

PATIENT = Batching(linger_s=60)
PROMPT = Batching(linger_s=0)
REFUSED = "Misuse: this process was forked with its parent's open files; open a {} in the child"


def publisher_of(root, **kwargs):
    """Return a publisher of the session used here."""
    return Publisher(root, stream="flights", session="jfk", **kwargs)


def subscriber_of(root, **kwargs):
    """Return a subscriber of that session."""
    return Subscriber(root, stream="flights", session="jfk", **kwargs)


def payloads(root):
    """Return what can be read of the session now."""
    with subscriber_of(root, follow=False) as subscriber:
        return [message.payload for message in subscriber]


@contextmanager
def child(act):
    """Fork; give what the child said of `act`, and let it end when the block does."""
    said_read, said_write = os.pipe()
    end_read, end_write = os.pipe()
    pid = os.fork()
    if not pid:
        os.close(end_write)
        os.write(said_write, said_by(act).encode())
        os.close(said_write)
        os.read(end_read, 1)
        os._exit(0)
    os.close(said_write)
    os.close(end_read)
    try:
        with open(said_read, "rb") as said:
            yield said.read().decode()
    finally:
        os.close(end_write)
        os.waitpid(pid, 0)


def said_by(act):
    """Return what a call returned or raised."""
    try:
        return f"returned {act()!r}"
    except (RtError, StopIteration, SystemExit) as error:
        return f"{type(error).__name__}: {error}"


CALLS = {
    "publish": lambda publisher: publisher.publish(b"child"),
    "publish_many": lambda publisher: publisher.publish_many([b"child"] * 3),
    "publish_many of nothing": lambda publisher: publisher.publish_many([]),
    "skip_to": lambda publisher: publisher.skip_to(1000),
    "flush": lambda publisher: publisher.flush("written"),
}


@pytest.mark.parametrize("name", CALLS)
def test_each_call_of_an_inherited_publisher_is_refused_with_the_fix(tmp_path, name):
    """Parent and child wrote at the same place: of 801 messages one could be read."""
    with publisher_of(tmp_path) as publisher:
        publisher.publish(b"before")
        with child(lambda: CALLS[name](publisher)) as said:
            assert said == REFUSED.format("Publisher")
            publisher.publish(b"after")
    assert payloads(tmp_path) == [b"before", b"after"]


def test_waiting_messages_are_written_by_the_parent_alone(tmp_path):
    """A child that ends in the parent's `with` block closes a publisher that is not its own."""
    with publisher_of(tmp_path, batching=PATIENT) as publisher:
        publisher.publish(b"alone")
        publisher.publish(b"waiting", key=b"k")

        def leave():
            with publisher:
                raise SystemExit("the child ends")

        with child(leave) as said:
            assert said == "SystemExit: the child ends"
            assert payloads(tmp_path) == [b"alone"], "the child wrote nothing"
            publisher.flush("synced")
        assert payloads(tmp_path) == [b"alone", b"waiting"]
    assert payloads(tmp_path) == [b"alone", b"waiting"]


def test_a_child_that_lives_on_does_not_keep_the_session_locked(tmp_path):
    """A lock belongs to the open file, which a child shares: a restart would wait for the child."""
    publisher = publisher_of(tmp_path)
    publisher.publish(b"first life")
    with child(os.getpid):
        publisher.close()
        with publisher_of(tmp_path) as again:
            again.publish(b"second life")
    assert payloads(tmp_path) == [b"first life", b"second life"]


def test_a_child_publishes_to_a_session_of_its_own(tmp_path):
    """The fix that the error names has to work."""

    def publish():
        with Publisher(tmp_path, stream="flights", session="lga") as own:
            return own.publish(b"child")

    with publisher_of(tmp_path) as publisher, child(publish) as said:
        assert said == "returned 0"
        publisher.publish(b"parent")
    assert payloads(tmp_path) == [b"parent"]
    with Subscriber(tmp_path, stream="flights", session="lga", follow=False) as subscriber:
        assert [message.payload for message in subscriber] == [b"child"]


@pytest.mark.parametrize("fsync", list(Fsync))
def test_no_message_is_lost_where_threads_publish_while_the_process_forks(tmp_path, fsync):
    """A server that forks workers does so at any moment: in a write, a sync, a roll, a lock."""
    settings = WriterSettings(fsync=fsync, file_bytes_max=64 * 1024)
    count, threads = 1500, 3
    with publisher_of(tmp_path, writer=settings, batching=PROMPT) as publisher:

        def publish():
            for _ in range(count):
                publisher.publish(bytes(60))

        workers = [threading.Thread(target=publish) for _ in range(threads)]
        for worker in workers:
            worker.start()
        forks = 0
        while any(worker.is_alive() for worker in workers) or forks < 5:
            with child(lambda: publisher.publish(b"child")) as said:
                assert said == REFUSED.format("Publisher")
            forks += 1
        for worker in workers:
            worker.join()
    assert payloads(tmp_path) == [bytes(60)] * (count * threads)
    report = verify_log(open_log(str(tmp_path / "flights" / "jfk")), lambda _count: None)
    assert {file.state for file in report.files} == {LogState.CLEAN}


def test_an_inherited_subscriber_is_refused_and_the_parents_continues(tmp_path):
    """A child would take the wake-ups of its parent, and read on from a place of its own."""
    with publisher_of(tmp_path, batching=PROMPT) as publisher, subscriber_of(tmp_path) as reading:
        publisher.publish_many([b"a", b"b"])
        messages = reading.messages(timeout_s=60)
        assert next(messages).payload == b"a"
        for act in (lambda: next(messages), lambda: next(iter(reading)), reading.next_batch):
            with child(act) as said:
                assert said == REFUSED.format("Subscriber")
        with child(reading.close) as said:
            assert said == "returned None"
            assert next(messages).payload == b"b"
            publisher.publish(b"c")
            assert next(messages).payload == b"c"


def test_a_forked_reader_may_be_waiting_in_another_thread(tmp_path):
    """Its locks and descriptors are then in use; the child must neither hang nor take them."""
    # The first watch of a process runs a program to find the C library, and waits for its pipe to
    # close; a child that is forked at that moment would hold the pipe open.
    Watch().close()
    woken = threading.Event()
    found = []

    def read(subscriber):
        for message in subscriber.messages(timeout_s=60):
            found.append(message.payload)
            woken.set()

    with publisher_of(tmp_path, batching=PROMPT) as publisher:
        subscriber = subscriber_of(tmp_path)
        thread = threading.Thread(target=read, args=(subscriber,))
        thread.start()
        for place in range(20):
            woken.clear()
            with child(subscriber.stop):
                publisher.publish(b"%d" % place)
                assert woken.wait(60), "the child's stop must not stop the parent's"
        subscriber.stop()
        thread.join()
        subscriber.close()
    assert found == [b"%d" % place for place in range(20)]


def test_a_guard_holds_neither_its_owner_nor_its_place_in_the_list():
    """A service opens thousands of subscribers; a list of all of them would be a leak."""
    abandoned = []

    class Owner:
        def __init__(self):
            self.guard = ForkGuard("an Owner", self.abandon)

        def abandon(self):
            abandoned.append(self)

    owner = Owner()
    with child(lambda: (owner.guard.is_copy, len(abandoned))) as said:
        assert said == "returned (True, 1)"
    assert not owner.guard.is_copy
    owner.guard.demand_owner()
    with child(owner.guard.demand_owner) as said:
        assert said == REFUSED.format("Owner").replace("a Owner", "an Owner")
    guard, known = owner.guard, weakref.ref(owner)
    owner = None
    assert known() is None
    with child(lambda: (guard.is_copy, len(abandoned))) as said:
        assert said == "returned (True, 0)", "its owner is gone, and there is nothing to abandon"
    assert isinstance(guard.misuse(), Misuse)


@pytest.fixture
def node(tmp_path):
    """Give a node that takes sessions, its address, and the contexts of two clients."""
    certs = Certificates(str(tmp_path / "ca"))
    host = DiskHost(str(tmp_path / "node"))
    server = Server(("localhost", 0), certs.server(), only(host))
    server.start()
    yield host, ("localhost", server.address[1]), certs.publisher(), certs.subscriber()
    server.stop()
    host.stop()


def test_inherited_clients_are_refused_and_the_parents_connections_live_on(tmp_path, node):
    """A child that stops its copy would shut down the parent's connection, and hold its lock."""
    host, address, pushing, pulling = node
    push = PushClient(str(tmp_path / "pub"), STREAM, [address], pushing)
    pull = PullClient(str(tmp_path / "sub"), STREAM, [address], pulling, asks=HostEnd(host))
    with Publisher(tmp_path / "pub", stream=STREAM, session="jfk") as publisher:
        push.start()
        pull.start()
        publisher.publish(b"a")
        publisher.flush("received", timeout_s=60)
        with MergedLog(host.out) as log:
            log.merge("jfk", [b"a"])
            host.ring()
            assert pull.wait_caught_up(60)
            connected = pull.status().node
            for act in (push.start, push.drained, push.status):
                with child(act) as said:
                    assert said == REFUSED.format("PushClient")
            for act in (pull.start, pull.wait_caught_up, pull.status):
                with child(act) as said:
                    assert said == REFUSED.format("PullClient")
            with child(lambda: (push.stop(), pull.stop())) as said:
                assert said == "returned (False, True)"
                publisher.publish(b"b")
                publisher.flush("received", timeout_s=60)
                log.merge("jfk", [b"b"])
                host.ring()
                assert eventually(lambda: pull.status().position == log.appender.end)
                assert pull.status().node == connected
                assert push.stop(drain_s=60)
                assert pull.stop(20)
                again = PullClient(str(tmp_path / "sub"), STREAM, [address], pulling)
                assert again.stop(20), "the child does not keep the directory locked"


def test_a_closed_publisher_closes_no_file_of_a_child(tmp_path):
    """Its lock's descriptor is another file's by then: here the pipe that reports a failed exec."""
    publisher = Publisher(str(tmp_path), stream="flights", session="jfk")
    publisher.publish(b"AA1")
    publisher.close()
    for _ in range(20):  # so that one of the pipes gets the number
        done = subprocess.run(["true"], preexec_fn=lambda: None, check=False)
        assert done.returncode == 0
    assert publisher.next_sequence == 1


class Asked:
    """Nodes that grant what they are asked for, and hold a connection."""

    def __init__(self):
        self.asked, self.is_closed = [], False

    def ask(self, request):
        self.asked.append(request)
        claim = {"number": 1, "first": 0, "end": 8, "deliveries": 1, "is_dead": False}
        claims = [claim] if len(self.asked) == 1 else []
        answer = {"epoch": 1, "position": str(START)}
        return {**answer, "lost": [], "is_done": False, "claims": claims}

    def close(self):
        self.is_closed = True

    def has_released(self):
        return any(each.get("release") or each.get("given_back") for each in self.asked)


def test_a_child_neither_releases_its_parents_cursor_nor_uses_its_connection(tmp_path):
    """A child that left the parent's `with` block gave the cursor to the next reader."""
    loop, nodes = EventLoop(), Asked()
    held = RegisteredReader(nodes, Registered("etl"), "", loop)
    with child(lambda: (held.close(), nodes.has_released(), nodes.is_closed)) as said:
        assert said == "returned (None, False, True)"
    with child(lambda: held.ack(START, sync=True)) as said:
        assert said == REFUSED.format("Subscription")
    assert not nodes.is_closed
    held.close()
    assert nodes.has_released()
    loop.stop()


def test_a_child_does_not_give_back_what_its_parent_has_claimed(tmp_path):
    """Another member was given the messages that the parent was handling."""
    loop, nodes = EventLoop(), Asked()
    claims = Claims(nodes, Group("etl"), "a", loop, position=START)
    assert claims.next(lambda: False, 60) is not None
    claims.grown()
    with child(lambda: (claims.close(), nodes.has_released(), nodes.is_closed)) as said:
        assert said == "returned (None, False, True)"
    assert not nodes.is_closed
    claims.close()
    assert nodes.has_released()
    loop.stop()
