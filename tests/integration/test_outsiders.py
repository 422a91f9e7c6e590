"""Certificates of nodes that are no members, on every protocol and with every kind of message."""

import json
import os
import shutil
import struct
from contextlib import suppress

import pytest

from replicator.wire.codec import PULL, PUSH, VERSION, Hello, encode
from replicator.wire.decoder import Decoder
from rt.errors import Misuse, PeerError, Refused
from rt.net.admin import ADMIN_ALPN, ask_any
from rt.net.authority.certificates import AUTHORITY, certificate_files, copy_authority, issue
from rt.net.authority.identity import CertificateRole
from rt.net.authority.renewal import renew
from rt.net.question import STATUS_ALPN
from rt.net.status import ask_status
from rt.net.tls import Contexts, client_context, connect, offering
from rt.node.agree.idle_heartbeat import IDLE_HEARTBEAT_ALPN
from rt.node.founding.cluster_files import free_addresses
from rt.node.retain.retention import LEASE_NOTE, POLICY_NOTE
from rt.version import SOFTWARE
from sequencer.ledger.founded import CERTIFICATES_NOTE
from sequencer.ledger.instruction import Note, encode_instruction
from sequencer.peers.versions import PEER_VERSIONS, alpn_of
from sequencer.raft.codec import MessageCodec
from sequencer.raft.consensus import Entry
from sequencer.raft.messages import AppendEntries, TimeoutNow
from tests.archive_cluster import STREAM
from tests.integration.test_cluster_members import ChangingCluster
from tests.replicator_host import eventually
from tests.unit.test_raft_seats import every_kind

PATIENCE_S = 60
TINY = '{"time":0,"limit":"1Ki","disk":100}'
WORST_LEASE = '{"holder":"spark","start":1e999,"until_ns":9000000000000000000,"bytes_max":9}'


class Doors:
    """A cluster of three, of which a follower was removed, and others' certificates."""

    def __init__(self, cluster):
        self.cluster = cluster
        self.gone, self.kept = self._roles()
        # as somebody who has a copy of its key: no process of the cluster has this connection
        self.early = self.connect("removed", f"peer {PEER_VERSIONS[0]}")
        self.early_heartbeat = self.connect("removed", "idle_heartbeat")
        cluster.change("remove-member", self.gone)
        assert cluster.nodes[self.gone].wait(60)
        cluster.stop(self.gone)
        [address] = free_addresses(1)
        cluster.change("add-member", "n4", address)
        issue(self.certs, "n4", CertificateRole.NODE)
        # a follower executes the change after the leader that answered it
        assert eventually(
            lambda: all(each["learners"] == ["n4"] for each in self.statuses().values())
        )
        self.before = self.statuses()

    def _roles(self):
        leader = self.target()
        followers = sorted({"n1", "n2", "n3"} - {leader})
        return followers[0], followers[1]

    @property
    def certs(self):
        """Return the directory of this cluster's certificates."""
        return os.path.join(self.cluster.root, "certs")

    @property
    def cluster_id(self):
        """Its id."""
        return next(iter(self.cluster.nodes.values())).settings.cluster_id

    def files(self, holder):
        """The files of a certificate of this authority."""
        elsewhere = os.path.join(self.cluster.root, "elsewhere")
        if not os.path.exists(elsewhere):
            copy_authority(self.certs, elsewhere)
        name = {"removed": self.gone, "learner": "n4", "member": self.kept}.get(holder)
        if name:
            return certificate_files(self.certs, name)
        name = {"namesake": self.kept, "stranger": "m1", "unnamed": self.kept}[holder]
        there = os.path.join(elsewhere, holder)
        if not os.path.exists(there):
            shutil.copytree(elsewhere, there)
            clusters = () if holder == "unnamed" else ("another",)
            issue(there, name, CertificateRole.NODE, clusters=clusters)
        return certificate_files(there, name)

    def connect(self, holder, protocol):
        """Connect to the node that is kept, or to the leader if that is the holder's own."""
        files = self.files(holder)
        context = client_context(files.ca, files.cert, files.key)
        alpn = self.alpn(protocol)
        address = self.cluster.nodes[self.target()].address
        sock, _ = connect(address, offering(context, alpn) if alpn else context)
        return sock

    def target(self):
        """The node that is attacked: the leader."""

        def leaders():
            said = [each.status()["leader"] for each in self.cluster.nodes.values()]
            return [each for each in said if each in self.cluster.nodes]

        assert eventually(leaders)
        return leaders()[0]

    def alpn(self, protocol):
        """The name of a protocol, for ALPN; None for the wire."""
        kind, _, version = protocol.partition(" ")
        if kind == "peer":
            return alpn_of(self.cluster_id, int(version))
        return {"idle_heartbeat": IDLE_HEARTBEAT_ALPN, "status": STATUS_ALPN, "admin": ADMIN_ALPN,
                "change": ADMIN_ALPN}.get(kind)  # fmt: skip

    def served(self, holder, protocol):
        """Whether a holder is served on a protocol, and why not."""
        try:
            with self.connect(holder, protocol) as sock:
                sock.settimeout(PATIENCE_S)
                return self._answer(sock, protocol)
        except (PeerError, Refused) as error:
            return False, str(error)

    def _answer(self, sock, protocol):
        if protocol in ("push", "pull"):
            way = PUSH if protocol == "push" else PULL
            sock.sendall(encode(Hello(VERSION, VERSION, way, STREAM, "test")))
            return read_hello(sock)
        if protocol in ("admin", "change"):
            asked = {"do": "policy" if protocol == "admin" else "roll", "stream": STREAM}
            sock.sendall(json.dumps(asked).encode() + b"\n")
        if protocol in ("admin", "change", "status"):
            data = b""
            while part := sock.recv(65536):
                data += part
            return b'"error"' not in data[:40], data[:200].decode()
        return True, ""  # a refusal is a verdict; the member itself may displace us at any moment

    def statuses(self):
        """Return the parts of each node's status that an attack would change."""
        keys = "term", "leader", "forked", "policy", "members", "learners", "older_copy"
        return {
            name: {key: node.status()[key] for key in keys}
            for name, node in self.cluster.nodes.items()
        }

    def demand_merging(self):
        """Messages are merged as before, and nothing else has changed."""
        self.cluster.say.publish_many([b"on"] * 10)
        self.cluster.say.flush("merged", timeout_s=60)
        assert self.statuses() == self.before


