"""Sessions that reach only some nodes: who requests them, and what is relayed."""

import itertools
import logging
import os
import threading
import time

import pytest
from archive_cluster import STREAM, ArchiveCluster
from replicator_host import Certificates, DiskHost, Inbox, eventually, frames, log_bytes

from replicator.push.relay import HeldCopy, Relay
from replicator.serve.server import Server
from rt.errors import CorruptLog, Refused
from rt.format.manifest import SESSION, LogIdentity
from rt.log.notify.confirmations import Level
from rt.net.authority.certificates import issue
from rt.net.authority.identity import CertificateRole
from rt.net.tls import Contexts, client_context
from rt.node.ingest.damage import DamageFound
from rt.node.ingest.inbox import InboxPorts, NodeInbox
from rt.position import START, Position
from rt.publisher import Publisher
from rt.subscriber import Subscriber
from sequencer.ledger.instruction import CARRIED_BYTES_MAX
from sequencer.ledger.ledger import Ledger
from sequencer.planning.holdings import Holdings, encode_reports
from sequencer.planning.wants import Wants
from tests.replicator_host import only

PATIENCE_S = 60
# If the node that a publisher reaches led, it would carry the messages to those without a copy.
RELAYED = {"carry": False}
A, B = Position(1_000), Position(2_000)


# Requests


def holdings(own=None, **others):
    """Return what n1 knows: what it holds, and what each other member reported."""
    known = Holdings("n1", ["n1", *others])
    for session, end in (own or {}).items():
        known.record_durable(session, end)
    for name, items in others.items():
        known.take_report(name, *encode_reports(items, whole=True))
    return known


def test_a_session_that_does_not_come_is_asked_for_after_a_while():
    """Most often its publisher brings it, a moment later than to the others."""
    wants, known, ledger = Wants(3), holdings(n2={"jfk": A}, n3={}), Ledger()
    asked = [wants.choose(known, ledger) for _ in range(4)]
    assert asked == [{}, {}, {}, {"n2": ["jfk"]}]


def test_the_node_that_holds_most_is_asked_first_and_then_the_others():
    """It may have died since it reported that."""
    wants, known = Wants(2), holdings(n2={"jfk": A}, n3={"jfk": B})
    asked = [wants.choose(known, Ledger()) for _ in range(16)]
    turns = [name for each in asked for name in each]
    assert turns == ["n3"] * 2 + ["n2"] * 4 + ["n3"] * 8, "each for longer: it may be slow"


def test_a_session_that_grows_here_is_not_asked_for():
    """It is arriving, however slowly."""
    wants, known = Wants(1), holdings(n2={"jfk": B}, n3={})
    for end in range(100, 1_000, 100):
        known.record_durable("jfk", Position(end))
        assert wants.choose(known, Ledger()) == {}
    assert wants.choose(known, Ledger()) == {"n2": ["jfk"]}


def test_what_was_merged_is_asked_for_only_if_the_next_instruction_needs_it():
    """A copy that is only history may lag for ever."""
    wants, known, ledger = Wants(1), holdings(n2={"jfk": A}, n3={}), Ledger()
    ledger.sessions["jfk"] = A
    assert not any(wants.choose(known, ledger) for _ in range(5))
    asked = [wants.choose(known, ledger, missing="jfk") for _ in range(2)]
    assert asked[-1] == {"n2": ["jfk"]}


def test_a_session_that_its_publisher_fills_is_waited_for_longer():
    """The connection may have been cut silently, but most often it is only slow."""
    wants, known = Wants(1), holdings(n2={"jfk": A, "lga": A}, n3={})
    feeder = {"jfk": "publisher", "lga": ""}.__getitem__
    asked = [wants.choose(known, Ledger(), feeder=feeder) for _ in range(5)]
    assert asked == [{}, *[{"n2": ["lga"]}] * 3, {"n2": ["jfk", "lga"]}]


def test_a_session_waits_its_turn_while_its_publisher_sends_others():
    """With a thousand of them, nodes once asked each other for all, and threw the publisher out."""
    wants, known = Wants(1), holdings(n2={"jfk": A, "lga": B}, n3={})
    asked = list[dict[str, list[str]]]()
    for end in range(100, 4_000, 100):
        known.record_durable("lga", Position(end))
        asked.append(wants.choose(known, Ledger(), feeder=lambda _session: "publisher"))
    assert asked[:17] == [{}] * 16 + [{"n2": ["jfk"]}]


