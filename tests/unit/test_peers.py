"""Peers: what one node says to another leaves in the order in which it was said."""

import socket
import ssl
import threading
from types import SimpleNamespace

import pytest

from sequencer.peers import Outbox, Peers
from tests.replicator_host import eventually


def nobody():
    """No context: nothing is dialled in these tests."""
    raise OSError("nobody is there")


def full(_data):
    """Send to a peer whose buffer is full."""
    raise ssl.SSLWantWriteError


@pytest.mark.parametrize("first", ["a large message", "one that found no room"])
def test_no_message_overtakes_one_that_waits_for_the_thread(first):
    """A report of what changed, before the whole one it came after, would be taken back by it."""
    went = []
    sock = SimpleNamespace(send=lambda data: went.append(bytes(data)) or len(data))
    outbox = Outbox("n2", ("localhost", 1), nobody)
    with outbox._changed:  # as where it is connected and its thread sleeps, not woken yet
        outbox._sock, outbox._is_idle = sock, True
        if first == "a large message":
            outbox.put(b"1" * 9000)
        else:
            sock.send, send = full, sock.send
            outbox.put(b"1")
            sock.send = send
        outbox.put(b"2")
        assert not went
        assert [each[4:5] for each in outbox._queue] == [b"1", b"2"]
        outbox._sock = None
    outbox.stop()


def test_why_a_member_cannot_be_reached_is_said_in_words():
    """An operator knows no errno, and no line of a C file."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = server.getsockname()[:2]
    outbox = Outbox("n2", address, lambda: None)
    assert eventually(lambda: outbox.problem)
    outbox.stop()
    assert outbox.problem == f"nobody answers at 127.0.0.1:{address[1]} (connection refused)"


@pytest.mark.parametrize(
    "error",
    [
        ssl.SSLEOFError(8, "EOF occurred in violation of protocol (_ssl.c:2427)"),
        BrokenPipeError(32, "Broken pipe"),
    ],
)
def test_why_a_connection_broke_is_said_in_words(error):
    """The same of one that was there."""

    def broken(_data):
        raise error

    outbox = Outbox("n2", ("localhost", 1), nobody)
    outbox.stop()
    outbox._stopping = False
    outbox.put(b"1")
    outbox._pump(SimpleNamespace(send=broken, fileno=lambda: 0, close=lambda: None))
    assert outbox.problem == "the connection broke: the other side hung up"


class HungUpOn(socket.socket):
    """A connection of which the other side has no use."""

    def send(self, _data):
        raise BrokenPipeError(32, "Broken pipe")


def test_a_member_that_hangs_up_on_each_connection_is_not_dialled_without_a_pause(monkeypatch):
    """One whose members do not name us does; each dialling is a handshake and a line in its log."""
    dialled, many = [], threading.Event()

    def dial(outbox):
        outbox.put(b"1")  # the next sign of life, which finds that nobody listens
        dialled.append(1)
        if len(dialled) == 20:
            many.set()
        return HungUpOn()

    monkeypatch.setattr(Outbox, "_dial", dial)
    outbox = Outbox("n2", ("localhost", 1), nobody)
    assert not many.wait(0.3)  # which it must not, so that no event can be waited for
    assert len(dialled) > 1
    outbox.stop()


class Accepted(socket.socket):
    """What a member has dialled, without the TLS."""

    def pending(self):
        """Nothing was decrypted ahead."""
        return 0


def test_a_member_that_dials_anew_has_one_connection():
    """Where the network swallowed the end of one, a node has 512 of them and hears of none."""
    threads, far, heard = [], [], []
    addresses = {"n1": ("localhost", 1), "n2": ("localhost", 2)}
    peers = Peers("n1", addresses, nobody, lambda _sender, messages: heard.extend(messages))
    for number in range(3):
        ours, theirs = socket.socketpair()
        far.append(theirs)
        sock = Accepted(fileno=ours.detach())
        identity = SimpleNamespace(is_node=True, name="n2")
        threads.append(threading.Thread(target=peers.serve, args=(sock, identity), daemon=True))
        threads[-1].start()
        theirs.sendall(b"\1\0\0\0%d" % number)
        assert eventually(lambda number=number: heard[number:] == [b"%d" % number])
    for thread in threads[:2]:
        thread.join(1)
    assert [thread.is_alive() for thread in threads] == [False, False, True]
    peers.stop()
    threads[2].join(10)
    assert not threads[2].is_alive()
    for each in far:
        each.close()
