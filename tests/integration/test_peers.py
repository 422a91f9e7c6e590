"""Peers: messages from one node to another leave in the order in which they were put."""

import socket
import ssl
import threading
from types import SimpleNamespace

import pytest

from rt.config.settings import load
from rt.errors import PeerError
from rt.net.authority.certificates import certificate_files
from rt.net.tls import Contexts, client_context, offering
from rt.node.founding.cluster_files import init_local_cluster
from rt.node.host.node import Node
from rt.node.settings.node import NodeSettings
from rt.version import SOFTWARE
from sequencer.peers.connections import Outbox, Peers
from sequencer.peers.dialling import PeerDialer, Turns, UnansweredError
from sequencer.peers.versions import (
    PEER_VERSIONS,
    PeerVersion,
    alpn_of,
    alpns_of,
    version_of,
)
from tests.replicator_host import eventually

SCOUTED = "sequencer.peers.dialling.SCOUT_S"


def no_context():
    """Fail before dialling: these tests connect to no node."""
    raise OSError("no node is there")


def an_outbox(port=1, context=no_context):
    """An outbox for node n2, which is not running."""
    return Outbox("n2", PeerDialer("n2", [("127.0.0.1", port)], context))


def full(_data):
    """Send to a peer whose receive buffer is full."""
    raise ssl.SSLWantWriteError


@pytest.mark.parametrize("first", ["a large message", "one that did not fit"])
def test_no_message_overtakes_one_that_waits_for_the_thread(first):
    """A report of changes that overtook the full report before it would be undone by that one."""
    sent = []
    sock = SimpleNamespace(send=lambda data: sent.append(bytes(data)) or len(data))
    outbox = an_outbox()
    with outbox._changed:  # as if it were connected and its thread asleep
        outbox._sock, outbox._is_idle = sock, True
        if first == "a large message":
            outbox.put(b"1" * 9000)
        else:
            sock.send, send = full, sock.send
            outbox.put(b"1")
            sock.send = send
        outbox.put(b"2")
        assert not sent
        assert [each[4:5] for each in outbox._queue._messages] == [b"1", b"2"]
        outbox._sock = None
    outbox.stop()