def test_a_session_that_has_not_begun_is_waited_for_while_a_publisher_sends_others():
    """It may be the next of a thousand; but what the next instruction needs is asked for."""

    def fed(session: str) -> str:
        return "publisher" if session in known.own else ""

    for missing, looks in (("", 4), ("jfk", 1)):
        wants, known = Wants(1), holdings(n2={"jfk": A}, n3={})
        asked = list[dict[str, list[str]]]()
        for number in range(8):
            session = f"s{number}"
            known.take_report("n2", *encode_reports({"jfk": A, session: A}, whole=True))
            asked.append(wants.choose(known, Ledger(), missing=missing, feeder=fed))
            known.record_durable(session, A)
        assert asked[: looks + 1] == [{}] * looks + [{"n2": ["jfk"]}], missing


def test_a_publisher_that_has_gone_quiet_is_waited_for_no_longer_than_usual():
    """Its connection may have been cut silently after it had sent something."""
    wants, known = Wants(1), holdings(n2={"jfk": A, "lga": B}, n3={})
    known.record_durable("lga", Position(100))
    looks = [wants.choose(known, Ledger(), feeder=lambda _session: "publisher")]
    known.record_durable("lga", Position(200))
    looks += [wants.choose(known, Ledger(), feeder=lambda _session: "publisher") for _ in range(9)]
    assert looks[:5] == [{}] * 5
    assert {"n2": ["jfk", "lga"]} in looks[5:7]


# Claims


class Bell:
    """Counts how often it is rung."""

    rung = 0

    def set(self):
        self.rung += 1


class Appender:
    """A stand-in for the appender of one session."""

    identity = LogIdentity(SESSION, STREAM, "jfk", "1" * 32, 0)
    end = START

    def sync(self):
        return START

    def close(self):
        pass


@pytest.mark.parametrize(("first", "second"), [(True, False), (False, True), (True, True)])
def test_a_connection_leaves_a_session_to_the_next_if_either_relays(first, second):
    """A publisher has what comes next, and a relay was requested because nothing came."""
    inbox, bell = NodeInbox(Appender(), START, InboxPorts(lambda _: None, None, None)), Bell()
    inbox.claim("first", bell, relays=first)
    assert inbox.is_fed != first
    with pytest.raises(Refused, match="first"):
        inbox.claim("second", Bell(), relays=second)
    assert inbox.leave
    assert bell.rung == 1
    inbox.release()
    inbox.claim("second", bell, relays=second)
    assert not inbox.leave


def test_a_publisher_does_not_take_a_session_from_another():
    """Otherwise two would take it from each other for ever."""
    inbox, bell = NodeInbox(Appender(), START, InboxPorts(lambda _: None, None, None)), Bell()
    inbox.claim("first", bell)
    with pytest.raises(Refused, match="first"):
        inbox.claim("second", Bell())
    assert not inbox.leave
    assert bell.rung == 0


# Relaying


@pytest.fixture
def target(tmp_path):
    """Return certificates, and a running node that takes sessions."""
    certs = Certificates(str(tmp_path / "ca"))
    host = DiskHost(str(tmp_path / "target"))
    server = Server(("localhost", 0), certs.server(), only(host))
    server.start()
    yield certs, host, server
    server.stop(), host.stop()


def written(tmp_path, count=20):
    """Return the directory of a session with messages."""
    with Publisher(str(tmp_path / "source"), stream=STREAM, session="jfk") as publisher:
        for number in range(count):
            publisher.publish(b"%d" % number)
            publisher.flush(Level.SYNCED)
    return str(tmp_path / "source" / STREAM / "jfk")


def relay_to(target, directory, durable, name="node-1", doubted=lambda: None, **options):
    """Return a relay of one session to the node; `others` are the copies of other sessions."""
    certs, _, server = target
    contexts = Contexts(
        issue(certs.directory, "node-2", CertificateRole.NODE, force=True), client_context
    )
    copies = {"jfk": HeldCopy(directory, durable, doubted), **options.pop("others", {})}
    return Relay(name, server.address, contexts, STREAM, copies.get, **options)


class Clock:
    """A clock that a test may move."""

    ahead_s = 0.0

    def __call__(self):
        return time.monotonic() + self.ahead_s


def end_of(directory):
    """Return where the only file of a log ends."""
    [data] = log_bytes(directory).values()
    return Position(len(data))