def read_hello(sock):
    """Return whether the node's first message is its greeting."""
    decoder = Decoder()
    while (message := decoder.next()) is None:
        data = sock.recv(4096)
        if not data:
            return False, "hung up"
        space = decoder.space()
        space[: len(data)] = data
        decoder.end += len(data)
    return isinstance(message, Hello), str(message)


@pytest.fixture(scope="module")
def doors(tmp_path_factory):
    """A cluster whose leader and one follower run, with all its doors open."""
    # the tests compare terms: a node that gets no processor for a second is not to begin another
    directory = tmp_path_factory.mktemp("doors")
    with ChangingCluster(directory, nodes=3, election_s=5.0) as cluster:
        cluster.push()
        publisher = cluster.publisher()
        publisher.publish_many([b"before" * 100] * 2000)
        publisher.flush("merged", timeout_s=60)
        cluster.say = publisher
        made = Doors(cluster)
        yield made
        for sock in (
            made.early,
            made.early_heartbeat,
        ):  # which a part of the tests may not have used
            sock.close()


PEER_PROTOCOLS = [f"peer {version}" for version in PEER_VERSIONS]
PROTOCOLS = [*PEER_PROTOCOLS, "idle_heartbeat", "push", "pull", "status", "admin", "change"]


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("holder", ["removed", "namesake", "stranger"])
def test_a_node_that_is_no_member_is_refused_on_every_protocol(doors, holder, protocol):
    """Its certificate is of the same authority and role, and was not revoked."""
    is_served, why = doors.served(holder, protocol)
    assert not is_served
    words = {
        "removed": f"node {doors.gone} was removed from this cluster",
        "namesake": "certificate is of another cluster's node",
        "stranger": "is not a node of this cluster",
    }
    assert words[holder] in why


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("holder", ["member", "learner"])
def test_a_member_is_served_and_a_learner_changes_nothing(doors, holder, protocol):
    """A learner is sent everything, and proposes nothing; neither may read less than is written."""
    if holder == "member" and doors.target() == doors.kept:
        pytest.skip("it would call itself")
    is_served, why = doors.served(holder, protocol)
    is_old = protocol in PEER_PROTOCOLS[1:]
    assert is_served == (not is_old and (holder == "member" or protocol != "change")), why
    assert ("start it with rt of the other nodes' version" in why) == is_old


def test_a_live_connection_of_a_removed_node_ends(doors):
    """It was let in as a member, and could stay for weeks."""
    with doors.early_heartbeat as sock:
        sock.settimeout(PATIENCE_S)
        with suppress(ConnectionError):
            assert sock.recv(1) == b""


def frame(message):
    """Return a message as it is sent on a connection between nodes."""
    return struct.pack("<I", len(message)) + message


