"""PersistentConnection: many requests, one handshake, and a new one where it has ended."""

import json
import socket
import threading
from contextlib import closing, suppress
from types import SimpleNamespace

import pytest

from rt.errors import PeerError, Refused, RtError
from rt.net.admin import ADMIN_ALPN, AdminClient
from rt.net.tls import Contexts, accept, offering, server_context
from rt.node.admin.node_admin import AdminTimes
from rt.node.admin.verb import Verb
from tests.control_fuzz import NODE, node_admin

PATIENCE_S = 60


class Site:
    """A node's admin port: counts connections, and can hang up on all of them."""

    def __init__(self, certs, serve):
        self.contexts = Contexts(
            certs.node, lambda *paths: offering(server_context(*paths), ADMIN_ALPN)
        )
        self.listener = socket.create_server(("localhost", 0))
        self.address = ("localhost", self.listener.getsockname()[1])
        self.connections, self.errors, self._serve = [], [], serve
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self):
        with suppress(OSError):
            while True:
                sock, _ = accept(self.listener.accept()[0], self.contexts.current())
                thread = threading.Thread(target=self._talk, args=(sock,), daemon=True)
                self.connections.append((sock, thread))
                thread.start()

    def _talk(self, sock):
        try:
            self._serve(sock)
        except (OSError, RtError) as error:
            self.errors.append(error)

    def hang_up(self):
        """End every connection that there is, and wait until their threads have noticed."""
        for sock, thread in self.connections:
            with suppress(OSError):
                socket.socket.shutdown(sock, socket.SHUT_RDWR)
            thread.join(PATIENCE_S)

    def close(self):
        self.listener.close()
        self.hang_up()


def echoing(**options):
    """Return a node's admin, whose verb `echo` answers with what it was asked."""
    made = node_admin(**options)
    made.verbs["echo"] = Verb(lambda request, _: {"echo": request["say"]})
    return made


@pytest.fixture
def admin():
    """Such an admin."""
    return echoing()


@pytest.fixture
def site(certs, admin):
    """A site that this admin serves."""
    with closing(serving(certs, admin)) as made:
        yield made


def serving(certs, admin):
    """Return a site that this admin serves."""
    return Site(certs, lambda sock: admin.serve(sock, NODE))


def client_of(site, subscriber):
    """A client that keeps its connection."""
    return closing(AdminClient([site.address], subscriber, keep=True))


def said(client, text):
    """Return a node's answer to this request."""
    return client.ask({"do": "echo", "say": text})["echo"]


def test_many_requests_take_one_handshake(site, subscriber):
    """A handshake costs ten times what a request does, and a name has fifty of them a second."""
    with client_of(site, subscriber) as client:
        assert [said(client, n) for n in range(20)] == list(range(20))
        with pytest.raises(RtError, match="a node does one of"):
            client.ask({"do": "nonsense"})
        assert said(client, "\n") == "\n"
        assert len(site.connections) == 1


def test_a_request_dials_again_where_the_connection_has_ended(site, subscriber):
    """A node that restarts, or a certificate that is renewed, costs one handshake."""
    with client_of(site, subscriber) as client:
        for number in range(3):
            assert said(client, number) == number
            site.hang_up()
        assert len(site.connections) == 3


def test_an_idle_connection_is_ended_without_an_error(certs, subscriber):
    """Each one has a thread of the node."""
    admin = echoing(times=AdminTimes(idle_s=0.1))
    with closing(serving(certs, admin)) as site, client_of(site, subscriber) as client:
        assert said(client, 1) == 1
        site.connections[0][1].join(PATIENCE_S)
        assert not site.connections[0][1].is_alive()
        assert said(client, 2) == 2
    assert site.errors == []


def test_a_client_that_closes_ends_its_thread_at_the_node(site, subscriber):
    """A member that leaves takes no place any more."""
    with client_of(site, subscriber) as client:
        said(client, 1)
    site.connections[0][1].join(PATIENCE_S)
    assert not site.connections[0][1].is_alive()
    assert site.errors == []


def test_requests_are_held_where_a_peer_makes_too_many(certs, subscriber):
    """Without handshakes, only this bounds how often one certificate may ask."""
    held = []
    limits = SimpleNamespace(request=lambda peer: held.append(peer) or 0.0)
    server = SimpleNamespace(ask_admission=lambda question: question(limits))
    admin = echoing(server=lambda: server)
    with closing(serving(certs, admin)) as site, client_of(site, subscriber) as client:
        for number in range(4):
            said(client, number)
    assert held == [NODE] * 3  # the first one was paid for with the connection


def test_a_node_that_keeps_no_connection_is_understood(certs, subscriber):
    """An older one answers without a newline, and hangs up."""

    def serve(sock):
        with sock:
            request = json.loads(sock.recv(4096))
            sock.sendall(json.dumps({"echo": request["say"]}).encode())

    with closing(Site(certs, serve)) as site, client_of(site, subscriber) as client:
        assert [said(client, n) for n in range(3)] == [0, 1, 2]
        assert len(site.connections) == 3


def test_a_node_that_hangs_up_on_every_request_is_an_error_not_a_loop(certs, subscriber):
    """It is asked once on a connection that was kept, and once on a new one."""

    def serve(sock):
        with sock:
            sock.recv(4096)

    with closing(Site(certs, serve)) as site, client_of(site, subscriber) as client:
        with pytest.raises(RtError, match="hung up without an answer"):
            said(client, 1)
        assert len(site.connections) == 1


def test_a_refusal_leaves_the_connection_as_it_is(site, subscriber, admin):
    """A cursor that is held is asked for five times a second, by each standby."""

    def refuse(_request, _identity):
        raise Refused("held", "by another")

    admin.verbs["cursor-open"] = Verb(refuse)
    with client_of(site, subscriber) as client:
        for _ in range(5):
            with pytest.raises(Refused, match="by another"):
                client.ask({"do": "cursor-open"})
        assert len(site.connections) == 1


def test_a_second_line_longer_than_its_bound_is_refused(site, subscriber):
    """The bound holds for each request, and the next one of this client gets an answer."""
    with client_of(site, subscriber) as client:
        said(client, 1)
        with pytest.raises(RtError):
            said(client, "x" * (1 << 20))
        assert said(client, 2) == 2
    site.hang_up()
    assert any(isinstance(error, PeerError) for error in site.errors)