def test_a_session_is_relayed_as_far_as_it_is_durable(tmp_path, target):
    """What a power cut may take from here must not count as held by a majority."""
    directory, host = written(tmp_path), target[1]
    whole = end_of(directory)
    some = [Position(frame_ends(directory)[4])]
    relay = relay_to(target, directory, lambda: some[0])
    relay.want("jfk")
    assert eventually(lambda: host.inboxes and host.inboxes["jfk"].durable == some[0])
    some[0] = whole
    assert eventually(lambda: host.inboxes["jfk"].durable == whole)
    relay.stop()
    assert log_bytes(host.inboxes["jfk"].appender.directory) == log_bytes(directory)


def frame_ends(directory):
    """Return where each frame of the only file ends."""
    [data] = log_bytes(directory).values()
    return list(itertools.accumulate(header.size for header, _ in frames(data)))


def test_a_relay_hangs_up_when_nothing_is_needed_and_dials_again_when_asked(
    tmp_path, target, caplog
):
    """It would keep a publisher from its session, and hold a connection for nothing."""
    caplog.set_level(logging.INFO)
    directory, (_, host, server), clock = written(tmp_path), target, Clock()
    relay = relay_to(target, directory, lambda: end_of(directory), clock=clock)
    for count in (1, 2):
        relay.want("jfk")
        assert eventually(lambda: host.inboxes.get("jfk") and host.inboxes["jfk"].peer)
        assert caplog.text.count("push to node node-1: connected") == count
        clock.ahead_s += 20
        assert eventually(lambda: server.connections == 0)
        assert host.inboxes["jfk"].peer == ""
    relay.stop()


def test_a_refused_session_is_not_offered_at_every_request(tmp_path, target, caplog):
    """The node that lacks it asks a few times a second; each refusal is a line in two logs."""
    directory, (_, host, server) = written(tmp_path), target
    host.inboxes["jfk"] = Inbox(host, Appender())
    relay = relay_to(target, directory, lambda: end_of(directory))
    relay.want("jfk")
    assert eventually(lambda: "is not pushed to node node-1" in caplog.text)
    assert eventually(lambda: server.connections == 0)
    relay.want("jfk")
    relay.stop()
    assert caplog.text.count("is not pushed to node node-1") == 1
    assert "is another log here" in caplog.text


def test_a_session_that_is_refused_repeatedly_is_logged_once(tmp_path, target, caplog):
    """A node with a full disk refuses a thousand sessions, each of them twice a second."""
    refusals, clock = [], Clock()

    def claim(identity, peer, wake, *, relays):
        if len(refusals) < 5:
            refusals.append(1)
            raise Refused("reserve", f"there are {len(refusals)} bytes of disk left")
        return taken(identity, peer, wake, relays=relays)

    directory, (_, host, _) = written(tmp_path), target
    taken, host.claim = host.claim, claim
    relay = relay_to(target, directory, lambda: end_of(directory), clock=clock)

    def is_relayed():
        clock.ahead_s += 6  # the refusal of before is over
        relay.want("jfk")
        relay.want("lga")  # of which there is nothing here: it does not hang up meanwhile
        return host.inboxes and host.inboxes["jfk"].durable == end_of(directory)

    assert eventually(is_relayed)
    assert caplog.text.count("is not pushed to node node-1") == 1
    assert caplog.text.count("bytes of disk left") == 1, "the node logs that its disk is full"
    relay.stop()


def test_a_copy_is_relayed_to_the_intended_node_and_no_other(tmp_path, target, caplog):
    """An address may belong to another machine by now."""
    directory, host = written(tmp_path), target[1]
    relay = relay_to(target, directory, lambda: end_of(directory), name="n3")
    relay.want("jfk")
    assert eventually(lambda: "'node-1' answers at" in caplog.text)
    relay.stop()
    assert not host.inboxes


def test_a_relay_that_gets_no_thread_is_asked_again(tmp_path, target, monkeypatch):
    """The sequencing thread starts it, and would end the node, which can go on without a relay."""

    def refused(_thread):
        raise RuntimeError("can't start new thread")

    directory, host = written(tmp_path), target[1]
    relay = relay_to(target, directory, lambda: end_of(directory))
    with monkeypatch.context() as limited:
        limited.setattr(threading.Thread, "start", refused)
        relay.want("jfk")
    relay.want("jfk")
    assert eventually(lambda: "jfk" in host.inboxes)
    relay.stop()


