"""The server under strangers and greedy peers: real sockets, real TLS."""

import logging
import os
import re
import socket
import time

import pytest
from replicator_host import STREAM, Certificates, DiskHost, eventually

from replicator.limits.admission import ServerLimits
from replicator.push.client import PushClient
from replicator.serve.server import Server
from replicator.wire.codec import PUSH, VERSION, Hello, encode
from replicator.wire.link import PATIENCE, Patience
from rt import Publisher
from rt.errors import Refused
from rt.net.authority.certificates import issue
from rt.net.authority.identity import CertificateRole
from rt.net.tls import Contexts, client_context, connect
from tests.replicator_host import only

IDLE = 600


@pytest.fixture
def serve(certs, tmp_path):
    """Return a function that starts a server with these limits."""
    started = []

    def run(limits=None, members=None, patience=PATIENCE):
        host = DiskHost(str(tmp_path / "node"))
        host.members = members
        server = Server(("localhost", 0), certs.server(), only(host), limits, patience=patience)
        server.start()
        started.append((server, host))
        return server

    yield run
    for server, host in started:
        server.stop()
        host.stop()


def push_one(server, top, contexts, session="jfk"):
    """Publish a message and push it."""
    with Publisher(str(top), stream=STREAM, session=session) as publisher:
        publisher.publish(b"hello")
    client = PushClient(str(top), STREAM, [("localhost", server.address[1])], contexts)
    client.start()
    assert client.stop(drain_s=60)


def test_idle_connections_do_not_keep_a_publisher_out(serve, publisher, tmp_path, caplog):
    """Strangers need no certificate to open a connection, so connections must not be enough."""
    server = serve(ServerLimits(handshake_s=3600))  # so that none ends at its deadline
    idle = [socket.create_connection(server.address) for _ in range(IDLE)]
    try:
        push_one(server, tmp_path / "pub", publisher)
        assert eventually(lambda: server.connections <= 2 * ServerLimits().handshakes)
    finally:
        for sock in idle:
            sock.close()
    assert eventually(lambda: server.connections == 0)
    assert len([each for each in caplog.records if each.levelno >= logging.WARNING]) <= 5


def test_a_flood_of_connections_is_a_few_lines_of_log(serve, publisher, tmp_path, caplog):
    """A log that fills the disk stops the node as surely as the flood would."""
    server = serve()
    for _ in range(500):
        socket.create_connection(server.address).close()
    push_one(server, tmp_path / "pub", publisher)
    assert len(caplog.records) < 30


def test_a_log_line_names_the_peers_address_once(serve, publisher, tmp_path, caplog):
    """`10.0.0.1:7420: 10.0.0.1:7420: refused` hides the reason at the end of a long line."""
    server, stranger = serve(), Certificates(str(tmp_path / "ca")).publisher()
    there = f"localhost:{server.address[1]}"
    with Publisher(str(tmp_path), stream=STREAM, session="jfk") as log:
        log.publish(b"hello")
    clients = [
        PushClient(str(tmp_path), STREAM, [("localhost", port)], contexts)
        for port, contexts in ((server.address[1], stranger), (1, publisher))
    ]
    for client in clients:
        client.start()
    with socket.create_connection(server.address) as sock:
        ours = f"127.0.0.1:{sock.getsockname()[1]}"
        sock.sendall(b"GET / HTTP/1.1\r\n\r\n")
        wanted = (
            f"push to {there}: ",
            "push to localhost:1: ",
            f"{ours}: ",
            "of another authority",
        )
        assert eventually(lambda: all(each in caplog.text for each in wanted))
    for client in clients:
        client.stop()
    for line in caplog.messages:
        addresses = re.findall(r"[\w.]+:\d+", line)
        assert len(set(addresses)) == len(addresses), line


