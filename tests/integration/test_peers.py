"""Peers: messages from one node to another leave in the order in which they were put."""

import logging
import socket
import threading
from types import SimpleNamespace

import pytest

from rt.config.settings import load
from rt.errors import PeerError
from rt.net.authority.certificates import certificate_files
from rt.net.loop.event_loop import EventLoop
from rt.net.tls import Contexts, client_context, offering
from rt.node.founding.cluster_files import init_local_cluster
from rt.node.host.node import Node
from rt.node.settings.node import NodeSettings
from rt.version import SOFTWARE
from sequencer.peers.connections import Peers
from sequencer.peers.dialling import PeerDialer, Turns, UnansweredError
from sequencer.peers.message_reader import MessageReader
from sequencer.peers.versions import (
    PEER_VERSIONS,
    PeerVersion,
    alpns_of,
    version_of,
)
from tests.plain_peer import Accepted
from tests.replicator_host import eventually

SCOUTED = "sequencer.peers.dialling.SCOUT_S"


def no_context():
    """Fail before dialling: these tests connect to no node."""
    raise OSError("no node is there")


@pytest.fixture
def loop():
    """An event loop, stopped at the end."""
    made = EventLoop()
    yield made
    made.stop()


@pytest.fixture
def peers_of(loop):
    """Make the peers of n1, which dial no one unless they are told to; stopped at the end."""
    every = []

    def make(addresses, heard=lambda *_heard: None, gone=lambda _member: None, context=no_context):
        every.append(
            Peers(loop, "n1", addresses, context, heard, gone=gone,
                  objection=lambda *_peer, **_how: "")
        )  # fmt: skip
        return every[-1]

    yield make
    for each in every:
        each.stop()


def connected(monkeypatch, *, room=None):
    """Let every dial succeed; return a list of the far ends."""
    far = []

    def dial(_dialer, _again):
        ours, theirs = socket.socketpair()
        if room is not None:
            ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, room)
        ours.setblocking(False)
        far.append(theirs)
        return Accepted(fileno=ours.detach())

    monkeypatch.setattr(PeerDialer, "dial", dial)
    return far


def test_no_message_overtakes_one_that_waits_for_room(monkeypatch, peers_of):
    """A report of changes that overtook the full report before it would be undone by that one."""
    far = connected(monkeypatch, room=4096)
    peers = peers_of({"n2": [("127.0.0.1", 1)]})
    assert eventually(lambda: not peers.problems({"n2"}))
    sent = [b"%d " % number * (1 + number % 3 * 9000) for number in range(60)]
    for each in sent:
        peers.send("n2", each)
    reader = MessageReader("n1", 7)
    got = []
    while len(got) < len(sent):
        reader.add(far[0].recv(65536))
        got += reader.take()
    assert got == sent
    far[0].close()