def test_nothing_that_a_learner_says_in_the_consensus_has_any_effect(doors):
    """Not with any term, and not with any kind of message."""
    leader = doors.cluster.nodes[doors.target()]
    term = leader.status()["term"]
    codec = MessageCodec(leader.settings.founding_name, (), 77)
    with doors.connect("learner", f"peer {PEER_VERSIONS[0]}") as sock:
        sock.sendall(frame(SOFTWARE.encode()))
        for each in (term, term + 1, 1 << 40):
            for message in every_kind(each):
                if type(message).__name__ not in ("AppendReply", "SnapshotReply", "ReadIndex"):
                    sock.sendall(frame(b"\x01" + codec.encode(message)))
        assert eventually(lambda: leader.status()["unheard"].get("n4", 0) >= 20)
    doors.demand_merging()


def test_one_append_of_a_removed_node_makes_no_node_a_fork(doors):
    """Term and index are in the status; the rest a ClientHello shows in clear."""
    leader = doors.cluster.nodes[doors.target()]
    status = leader.status()
    term, commit = status["term"] + 1, status["committed"]
    codec = MessageCodec(leader.settings.founding_name, ("n1", "n2", "n3"), 0)
    entry = Entry(commit + 1, term, encode_instruction(Note(1, POLICY_NOTE, TINY)))
    attacks = [
        AppendEntries(term, commit, term, commit, 0),
        AppendEntries(term, commit, status["term"], commit + 1, 0, (entry,)),
        TimeoutNow(term),
    ]  # fmt: skip
    with suppress(OSError), doors.early as sock:
        sock.sendall(frame(SOFTWARE.encode()))
        for message in attacks:
            sock.sendall(frame(b"\x01" + codec.encode(message)))
    for version in PEER_VERSIONS:
        with pytest.raises((PeerError, Refused), match="was removed from this cluster"):
            doors.connect("removed", f"peer {version}")
    doors.demand_merging()


def test_a_removed_node_changes_no_policy(doors):
    """A committed one truncated files on every node."""
    contexts = Contexts(doors.files("removed"), client_context)
    addresses = [node.address for node in doors.cluster.nodes.values()]
    with pytest.raises((PeerError, Refused, OSError), match="was removed from this cluster"):
        ask_any(addresses, contexts, {"do": "set-policy", "policy": {"limit": "1Ki"}})
    doors.demand_merging()


def test_what_no_node_can_read_is_executed_as_nothing_on_every_node(doors):
    """An old log may hold it, and a restart would meet it again."""
    cluster = doors.cluster
    leader = cluster.nodes[doors.target()]
    engine, sequencer = leader.pipeline.member.engine, leader.pipeline.sequencer
    for command in (
        b"\xff", b"", encode_instruction(Note(1, f"{LEASE_NOTE}spark", WORST_LEASE)),
    ):  # fmt: skip
        sequencer.ask(lambda command=command: engine.propose(command))
    doors.demand_merging()
    for name, node in cluster.nodes.items():
        assert eventually(lambda node=node: node.status()["unreadable_entries"] == 2), name
        assert node.failure is None
    cluster.stop(doors.kept)
    cluster.start(doors.kept)
    doors.demand_merging()
    leader = cluster.nodes[doors.target()]  # the one that was stopped may have led
    contexts = Contexts(certificate_files(doors.certs, "operator"), client_context)
    with pytest.raises(Misuse, match="not a lease"):
        leader.pipeline.sequencer.order(Note(1, f"{LEASE_NOTE}spark", WORST_LEASE))
    assert ask_status(leader.address, contexts)["node"] == leader.settings.name


def test_a_renewed_certificate_is_let_in_and_one_that_names_no_cluster_is_not(doors):
    """The nodes agree on that once all of them have certificates that name their cluster."""
    cluster = doors.cluster
    if doors.target() == doors.kept:
        pytest.skip("it would call itself")

    def is_agreed():
        # no process of the learner runs here: the leader knows its certificate from a connection
        assert doors.served("learner", PEER_PROTOCOLS[0])[0]
        return CERTIFICATES_NOTE in cluster.ledger(doors.target()).notes

    assert eventually(is_agreed)
    for protocol in PROTOCOLS:
        is_served, why = doors.served("unnamed", protocol)
        assert not is_served
        assert "its certificate names no cluster, as all others here do" in why
    renew(doors.certs, doors.kept)
    is_served, why = doors.served("member", "status")
    assert is_served, why
    assert os.path.exists(certificate_files(doors.certs, AUTHORITY).key)