def test_a_handshake_that_is_trickled_ends_at_the_deadline(serve):
    """One byte every few seconds must not hold a slot for ever."""
    server = serve(ServerLimits(handshake_s=0.5))
    began = time.monotonic()
    with socket.create_connection(server.address) as sock:
        sock.settimeout(0.1)
        sent = bytearray(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500))
        while sent:  # for fifty seconds
            try:
                sock.sendall(sent[:1])
                del sent[:1]
                if sock.recv(1) == b"":
                    break
            except TimeoutError:
                continue
            except OSError:
                break
        assert sent
        assert time.monotonic() - began > 0.4
    assert eventually(lambda: server.connections == 0)


def test_one_certificate_gets_its_share_and_others_are_served(serve, certs, publisher, caplog):
    """512 connections of one certificate locked everyone out."""
    server = serve(ServerLimits(identity_connections=3))
    greedy = certs.publisher("greedy")
    address = ("localhost", server.address[1])
    held = [connect(address, greedy.current())[0] for _ in range(3)]
    began = time.monotonic()
    with pytest.raises(Refused, match="'greedy' has 3 connections already"):
        connect(address, greedy.current())
    assert time.monotonic() - began > 0.4  # dialling again at once would cost us a handshake each
    other, _ = connect(address, publisher.current())
    held.pop().close()
    assert eventually(lambda: server.connections == 3)
    again, _ = connect(address, greedy.current())
    for sock in (*held, other, again):
        sock.close()
    lines = [each.message for each in caplog.records if "greedy" in each.message]
    assert len(lines) >= 1


def test_nodes_have_places_when_publishers_have_taken_theirs(serve, certs):
    """A cluster whose members cannot reach each other merges nothing."""
    server = serve(ServerLimits(connections=4, reserved=1))
    address = ("localhost", server.address[1])
    held = [connect(address, certs.publisher(f"p{n}").current())[0] for n in range(3)]
    with pytest.raises(Refused, match="no place is left for 'late'"):
        connect(address, certs.publisher("late").current())
    member, _ = connect(address, Contexts(certs.node, client_context).current())
    for sock in (*held, member):
        sock.close()


def test_a_certificate_with_every_session_gets_a_bounded_number(serve, publisher, tmp_path):
    """1,345 sessions of one certificate took 20,000 descriptors of a node."""
    server = serve(ServerLimits(identity_sessions=3))
    for number in range(5):
        with Publisher(str(tmp_path / "pub"), stream=STREAM, session=f"s{number}") as writer:
            writer.publish(b"hello")
    node = ("localhost", server.address[1])
    client = PushClient(str(tmp_path / "pub"), STREAM, [node], publisher)
    client.start()
    assert eventually(
        lambda: sum("3 sessions a day" in each.error for each in client.status()) == 2
    )
    client.stop()
    assert len(os.listdir(tmp_path / "node" / STREAM / "in")) == 3


def test_a_node_of_another_cluster_is_refused_before_it_can_ask(serve, certs, caplog):
    """A certificate of the same authority, with the role of a node, does not make a member."""
    server = serve(members={"node-1"})
    stranger = issue(certs.directory, "n9", CertificateRole.NODE)
    with pytest.raises(Refused, match="'n9' is not a node of this cluster"):
        connect(("localhost", server.address[1]), Contexts(stranger, client_context).current())
    assert eventually(lambda: any("'n9' is not a node" in each.message for each in caplog.records))


def test_stopping_ends_handshakes_at_once(serve):
    """A stranger that says nothing must not hold up SIGTERM for ten seconds."""
    server = serve(ServerLimits(handshake_s=3600))
    idle = [socket.create_connection(server.address) for _ in range(5)]
    assert eventually(lambda: server.connections == 5)
    server.stop()
    assert server.connections == 0
    for sock in idle:
        sock.close()


def test_a_peer_that_says_hello_too_late_gives_its_place_back(serve, publisher):
    """A certificate opens the door; it does not let anyone block it."""
    server = serve(patience=Patience(greeting_s=0.3))
    silent, _ = connect(("localhost", server.address[1]), publisher.current())
    assert eventually(lambda: server.connections == 0)
    late, _ = connect(("localhost", server.address[1]), publisher.current())
    late.sendall(encode(Hello(VERSION, VERSION, PUSH, STREAM, "late")))
    assert late.recv(1)
    for sock in (silent, late):
        sock.close()