def test_an_unreachable_member_is_reported_in_plain_text(peers_of):
    """An operator should not have to know error numbers, or lines of a C file."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = server.getsockname()[:2]
    peers = peers_of({"n2": [address]}, context=lambda: None)
    words = f"no answer from 127.0.0.1:{address[1]} (connection refused)"
    assert eventually(lambda: peers.problems({"n2"}) == {"n2": words})


def test_a_broken_connection_is_reported_in_plain_text_and_dialled_again(monkeypatch, peers_of):
    """The same holds for a connection that was there."""
    far = connected(monkeypatch)
    peers = peers_of({"n2": [("127.0.0.1", 1)]})
    assert eventually(lambda: not peers.problems({"n2"}))
    told = []
    monkeypatch.setattr(logging.getLogger("sequencer.peers"), "warning",
                        lambda words, *values: told.append(words % values))  # fmt: skip
    far[0].close()
    assert eventually(lambda: len(far) > 1)
    assert told == ["node n2: the connection broke: it hung up"]
    far[1].close()


def test_a_member_that_hangs_up_every_time_is_dialled_with_pauses(monkeypatch, peers_of):
    """A node with other members does; each attempt is a handshake and a line in its log."""
    far, many = connected(monkeypatch), threading.Event()
    dial = PeerDialer.dial

    def hung_up_on(dialer, again):
        sock = dial(dialer, again)
        far[-1].close()
        if len(far) == 20:
            many.set()
        return sock

    monkeypatch.setattr(PeerDialer, "dial", hung_up_on)
    peers_of({"n2": [("127.0.0.1", 1)]})
    assert not many.wait(0.3)  # it must not happen, so there is no event to wait for
    assert len(far) > 1


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


def test_a_member_that_connects_again_has_one_connection(peers_of):
    """A node that never learns that a connection ended would collect hundreds of them."""
    far, heard, left = [], [], []
    peers = peers_of({"n2": [("localhost", 2)]}, lambda _sender, messages: heard.extend(messages))
    for number in range(3):
        ours, theirs = socket.socketpair()
        far.append(theirs)
        sock = Accepted(fileno=ours.detach())
        identity = SimpleNamespace(is_node=True, name="n2")
        peers.serve(sock, identity)(
            lambda number=number, sock=sock: (sock.close(), left.append(number))
        )
        theirs.sendall(b"\1\0\0\0%d" % number)
        assert eventually(lambda number=number: heard[number:] == [b"%d" % number])
    assert left == [0, 1]
    peers.stop()
    assert left == [0, 1, 2]
    for each in far:
        each.close()


@pytest.mark.parametrize("how", ["it ended", "it reconnects", "this node stops"])
def test_a_member_that_hangs_up_and_listens_no_more_has_ended(peers_of, how):
    """Its machine says so at once; others wait for half a second to elect another leader."""
    gone, left, listener = [], threading.Event(), socket.create_server(("127.0.0.1", 0))
    address = listener.getsockname()[:2]
    peers = peers_of({"n2": [address]}, gone=gone.append)
    ours, theirs = socket.socketpair()
    sock = Accepted(fileno=ours.detach())
    peers.serve(sock, SimpleNamespace(is_node=True, name="n2"))(
        lambda: (sock.close(), left.set())
    )  # fmt: skip
    if how != "it reconnects":
        listener.close()
    if how == "this node stops":
        peers.stop()
    theirs.close()
    assert left.wait(60)
    if how == "it ended":
        assert eventually(lambda: gone == ["n2"], 60)
    else:
        asked = [each for each in threading.enumerate() if each.name == "gone n2"]
        for each in asked:
            each.join(60)
        assert gone == []
    listener.close()


def served(peers_of, version, data):
    """Return what node n2 is known to run once it has sent this, what was heard, and whether
    it is connected still.
    """
    heard, left = [], threading.Event()
    peers = peers_of({}, lambda _sender, messages: heard.extend(messages))
    ours, theirs = socket.socketpair()
    sock = Accepted(fileno=ours.detach())
    sock.version = version
    peers.serve(sock, SimpleNamespace(is_node=True, name="n2"))(lambda: (sock.close(), left.set()))
    theirs.sendall(b"".join(len(each).to_bytes(4, "little") + each for each in data))
    assert eventually(lambda: heard or left.is_set())
    versions, is_connected = peers.versions(), not left.is_set()
    theirs.close()
    assert left.wait(60)
    assert peers.versions() == {}
    return versions, heard, is_connected


def test_a_node_introduces_itself_and_its_version_is_known_while_it_is_connected(caplog, peers_of):
    """An operator who updates one node after another wants to see which are done."""
    caplog.set_level("INFO")
    ours = served(peers_of, 10, [SOFTWARE.encode(), b"vote"])
    assert ours == ({"n2": PeerVersion(10, SOFTWARE)}, [b"vote"], True)
    assert "runs" not in caplog.text
    newer = served(peers_of, 10, [b"rt 99.1", b"vote"])
    assert newer == ({"n2": PeerVersion(10, "rt 99.1")}, [b"vote"], True)
    assert f"node n2: it runs rt 99.1, this node {SOFTWARE}; they speak version 10" in caplog.text


def test_a_node_of_the_version_before_is_heard_and_named_as_older(caplog, peers_of):
    """It introduces itself by nothing: its first message is one of the consensus."""
    caplog.set_level("INFO")
    assert served(peers_of, 7, [b"vote"]) == ({"n2": PeerVersion(7)}, [b"vote"], True)
    assert "it runs an older version of rt, this node rt " in caplog.text


@pytest.mark.parametrize("name", [b"rt 1\n2", b"r" * 65, b"\xff", b"\x1b[2J"])
def test_an_introduction_that_is_not_a_short_printable_text_ends_the_connection(
    name, caplog, peers_of
):
    """It goes into logs and onto terminals."""
    assert served(peers_of, 8, [name, b"vote"]) == ({}, [], False)
    assert "not a printable text of 64 bytes" in caplog.text


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


def test_only_members_are_reported_as_unreachable(peers_of):
    """A node that was removed is dialled for a while, and its end is not a problem of the rest."""
    places = {name: [("127.0.0.1", 1)] for name in ("n2", "n3")}
    assert list(peers_of(places).problems({"n1", "n2"})) == ["n2"]
