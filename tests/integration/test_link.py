"""Link: waiting costs nothing, and a peer that is dead or too slow is hung up on."""

import select
import socket
import sys
import termios
import threading
import time
from contextlib import ExitStack
from fcntl import ioctl

import pytest
from replicator_host import Certificates, eventually

from replicator.wire.codec import encode
from replicator.wire.link import PATIENCE, Link, Patience
from replicator.wire.messages import Data, Heartbeat, Hello
from rt.errors import PeerError
from rt.net.tls import accept, connect
from rt.position import START
from tests.links import arrives


@pytest.fixture(scope="module")
def contexts(tmp_path_factory):
    """Return those of a node and of a publisher."""
    certs = Certificates(str(tmp_path_factory.mktemp("certs") / "ca"))
    return certs.server(), certs.publisher()


class Clock:
    """A clock that a test may move."""

    ahead_s = 0.0

    def __call__(self):
        return time.monotonic() + self.ahead_s


class CountedLink(Link):
    """A link that counts how often it is asked what has come."""

    receives = 0

    def receive(self, *args, **options):
        self.receives += 1
        return super().receive(*args, **options)


@pytest.fixture
def clock():
    """Return the clock of both ends."""
    return Clock()


@pytest.fixture
def patience():
    """Return the deadlines of both ends."""
    return PATIENCE


@pytest.fixture
def ends(contexts, clock, patience):
    """Return the node's end and the publisher's of one connection."""
    accepted = []
    with ExitStack() as undo:
        listener = undo.enter_context(socket.create_server(("localhost", 0)))

        def take():
            accepted.append(accept(listener.accept()[0], contexts[0].current())[0])

        thread = threading.Thread(target=take, daemon=True)
        thread.start()
        theirs, _ = connect(listener.getsockname()[:2], contexts[1].current())
        thread.join(60)
        links = []
        for sock, name in ((accepted[0], "publisher"), (theirs, "node")):
            links.append(CountedLink(sock, name, patience=patience, clock=clock))
            undo.callback(links[-1].close)
        yield links


def greeted(ends):
    """Return the ends once the node has taken the publisher's greeting."""
    ours, theirs = ends
    theirs.send(encode(Hello(2, 2, 1, "flights", "one")))
    ours.expect(Hello)
    return ours, theirs


def test_a_message_that_trickles_in_ends_the_connection(ends, clock):
    """A byte every few seconds would hold its memory, and a connection, for as long as it likes."""
    ours, theirs = ends
    hello = encode(Hello(2, 2, 1, "flights", "slow"))

    def take():
        for byte in hello[:-1]:
            theirs.send(bytes([byte]))
            assert arrives(ours, 60)
            assert not list(ours.receive())
            ours.beat()
            clock.ahead_s += 2

    with pytest.raises(PeerError, match="22 bytes did not arrive within 15 s"):
        take()


def test_a_message_that_arrives_in_time_may_be_followed_by_others(ends, clock):
    """The deadline is for each message; a connection may last for months."""
    ours, theirs = greeted(ends)
    beat = encode(Heartbeat())
    theirs.send(beat[:3])
    for _ in range(5):
        theirs.send(beat[3:] + beat[:3])
        while not list(ours.receive()):
            assert arrives(ours, 60)
        clock.ahead_s += PATIENCE.dead_s * 2 / 3
        ours.beat()


def test_only_a_greeting_is_accepted_first(ends):
    """The peer's rights are not known yet, and the largest message has 32 MiB."""
    ours, theirs = ends
    theirs.send(encode(Data(0, START, memoryview(bytes(64)))))
    with pytest.raises(PeerError, match="before a Hello"):
        ours.expect(Hello)


@pytest.mark.parametrize("patience", [Patience(heartbeat_s=0.0, greeting_s=0.2)])
def test_waiting_for_a_greeting_does_not_spin(ends):
    """No heartbeat is due before a greeting; waiting for one would cost a core for 5 seconds."""
    with pytest.raises(PeerError, match="no Hello came"):
        ends[0].expect(Hello)
    assert ends[0].receives < 5


def test_a_side_that_was_sending_for_long_receives_before_it_calls_the_peer_dead(ends, clock):
    """Otherwise a slow line would lose its connection with every large message."""
    ours, theirs = greeted(ends)
    lines = select.poll()
    lines.register(ours.fileno(), select.POLLIN)
    theirs.send(encode(Heartbeat()))
    assert lines.poll(60_000)
    clock.ahead_s += 20  # the last send took that long
    ours.beat()
    ours.has_more = True
    assert Heartbeat() in list(ours.receive())
    clock.ahead_s += 20
    with pytest.raises(PeerError, match="nothing was received"):
        ours.beat()


def test_what_is_posted_to_a_peer_that_reads_nothing_waits_without_its_thread(ends):
    """The thread that publishes or sequences must never wait for a peer."""
    ours, theirs = greeted(ends)
    message, sent = encode(Data(0, START, memoryview(bytes(range(256)) * 64))), 0
    while not theirs.has_left:
        theirs.post(message)
        sent += 1
    theirs.post(message)  # it queues up behind
    assert theirs.has_left
    received = []

    def take():
        while len(received) < sent + 1:
            received.extend(bytes(each.payload) for each in ours.receive())
            arrives(ours, 0.1)

    thread = threading.Thread(target=take, daemon=True)
    thread.start()
    while theirs.has_left:
        select.select([], [theirs.fileno()], [], 60)
        theirs.beat()  # the connection's own loop sends the rest
    thread.join(60)
    assert received == [bytes(range(256)) * 64] * (sent + 1)
    assert not theirs.has_left


def test_small_messages_that_wait_together_are_one_turn(ends):
    """Each was a turn with a sync of its own: one node fell behind for good at 1,500 a second."""
    node, publisher = greeted(ends)
    data, count = encode(Heartbeat()), 20
    for _ in range(count):
        publisher.send(data)  # a record each, with a header and a tag
    # a record of TLS 1.3: a header of 5 bytes, the data, its type, and a tag of 16
    assert eventually(lambda: waiting(node) == count * (5 + len(data) + 1 + 16)), waiting(node)
    node.has_more = True
    assert len(list(node.receive())) == count
    assert not node.has_more


def waiting(link):
    """How many bytes have arrived that nobody has read."""
    return int.from_bytes(ioctl(link.fileno(), termios.FIONREAD, bytes(4)), sys.byteorder)
