"""Link: waiting costs nothing, and a peer that is dead or too slow is hung up on."""

import select
import socket
import threading
import time
from contextlib import ExitStack
from types import SimpleNamespace

import pytest
from replicator_host import Certificates

from replicator.wire import link as link_module
from replicator.wire.codec import encode
from replicator.wire.link import Link
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


@pytest.fixture
def ends(contexts):
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
            links.append(Link(sock, name))
            undo.callback(links[-1].close)
        yield links


def greeted(ends):
    """Return the ends once the node has taken the publisher's greeting."""
    ours, theirs = ends
    theirs.send(encode(Hello(2, 2, 1, "flights", "one")))
    ours.expect(Hello)
    return ours, theirs


def test_a_message_that_trickles_in_ends_the_connection(ends, monkeypatch):
    """A byte every few seconds would hold its memory, and a connection, for as long as it likes."""
    monkeypatch.setattr(link_module, "DEAD_S", 0.2)
    ours, theirs = ends
    hello = encode(Hello(2, 2, 1, "flights", "slow"))
    theirs.send(hello[:10])
    began_s = time.monotonic()

    def take():
        while time.monotonic() - began_s < 60:
            list(ours.receive())
            ours._heard_s = time.monotonic()  # as if another byte had come
            ours.beat()
            arrives(ours, 0.02)

    with pytest.raises(PeerError, match="22 bytes did not arrive within"):
        take()


def test_a_message_that_arrives_in_time_may_be_followed_by_others(ends, monkeypatch):
    """The deadline is for each message; a connection may last for months."""
    ours, theirs = greeted(ends)
    now_s, beat = time.monotonic(), encode(Heartbeat())
    monkeypatch.setattr(link_module, "time", SimpleNamespace(monotonic=lambda: now_s))
    theirs.send(beat[:3])
    for _ in range(5):
        theirs.send(beat[3:] + beat[:3])
        while not list(ours.receive()):
            assert arrives(ours, 60)
        now_s += link_module.DEAD_S * 2 / 3
        ours.beat()


def test_only_a_greeting_is_accepted_first(ends):
    """The peer's rights are not known yet, and the largest message has 32 MiB."""
    ours, theirs = ends
    theirs.send(encode(Data(0, START, memoryview(bytes(64)))))
    with pytest.raises(PeerError, match="before a Hello"):
        ours.expect(Hello)


def test_waiting_for_a_greeting_does_not_spin(ends, monkeypatch):
    """No heartbeat is due before a greeting; waiting for one would cost a core for 5 seconds."""
    monkeypatch.setattr(link_module, "HEARTBEAT_S", 0.0)
    monkeypatch.setattr(link_module, "GREETING_S", 0.2)
    ours, looks = ends[0], []
    receive = ours.receive
    monkeypatch.setattr(ours, "receive", lambda: looks.append(1) or receive())
    with pytest.raises(PeerError, match="no Hello came"):
        ours.expect(Hello)
    assert len(looks) < 5


def test_a_side_that_was_sending_for_long_receives_before_it_calls_the_peer_dead(ends):
    """Otherwise a slow line would lose its connection with every large message."""
    ours, theirs = greeted(ends)
    lines = select.poll()
    lines.register(ours._sock.fileno(), select.POLLIN)
    theirs.send(encode(Heartbeat()))
    assert lines.poll(60_000)
    ours._heard_s -= 20  # the last send took that long
    ours.beat()
    ours.arrived()
    assert Heartbeat() in list(ours.receive())
    ours._heard_s -= 20
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
