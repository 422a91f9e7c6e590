"""Peers: messages from one node to another leave in the order in which they were put."""

import socket
import threading
import time
from contextlib import closing
from types import SimpleNamespace

import pytest

from rt.config.settings import load
from rt.errors import PeerError
from rt.net.authority.certificates import certificate_files, issue
from rt.net.authority.identity import CertificateRole
from rt.net.tls import Contexts, accept, client_context, offering, server_context
from rt.node.founding.cluster_files import init_local_cluster
from rt.node.host.node import Node
from rt.node.settings.node import NodeSettings
from rt.version import SOFTWARE
from sequencer.peers.connections import Peers
from sequencer.peers.dialling import SCOUT_S, PeerDialer, Turns, UnansweredError
from sequencer.peers.message_reader import MessageReader
from sequencer.peers.versions import (
    PEER_VERSIONS,
    PeerVersion,
    alpns_of,
    version_of,
)
from tests.forged_certificates import Authority
from tests.plain_peer import Accepted
from tests.replicator_host import eventually


def no_context():
    """Fail before dialling: these tests connect to no node."""
    raise OSError("no node is there")


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


class Member:
    """Node n2, as far as n1 dials it: what it accepts is in `far`."""

    def __init__(self, top, *, room=None):
        authority = Authority(str(top / "authority")).directory
        for name in ("n1", "n2"):
            issue(authority, name, CertificateRole.NODE)
        alpns = alpns_of("flights")
        self._contexts = Contexts(
            certificate_files(authority, "n2"),
            lambda *paths: offering(server_context(*paths), *alpns),
        )
        self.client = Contexts(
            certificate_files(authority, "n1"),
            lambda *paths: offering(client_context(*paths), *alpns),
        ).current
        self.far, self.hangs_up = [], False
        self._listener = socket.create_server(("localhost", 0))
        if room is not None:
            self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, room)
        self.addresses = {"n2": [self._listener.getsockname()[:2]]}
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def _accept(self):
        while True:
            try:
                plain, _ = self._listener.accept()
            except OSError:
                return
            try:
                sock, _ = accept(plain, self._contexts.current(), 10.0, admit=lambda _peer: None)
            except (PeerError, OSError):  # n1 stops while it dials
                plain.close()
                continue
            if self.hangs_up:
                sock.close()
            self.far.append(sock)

    def close(self):
        """Listen no more, and hang up."""
        socket.socket.shutdown(self._listener, socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()
        for each in self.far:
            each.close()


@pytest.fixture
def member_of(tmp_path):
    """Make the node that n1 dials; closed at the end."""
    every = []

    def make(**options):
        every.append(Member(tmp_path, **options))
        return every[-1]

    yield make
    for each in every:
        each.close()


def test_no_message_overtakes_one_that_waits_for_room(member_of, peers_of):
    """A report of changes that overtook the full report before it would be undone by that one."""
    member = member_of(room=4096)
    peers = peers_of(member.addresses, context=member.client)
    assert eventually(lambda: member.far and not peers.problems({"n2"}))
    sent = [b"%d " % number * (1 + number % 3 * 99_000) for number in range(60)]
    for each in sent:
        peers.send("n2", each)
    [far] = member.far
    reader = MessageReader("n1", version_of(far.selected_alpn_protocol()))
    got = []
    while len(got) < len(sent):
        reader.add(far.recv(65536))
        got += reader.pop_messages()
    assert got == sent


def test_an_unreachable_member_is_reported_in_plain_text(peers_of):
    """An operator should not have to know error numbers, or lines of a C file."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = server.getsockname()[:2]
    peers = peers_of({"n2": [address]}, context=lambda: None)
    words = f"no answer from 127.0.0.1:{address[1]} (connection refused)"
    assert eventually(lambda: peers.problems({"n2"}) == {"n2": words})


def test_a_broken_connection_is_reported_in_plain_text_and_dialled_again(
    member_of, peers_of, caplog
):
    """The same holds for a connection that was there."""
    member = member_of()
    peers = peers_of(member.addresses, context=member.client)
    assert eventually(lambda: member.far and not peers.problems({"n2"}))
    member.far[0].close()
    assert eventually(lambda: len(member.far) > 1)
    told = [each.getMessage() for each in caplog.records if each.levelname == "WARNING"]
    assert told == ["node n2: the connection broke: it hung up"]


def test_a_member_that_hangs_up_while_messages_wait_for_room_is_noticed_at_once(
    member_of, peers_of, caplog
):
    """The loop turned without a pause until the messages had waited for too long."""
    member = member_of(room=4096)
    peers = peers_of(member.addresses, context=member.client)
    assert eventually(lambda: member.far and not peers.problems({"n2"}))
    for _ in range(60):
        peers.send("n2", bytes(200_000))
    socket.socket.shutdown(member.far[0], socket.SHUT_WR)
    assert eventually(lambda: len(member.far) > 1)
    told = [each.getMessage() for each in caplog.records if each.levelname == "WARNING"]
    assert told == ["node n2: the connection broke: it hung up"]


def test_a_connection_that_cannot_be_watched_ends_alone(loop, peers_of):
    """The kernel refuses a descriptor too many; that ended the process."""
    left = threading.Event()
    peers = peers_of({"n2": [("localhost", 2)]})
    ours, theirs = socket.socketpair()
    sock = Accepted(fileno=ours.detach())
    serve = peers.serve(sock, SimpleNamespace(is_node=True, name="n2"))
    with closing(theirs):
        sock.close()  # the descriptor is -1, which the kernel refuses
        serve(left.set)
        assert left.wait(60)
    assert loop.call(lambda: None)


def test_a_member_that_hangs_up_every_time_is_dialled_with_pauses(member_of, peers_of, caplog):
    """A node with other members does; each attempt is a handshake and a line in its log."""
    member, began_s = member_of(), time.monotonic()
    member.hangs_up = True
    peers_of(member.addresses, context=member.client)
    assert eventually(lambda: len(member.far) >= 6, 60)
    # pauses of 20, 40, 80, 160 and 320 ms, of which each may be half as long
    assert time.monotonic() - began_s > 0.3


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


@pytest.mark.parametrize("how", ["it said so", "it is silent"])
def test_another_stream_dials_for_all_when_the_one_that_did_is_served_no_more(how):
    """Otherwise the return of the node would go unnoticed."""
    now, place, woken = SimpleNamespace(s=0.0), ("127.0.0.1", 1), []
    turns = Turns(lambda: now.s)
    first, second = (lambda: woken.append("first")), (lambda: woken.append("second"))

    def fail(again):
        with turns.at(place, 1.0, again):
            raise ConnectionRefusedError("no answer")

    with pytest.raises(ConnectionRefusedError):
        fail(first)
    with pytest.raises(UnansweredError):
        fail(second)
    if how == "it said so":
        turns.give_up(first)
    now.s += SCOUT_S
    with pytest.raises(ConnectionRefusedError):
        fail(second)
    assert woken == ["second"] * (how == "it said so"), "the one that gave up told it"


def test_a_member_with_two_addresses_is_dialled_at_the_other_one_at_once():
    """Nothing answers at the first, as another stream knows; that says nothing of the second."""
    places, dialled = [("127.0.0.1", 1), ("127.0.0.1", 2)], []

    class Taken(Turns):
        def at(self, address, _wait_s, _again):
            dialled.append(address)
            raise UnansweredError("no answer")

    with pytest.raises(UnansweredError):
        PeerDialer("n2", places, no_context, turns=Taken()).dial()
    assert dialled == places


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
    newest = PEER_VERSIONS[0]
    ours = served(peers_of, newest, [SOFTWARE.encode(), b"vote"])
    assert ours == ({"n2": PeerVersion(newest, SOFTWARE)}, [b"vote"], True)
    assert "runs" not in caplog.text
    newer = served(peers_of, newest, [b"rt 99.1", b"vote"])
    assert newer == ({"n2": PeerVersion(newest, "rt 99.1")}, [b"vote"], True)
    words = f"node n2: it runs rt 99.1, this node {SOFTWARE}; they speak version {newest}"
    assert words in caplog.text


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
        sock = dial(settings.cluster_id, (PEER_VERSIONS[0] + 1, *PEER_VERSIONS))
        assert version_of(sock.selected_alpn_protocol()) == PEER_VERSIONS[0]
        sock.close()
        with pytest.raises(
            PeerError,
            match="it does not speak 12 or 11 or 10 or 9 or 8 or 7 of the nodes' protocol",
        ):
            dial(settings.cluster_id, (PEER_VERSIONS[0] + 2, PEER_VERSIONS[0] + 1))
    finally:
        node.stop()


def test_only_members_are_reported_as_unreachable(peers_of):
    """A node that was removed is dialled for a while, and its end is not a problem of the rest."""
    places = {name: [("127.0.0.1", 1)] for name in ("n2", "n3")}
    assert list(peers_of(places).problems({"n1", "n2"})) == ["n2"]
