"""Peers: what one node says to another leaves in the order in which it was said."""

import ssl
from types import SimpleNamespace

import pytest

from sequencer.peers import Outbox


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