def test_an_unreachable_member_is_reported_in_plain_text():
    """An operator should not have to know error numbers, or lines of a C file."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = server.getsockname()[:2]
    outbox = an_outbox(address[1], lambda: None)
    assert eventually(lambda: outbox.problem)
    outbox.stop()
    assert outbox.problem == f"no answer from 127.0.0.1:{address[1]} (connection refused)"


@pytest.mark.parametrize(
    "error",
    [
        ssl.SSLEOFError(8, "EOF occurred in violation of protocol (_ssl.c:2427)"),
        BrokenPipeError(32, "Broken pipe"),
    ],
)
def test_a_broken_connection_is_reported_in_plain_text(error):
    """The same holds for a connection that was there."""

    def broken(_data):
        raise error

    outbox = an_outbox()
    outbox.stop()
    outbox._stopping = False
    outbox.put(b"1")
    sock = SimpleNamespace(
        send=broken, fileno=lambda: 0, close=lambda: None, selected_alpn_protocol=lambda: None
    )
    outbox._pump(sock)
    assert outbox.problem == "the connection broke: the other side hung up"


class HungUpOn(socket.socket):
    """A connection that the other side has closed."""

    def selected_alpn_protocol(self):
        """Return the protocol that was agreed on."""
        return alpn_of("flights")

    def send(self, _data):
        raise BrokenPipeError(32, "Broken pipe")


def test_a_member_that_hangs_up_every_time_is_dialled_with_pauses(monkeypatch):
    """A node with other members does; each attempt is a handshake and a line in its log."""
    dialled, many = [], threading.Event()

    def dial(_dialer):
        boxes[0].put(b"1")  # the next heartbeat, which finds the connection closed
        dialled.append(1)
        if len(dialled) == 20:
            many.set()
        return HungUpOn()

    started, boxes = threading.Event(), []
    monkeypatch.setattr(
        PeerDialer, "dial", lambda dialer, _again: started.wait(60) and dial(dialer)
    )
    outbox = an_outbox()
    boxes.append(outbox)
    started.set()
    assert not many.wait(0.3)  # it must not happen, so there is no event to wait for
    assert len(dialled) > 1
    outbox.stop()


class Accepted(socket.socket):
    """A connection that a member has dialled, without TLS."""

    version = 7

    def selected_alpn_protocol(self):
        """Return the protocol that was agreed on."""
        return alpn_of("flights", self.version)

    def read(self, count):
        """Receive as a TLS connection does."""
        return self.recv(count)


def test_where_nothing_answers_one_stream_dials_for_all_and_the_others_follow_at_once():
    """A hundred streams that each dialled a dead node took a quarter of a core."""
    turns, place, woken, met = Turns(), ("127.0.0.1", 1), [], []

    def dial(name, error=None):
        with turns.at(place, 1.0, again(name)):
            met.append(name)
            if error is not None:
                raise error

    def again(name):
        return agains.setdefault(name, lambda: woken.append(name))

    agains = {}
    with pytest.raises(ConnectionRefusedError):
        dial("scout", ConnectionRefusedError("no answer"))
    for name in ("b", "c"):
        with pytest.raises(UnansweredError, match="no answer"):
            dial(name)
    with pytest.raises(ConnectionRefusedError):
        dial("scout", ConnectionRefusedError("no answer"))
    assert (met, woken) == (["scout", "scout"], [])
    dial("scout")
    assert woken == ["b", "c"]
    dial("b")
    assert met[2:] == ["scout", "b"]


def test_another_stream_dials_for_all_when_the_one_that_did_is_served_no_more(monkeypatch):
    """Otherwise the return of the node would go unnoticed."""
    turns, place, woken = Turns(), ("127.0.0.1", 1), []
    first, second = (lambda: woken.append("first")), (lambda: woken.append("second"))

    def fail(again):
        with turns.at(place, 1.0, again):
            raise ConnectionRefusedError("no answer")

    for takes_over in (lambda: turns.give_up(first), lambda: monkeypatch.setattr(SCOUTED, 0.0)):
        with pytest.raises(ConnectionRefusedError):
            fail(first)
        with pytest.raises(UnansweredError):
            fail(second)
        takes_over()
        with pytest.raises(ConnectionRefusedError):
            fail(second)
        turns.give_up(second)
    assert woken == ["second"], "the one that gave up told it"


def test_a_member_with_two_addresses_is_dialled_at_the_other_one_at_once():
    """Nothing answers at the first, as another stream knows; that says nothing of the second."""
    turned, dialled = Turns(), []
    waits = PeerDialer("n2", [("127.0.0.1", 1), ("127.0.0.1", 2)], no_context)

    def attempt(address, _wait_s, again):
        dialled.append(address)
        raise UnansweredError("no answer")

    turned.at = attempt
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sequencer.peers.dialling._TURNS", turned)
        with pytest.raises(UnansweredError):
            waits.dial()
    assert dialled == [("127.0.0.1", 1), ("127.0.0.1", 2)]


def test_a_member_that_connects_again_has_one_connection():
    """A node that never learns that a connection ended would collect hundreds of them."""
    threads, far, heard = [], [], []
    addresses = {"n2": [("localhost", 2)]}
    peers = Peers("n1", addresses, no_context, lambda _sender, messages: heard.extend(messages))
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
    threads[2].join(60)
    assert not threads[2].is_alive()
    for each in far:
        each.close()


@pytest.mark.parametrize("how", ["it ended", "it reconnects", "this node stops"])
def test_a_member_that_hangs_up_and_listens_no_more_has_ended(how):
    """Its machine says so at once; others wait for half a second to elect another leader."""
    gone, listener = [], socket.create_server(("127.0.0.1", 0))
    address = listener.getsockname()[:2]
    peers = Peers("n1", {"n2": [address]}, no_context, lambda *_heard: None, gone=gone.append)
    ours, theirs = socket.socketpair()
    identity = SimpleNamespace(is_node=True, name="n2")
    serving = threading.Thread(
        target=peers.serve, args=(Accepted(fileno=ours.detach()), identity), daemon=True
    )
    serving.start()
    assert eventually(lambda: "n2" in peers._serving)
    if how != "it reconnects":
        listener.close()
    if how == "this node stops":
        peers.stop()
    theirs.close()
    serving.join(60)
    assert gone == (["n2"] if how == "it ended" else [])
    peers.stop()
    listener.close()


def served(version, data):
    """Return what node n2 is known to run once it has sent this, what was heard, and the log."""
    heard, found = [], []
    peers = Peers("n1", {}, no_context, lambda _sender, messages: heard.extend(messages))
    ours, theirs = socket.socketpair()
    sock = Accepted(fileno=ours.detach())
    sock.version = version

    def serve():
        try:
            peers.serve(sock, SimpleNamespace(is_node=True, name="n2"))
        except PeerError as error:
            found.append(str(error))

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    theirs.sendall(b"".join(len(each).to_bytes(4, "little") + each for each in data))
    assert eventually(lambda: heard or found)
    versions = peers.versions()
    theirs.close()
    thread.join(60)
    assert peers.versions() == {}
    peers.stop()
    return versions, heard, found


def test_a_node_introduces_itself_and_its_version_is_known_while_it_is_connected(caplog):
    """An operator who updates one node after another wants to see which are done."""
    caplog.set_level("INFO")
    ours = served(10, [SOFTWARE.encode(), b"vote"])
    assert ours == ({"n2": PeerVersion(10, SOFTWARE)}, [b"vote"], [])
    assert "runs" not in caplog.text
    newer = served(10, [b"rt 99.1", b"vote"])
    assert newer == ({"n2": PeerVersion(10, "rt 99.1")}, [b"vote"], [])
    assert f"node n2: it runs rt 99.1, this node {SOFTWARE}; they speak version 10" in caplog.text


def test_a_node_of_the_version_before_is_heard_and_named_as_older(caplog):
    """It introduces itself by nothing: its first message is one of the consensus."""
    caplog.set_level("INFO")
    assert served(7, [b"vote"]) == ({"n2": PeerVersion(7)}, [b"vote"], [])
    assert "it runs an older version of rt, this node rt " in caplog.text


@pytest.mark.parametrize("name", [b"rt 1\n2", b"r" * 65, b"\xff", b"\x1b[2J"])
def test_an_introduction_that_is_not_a_short_printable_text_ends_the_connection(name):
    """It goes into logs and onto terminals."""
    versions, heard, [why] = served(8, [name, b"vote"])
    assert (versions, heard) == ({}, [])
    assert "not a printable text of 64 bytes" in why


def test_a_node_of_another_cluster_with_the_same_names_and_authority_is_given_up(tmp_path):
    """At a wrong address, what it holds and remembers would be taken for the member's."""
    place = init_local_cluster(str(tmp_path), "flights", 3)[0]
    settings = load(NodeSettings, place.config, "node", {}, {"reserve": 0})
    node = Node(settings, founding=True)
    node.start()

    def dial(cluster, versions=PEER_VERSIONS):
        files = certificate_files(settings.certs, "n2")
        contexts = Contexts(
            files, lambda *paths: offering(client_context(*paths), *alpns_of(cluster, versions))
        )
        return PeerDialer("n1", [node.address], contexts.current).dial()

    try:
        with pytest.raises(PeerError, match="is of another cluster, or of another version"):
            dial("trains")
        for version in PEER_VERSIONS:
            sock = dial(settings.cluster_id, (version,))
            assert version_of(sock.selected_alpn_protocol()) == version
            sock.close()
        sock = dial(settings.cluster_id, (11, *PEER_VERSIONS))
        assert version_of(sock.selected_alpn_protocol()) == PEER_VERSIONS[0]
        sock.close()
        with pytest.raises(
            PeerError, match="it does not speak 10 or 9 or 8 or 7 of the nodes' protocol"
        ):
            dial(settings.cluster_id, (12, 11))
    finally:
        node.stop()


def test_only_members_are_reported_as_unreachable():
    """A node that was removed is dialled for a while, and its end is not a problem of the rest."""
    places = {name: [("127.0.0.1", 1)] for name in ("n2", "n3")}
    peers = Peers("n1", places, no_context, lambda _sender, _messages: None)
    assert list(peers.problems({"n1", "n2"})) == ["n2"]
    peers.stop()