def test_a_damaged_copy_costs_no_descriptor_per_try(tmp_path, target, caplog):
    """It is requested a few times a second for as long as its publisher is away."""
    caplog.set_level(logging.INFO)
    directory, server, clock = written(tmp_path), target[2], Clock()
    with open(os.path.join(directory, "manifest"), "r+b") as manifest:
        manifest.write(b"?")
    relay = relay_to(target, directory, lambda: START, clock=clock)

    def ask():
        before = caplog.text.count("connected")
        clock.ahead_s += 6  # the refusal of before is over
        relay.want("jfk")
        return eventually(
            lambda: caplog.text.count("connected") > before and not server.connections
        )

    assert ask()
    before = os.listdir("/proc/self/fd")
    assert all(ask() for _ in range(5))
    assert eventually(lambda: len(os.listdir("/proc/self/fd")) <= len(before))
    relay.stop()


def test_a_copy_that_is_set_aside_as_it_is_requested_ends_no_thread(tmp_path, target):
    """The other sessions of the connection go on."""
    directory, host = written(tmp_path), target[1]
    gone = HeldCopy(str(tmp_path / "gone"), lambda: START, lambda: None)
    relay = relay_to(target, directory, lambda: end_of(directory), others={"lga": gone})
    relay.want("lga")
    relay.want("jfk")
    assert eventually(lambda: "jfk" in host.inboxes)
    relay.stop()


def test_a_copy_whose_frames_are_refused_is_doubted(tmp_path, target):
    """It may be the only copy that its publisher reaches, and has to be made again."""
    directory, doubts = written(tmp_path), []
    with open(os.path.join(directory, "log.0.0"), "r+b") as file:
        file.seek(frame_ends(directory)[3] - 1)
        file.write(b"?")
    relay = relay_to(target, directory, lambda: end_of(directory), doubted=lambda: doubts.append(1))
    relay.want("jfk")
    assert eventually(lambda: doubts == [1])
    relay.stop()


# Nodes


def numbers(cluster, name, count):
    """Return the first messages of a node's merged log, waited for."""
    with Subscriber(os.path.join(cluster.root, name), stream=STREAM) as subscriber:
        return [int(message.payload) for message in itertools.islice(subscriber, count)]


def test_a_publisher_that_reaches_one_node_is_merged_on_all(tmp_path):
    """As long as a majority lives its messages are delivered, whatever is in between."""
    with ArchiveCluster(tmp_path, nodes=3, **RELAYED) as cluster:
        cluster.push(cluster.addresses[2:])
        publisher, count = cluster.publisher(), itertools.count()

        def publish(messages=1):
            for number in itertools.islice(count, messages):
                publisher.publish(b"%d" % number)
            publisher.flush(Level.MERGED, PATIENCE_S)

        def are_relayed():
            publish()  # a node that copied what was merged asks for nothing before there is more
            found = [*fillers(cluster, "n1"), *fillers(cluster, "n2")]
            return len(found) == 2 and set(found) <= {"n1", "n2", "n3"}

        publish(500)
        assert eventually(are_relayed)
        cluster.push(cluster.addresses[:2])  # the way is open again
        publish(500)
        assert eventually(lambda: pushed_by(cluster, "n1") == pushed_by(cluster, "n2"))
        assert eventually(lambda: pushed_by(cluster, "n1") == "publisher")
        last = next(count)
        for name in ("n1", "n2", "n3"):
            assert numbers(cluster, name, last) == list(range(last))


def test_a_session_that_was_carried_is_relayed_once_an_update_is_too_large(tmp_path):
    """Until then the others need no copy; what no instruction carries, a majority has to hold."""
    with ArchiveCluster(tmp_path, nodes=3) as cluster:
        found = []
        assert eventually(lambda: found.extend(leaders(cluster)) or found)
        [leader, *_] = found
        others = [name for name in cluster.nodes if name != leader]
        cluster.push([cluster.addresses[list(cluster.nodes).index(leader)]])
        publisher = cluster.publisher()
        for number in range(3):
            publisher.publish(b"%d" % number)
            publisher.flush(Level.MERGED, PATIENCE_S)
        publisher.publish(b"3".rjust(CARRIED_BYTES_MAX))
        publisher.flush(Level.MERGED, PATIENCE_S)
        assert any(fillers(cluster, name) for name in others)
        publisher.publish(b"4")
        publisher.flush(Level.MERGED, PATIENCE_S)
        for name in cluster.nodes:
            assert numbers(cluster, name, 5) == list(range(5))


