"""Link: a connection waits without turning, and tells a dead peer from one that it did not hear."""

import select
import socket
import threading
from contextlib import ExitStack

import pytest
from replicator_host import Certificates

from replicator import link as link_module
from replicator.link import Link
from replicator.messages import Heartbeat, Hello
from replicator.wire import encode
from rt.errors import PeerError
from rt.log.watch import Wake
from rt.net.tls import accept, connect


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
        thread.join(10)
        links = []
        for sock, name in ((accepted[0], "publisher"), (theirs, "node")):
            wake = Wake()
            undo.callback(wake.close)
            links.append(Link(sock, wake, name))
            undo.callback(links[-1].close)
        yield links


def test_a_peer_that_does_not_greet_is_waited_for_and_not_asked_for_again_and_again(
    ends, monkeypatch
):
    """No heartbeat is due before a greeting: to wait for one would cost a core for 5 seconds."""
    monkeypatch.setattr(link_module, "HEARTBEAT_S", 0.0)
    monkeypatch.setattr(link_module, "GREETING_S", 0.2)
    ours, looks = ends[0], []
    receive = ours.receive
    monkeypatch.setattr(ours, "receive", lambda: looks.append(1) or receive())
    with pytest.raises(PeerError, match="no Hello came"):
        ours.expect(Hello)
    assert len(looks) < 5


def test_who_was_sending_for_long_hears_the_peer_before_calling_it_dead(ends):
    """A line that takes longer than that for one message would be hung up on at each, for ever."""
    ours, theirs = ends
    lines = select.poll()
    lines.register(ours._sock.fileno(), select.POLLIN)
    theirs.send(encode(Heartbeat()))
    assert lines.poll(10_000)
    ours._heard_s -= 20  # so long the last sending took
    ours.beat()
    assert Heartbeat() in list(ours.receive())
    ours._heard_s -= 20
    with pytest.raises(PeerError, match="nothing was heard"):
        ours.beat()