def leaders(cluster):
    """Return the nodes that lead, or believe it: none, or mostly one."""
    return [name for name, node in cluster.nodes.items() if node.pipeline.sequencer.view.leads]


def test_a_session_goes_on_when_one_of_the_two_nodes_that_it_reaches_dies(tmp_path):
    """The third node holds it together with the other."""
    with ArchiveCluster(tmp_path, nodes=3) as cluster:
        cluster.push(cluster.addresses[1:])
        publisher = cluster.publisher()
        publisher.publish(b"0")
        publisher.flush(Level.MERGED, PATIENCE_S)
        cluster.stop("n2")
        publisher.publish(b"1")
        publisher.flush(Level.MERGED, PATIENCE_S)
        assert numbers(cluster, "n1", 2) == [0, 1]


def pushed_by(cluster, name):
    """Return who fills the only session's copy on a node."""
    [filler] = fillers(cluster, name)
    return filler


def fillers(cluster, name):
    """Return who fills each of the copies on a node."""
    return [each["pushed_by"] for each in cluster.nodes[name].status()["sessions"]]


def test_a_node_of_another_cluster_does_not_fill_sessions(tmp_path):
    """Its certificate may come from the same authority."""
    with ArchiveCluster(tmp_path) as cluster, pytest.raises(Refused, match="not a node of"):
        cluster.nodes["n1"].claim(Appender.identity, "m1", Bell(), relays=True)


def test_a_session_is_relayed_again_when_the_copy_was_set_aside(tmp_path):
    """The publisher fills another copy, and a node served by relay must not wait for the old."""
    with ArchiveCluster(tmp_path, nodes=3, **RELAYED) as cluster:
        for name in ("n1", "n2"):
            cluster.nodes[name].relay.stop()  # so that both get it from the third
        cluster.push(cluster.addresses[2:])
        publisher, count = cluster.publisher(), itertools.count()

        def publish():
            publisher.publish(b"%d" % next(count))
            publisher.flush(Level.MERGED, PATIENCE_S)

        def are_both_relayed():
            publish()  # a node that copied what was merged asks for nothing before there is more
            return [*fillers(cluster, "n1"), *fillers(cluster, "n2")] == ["n3"] * 2

        assert eventually(are_both_relayed)
        node = cluster.nodes["n3"]
        held = node.pipeline.inboxes.get("jfk")
        copy = held.appender.directory
        damage = CorruptLog(os.path.join(copy, "log.0.0"), START, "it is rotten")
        node.pipeline.sequencer.mend(DamageFound(damage, held.appender))
        assert eventually(lambda: node.pipeline.inboxes.get("jfk") is not held)
        publish()
        last = next(count)
        assert numbers(cluster, "n1", last) == list(range(last))


def test_a_copy_that_rots_under_a_node_is_fetched_again_when_its_publisher_returns(
    tmp_path, caplog
):
    """The publisher learns that the bytes differ; only the node can know whose are whole."""
    with ArchiveCluster(tmp_path, nodes=3) as cluster:
        push = cluster.push()
        publisher = cluster.publisher()
        for number in range(10):
            publisher.publish(b"%d" % number)
            publisher.flush(Level.MERGED, PATIENCE_S)
        copies = [tmp_path / f"n{number}" / STREAM / "in" / "jfk" for number in (1, 2, 3)]
        whole = (tmp_path / "pub" / STREAM / "jfk" / "log.0.0").read_bytes()
        # a majority has merged it; the push to the third node may only be beginning
        assert eventually(lambda: all(log_bytes(each) == {"log.0.0": whole} for each in copies))
        push.stop()
        with open(copies[0] / "log.0.0", "r+b") as file:
            file.seek(len(whole) - 9)
            file.write(b"?")
        cluster.push(refused_retry_s=0.2)
        assert eventually(lambda: "is set aside and fetched again" in caplog.text)
        publisher.publish(b"10")
        publisher.flush(Level.MERGED, PATIENCE_S)
        assert eventually((copies[0] / "log.0.0").exists)
        assert eventually(lambda: (copies[0] / "log.0.0").read_bytes()[: len(whole)] == whole)
        assert numbers(cluster, "n1", 11) == list(range(11))
        kept = copies[0].parent / "quarantine.jfk.0" / "log.0.0"
        assert len(kept.read_bytes()) == len(whole), "nothing is deleted on an inference"
