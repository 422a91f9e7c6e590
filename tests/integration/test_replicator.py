"""Push and pull over real TLS on loopback: what arrives, and which peers are refused."""

import logging
import os
import shutil
import socket
import ssl
import threading
import time
import tracemalloc
from collections import Counter
from contextlib import suppress

import pytest
from replicator_host import (
    STREAM,
    DiskHost,
    HostEnd,
    Merge,
    eventually,
    first_answer,
    log_bytes,
    manifest_lines,
)

from replicator.limits.admission import ServerLimits
from replicator.pull.client import PullClient
from replicator.push.client import PushClient
from replicator.serve.server import Server
from replicator.serve.streams import Streams
from replicator.wire import link as link_module
from replicator.wire.codec import VERSION, encode
from replicator.wire.hello import common_version
from replicator.wire.link import Link, Patience, shut
from replicator.wire.messages import (
    CONNECTION,
    PULL,
    PUSH,
    Heartbeat,
    Hello,
    Open,
    Refusal,
    Standing,
)  # fmt: skip
from rt import Publisher, WriterSettings
from rt.errors import FlushTimeout, Misuse, Refused
from rt.format.manifest import MERGED, SESSION, LogIdentity
from rt.log.notify.confirmations import ConfirmationsFile
from rt.net.authority.certificates import issue
from rt.net.authority.identity import CertificateRole
from rt.net.tls import Contexts, accept, client_context, connect
from rt.node.agree.catch_up import is_whole
from rt.position import Position
from tests.replicator_host import only

SMALL = WriterSettings(file_bytes_max=64 * 1024)


class Site:
    """A node that can be stopped and started again on its port, and the roots around it."""

    def __init__(self, certs, top):
        self.certs, self.top, self.port = certs, str(top), 0
        self.start()

    def start(self, streams=Streams, **options):
        self.host = DiskHost(os.path.join(self.top, "node"))
        address, contexts = ("localhost", self.port), self.certs.server()
        self.server = Server(address, contexts, only(self.host, streams), **options)
        self.port = self.server.address[1]
        self.node = ("localhost", self.port)
        self.server.start()

    def stop(self):
        self.server.stop()
        self.host.stop()

    def restart(self, **patience):
        """Start it again, with other deadlines."""
        self.stop()
        self.start(patience=Patience(**patience))

    def path(self, *names):
        return os.path.join(self.top, *names)

    def puller(self, contexts, nodes=None, **settings):
        asks = HostEnd(self.host)
        return PullClient(
            self.path("sub"), STREAM, nodes or [self.node], contexts, asks=asks, **settings
        )


@pytest.fixture
def site(certs, tmp_path):
    """Return a running node, which is stopped after the test."""
    site = Site(certs, tmp_path)
    yield site
    site.stop()


class Dialling:
    """The TLS contexts of a peer; `before` is called when one is taken for a connection."""

    def __init__(self, contexts, before=lambda: None):
        self._contexts, self.before = contexts, before

    def __getattr__(self, name):
        return getattr(self._contexts, name)

    def current(self):
        self.before()
        return self._contexts.current()


def can_connect(address):
    """Return whether a server listens."""
    try:
        socket.create_connection(address).close()
    except ConnectionRefusedError:
        return False
    return True


def session(site, name, messages=300, settings=SMALL):
    """Publish some messages in a run of their own."""
    with Publisher(site.path("pub"), stream=STREAM, session=name, writer=settings) as publisher:
        for number in range(messages):
            publisher.publish(b"%06d" % number + b"x" * 994)


def assert_pushed(site, *names):
    """Check that the node has the files and the history of these sessions."""
    for name in names:
        ours, theirs = site.path("pub", STREAM, name), site.path("node", STREAM, "in", name)
        assert log_bytes(theirs) == log_bytes(ours)
        lines = manifest_lines(ours)  # that a file has ended comes last, and is not acknowledged
        assert eventually(lambda theirs=theirs, lines=lines: manifest_lines(theirs) == lines)


def test_sessions_with_rolls_and_runs_arrive_as_they_are(site, publisher):
    """The usual case: several sessions of several runs each, over one connection."""
    for name in ("jfk", "ewr", "lga"):
        session(site, name)
        session(site, name, 10)
    client = PushClient(site.path("pub"), STREAM, [site.node], publisher)
    client.start()
    assert client.stop(drain_s=60)
    assert len(log_bytes(site.path("pub", STREAM, "jfk"))) >= 3
    assert_pushed(site, "jfk", "ewr", "lga")


@pytest.mark.parametrize("has_manifest", [False, True])
def test_a_session_that_was_never_made_whole_holds_up_no_drain(site, publisher, has_manifest):
    """Otherwise a publisher killed at its first call would make every later drain hang."""
    session(site, "jfk")
    os.makedirs(site.path("pub", STREAM, "lga"))
    if has_manifest:
        open(site.path("pub", STREAM, "lga", "manifest"), "x").close()
    client = PushClient(site.path("pub"), STREAM, [site.node], publisher)
    client.start()
    assert client.stop(drain_s=60)
    assert_pushed(site, "jfk")


def test_a_session_that_appears_later_is_found(site, publisher):
    """Publishers come and go; the push process is not restarted for them."""
    client = PushClient(site.path("pub"), STREAM, [site.node], publisher, sessions=["j*"])
    client.start()
    session(site, "jfk", 20)
    session(site, "ewr", 20)
    assert eventually(lambda: [each.session for each in client.status()] == ["jfk"])
    assert client.stop(drain_s=60)
    assert_pushed(site, "jfk")
    assert not os.path.exists(site.path("node", STREAM, "in", "ewr"))


def test_sessions_are_found_and_followed_where_there_are_no_events(site, publisher):
    """A network file system sends no notifications, so the watcher polls."""
    client = PushClient(site.path("pub"), STREAM, [site.node], publisher, watch="poll")
    client.start()
    with Publisher(site.path("pub"), stream=STREAM, session="jfk") as writer:
        for _ in range(3):
            writer.publish(b"AA1")
            writer.flush("received", 60)
    assert client.stop(drain_s=60)
    assert_pushed(site, "jfk")


def test_a_session_is_found_while_another_never_rests(site, publisher):
    """A flood of notifications must not delay the sweep that finds what none announced."""
    client = PushClient(site.path("pub"), STREAM, [site.node], publisher)
    client.start()
    done = threading.Event()

    def flood():
        with Publisher(site.path("pub"), stream=STREAM, session="jfk") as writer:
            while not done.is_set():
                writer.publish(b"x")
                time.sleep(0.0001)

    thread = threading.Thread(target=flood)
    thread.start()
    try:
        session(site, "ewr", 20)
        copy = site.path("node", STREAM, "in", "ewr")
        assert eventually(lambda: os.path.exists(copy))
    finally:
        done.set()
        thread.join()
    assert client.stop(drain_s=60)
    assert_pushed(site, "jfk", "ewr")


def hang_up(listener, dialled):
    """Accept each connection and close it, until the listener is shut."""
    with suppress(OSError):
        while True:
            listener.accept()[0].close()
            dialled.append(time.monotonic())


def test_a_dead_node_is_not_dialled_for_every_message(site, publisher):
    """Updates wake a connection; they must not cut short the pause before the next attempt."""
    dialled, listener = [], socket.create_server(("localhost", 0))
    threading.Thread(target=hang_up, args=(listener, dialled), daemon=True).start()
    client = PushClient(site.path("pub"), STREAM, [listener.getsockname()], publisher)
    with listener, Publisher(site.path("pub"), stream=STREAM, session="jfk") as writer:
        client.start()
        assert eventually(lambda: len(dialled) >= 4)
        began, before = time.monotonic(), len(dialled)
        for _ in range(500):
            writer.publish(b"x")
            time.sleep(0.001)
        tries, seconds = len(dialled) - before, time.monotonic() - began
        client.stop()
        shut(listener)
    assert tries <= 3 + seconds / 0.1


def test_a_publisher_learns_how_far_its_messages_have_come(site, publisher):
    """`flush("received")` returns once a node has synced, and not before there is one."""
    with Publisher(site.path("pub"), stream=STREAM, session="jfk") as writer:
        writer.publish(b"AA1")
        with pytest.raises(FlushTimeout):
            writer.flush("received", 0.05)
        client = PushClient(site.path("pub"), STREAM, [site.node], publisher)
        client.start()
        confirmed = writer.flush("replicated", 60)
        assert ConfirmationsFile(site.path("pub", STREAM, "jfk")).read().received == (
            confirmed.position
        )
    client.stop(drain_s=60)


def test_confirmations_are_noted_once_the_disk_has_room_again(site, publisher, monkeypatch):
    """The session may be quiet: no other acknowledgement comes, and a flush would hang."""

    def is_full(_file, _confirmations):
        raise OSError(28, "No space left on device")

    with Publisher(site.path("pub"), stream=STREAM, session="jfk") as writer:
        monkeypatch.setattr(ConfirmationsFile, "write", is_full)
        writer.publish(b"AA1")
        end = writer.flush("synced", 60).position
        client = PushClient(site.path("pub"), STREAM, [site.node], publisher)
        client.start()
        assert eventually(lambda: client.status()[0].durable == end)
        assert eventually(lambda: "cannot be noted: no space" in client.status()[0].error)
        monkeypatch.undo()
        writer.flush("replicated", 60)
        assert eventually(lambda: not client.status()[0].error)
    client.stop(drain_s=60)


def test_a_node_that_restarts_while_data_flows_gets_all_of_it_once(site, publisher):
    """The node restarts ten times under a publisher that never stops."""
    client = PushClient(site.path("pub"), STREAM, [site.node], publisher)
    client.start()
    with Publisher(site.path("pub"), stream=STREAM, session="jfk", writer=SMALL) as writer:
        for _ in range(10):
            for number in range(200):
                writer.publish(b"%06d" % number + b"x" * 994)
            site.stop()
            site.start()
    assert client.stop(drain_s=60)
    assert_pushed(site, "jfk")


def test_a_restarted_pusher_continues_where_the_nodes_copy_ends(site, publisher):
    """Neither side remembers anything of the other; the node's copy is the memory."""
    for _ in range(5):
        session(site, "jfk", 100)
        client = PushClient(site.path("pub"), STREAM, [site.node], publisher)
        client.start()
        time.sleep(0.05)
        client.stop()
    client = PushClient(site.path("pub"), STREAM, [site.node], publisher)
    client.start()
    assert client.stop(drain_s=60)
    assert_pushed(site, "jfk")


def test_a_session_of_another_log_is_refused_and_the_others_go_on(site, publisher):
    """A recreated directory is refused, not merged over, and no other session suffers."""
    session(site, "jfk", 5)
    client = PushClient(site.path("pub"), STREAM, [site.node], publisher)
    client.start()
    assert client.stop(drain_s=60)
    before = log_bytes(site.path("node", STREAM, "in", "jfk"))
    os.rename(site.path("pub", STREAM, "jfk"), site.path("old"))
    session(site, "jfk", 9)
    session(site, "ewr", 9)
    client = PushClient(site.path("pub"), STREAM, [site.node], publisher)
    client.start()
    assert eventually(lambda: any("another log" in each.error for each in client.status()))
    other = site.path("node", STREAM, "in", "ewr")
    ours = log_bytes(site.path("pub", STREAM, "ewr"))
    assert eventually(lambda: os.path.exists(other) and log_bytes(other) == ours)
    assert not client.stop(drain_s=0.2)
    assert log_bytes(site.path("node", STREAM, "in", "jfk")) == before
    assert_pushed(site, "ewr")


def merged(site, names=("jfk",)):
    """Merge what was pushed, one file for each session."""
    log = Merge(site.host.out)
    for name in names:
        for data in log_bytes(site.path("pub", STREAM, name)).values():
            log.add(name, data)
        log.roll()
    return log


def test_a_subscribers_copy_equals_the_nodes_across_restarts_of_both(site, subscriber):
    """However often either side is cut off, the copy ends as the node's log, byte for byte."""
    session(site, "jfk", 200)
    session(site, "ewr", 200)
    log = merged(site, ("jfk", "ewr"))
    for _ in range(4):
        client = site.puller(subscriber)
        client.start()
        time.sleep(0.03)
        site.stop()
        site.start()
        client.stop()
    client = site.puller(subscriber)
    client.start()
    assert client.wait_caught_up(60)
    for data in log_bytes(site.path("pub", STREAM, "jfk")).values():
        log.add("jfk", data)
    site.host.ring()
    assert eventually(lambda: client.status().position == log.appender.end)
    client.stop()
    assert log_bytes(site.path("sub", STREAM, "out")) == log_bytes(site.host.out)
    assert manifest_lines(site.path("sub", STREAM, "out")) == manifest_lines(site.host.out)


def test_a_puller_says_when_the_node_has_less_than_the_copy(site, subscriber, caplog):
    """Seed 21558: each node waited for what the others had, and one had more than all."""
    session(site, "jfk", 200)
    log = merged(site)
    shutil.copytree(site.host.out, site.path("earlier"))
    log.add("jfk", log_bytes(site.path("pub", STREAM, "jfk")).popitem()[1])
    log.roll()
    client = site.puller(subscriber)
    client.start()
    assert client.wait_caught_up(60)
    assert not client.status().is_ahead
    client.stop()
    site.stop()
    shutil.rmtree(site.host.out)
    shutil.move(site.path("earlier"), site.host.out)
    site.start()
    client = site.puller(subscriber)
    client.start()
    caplog.set_level(logging.INFO, "replicator")
    assert eventually(lambda: client.status().is_ahead)
    assert eventually(lambda: any("it is behind, and another" in each for each in caplog.messages))
    assert not [each for each in caplog.records if each.levelno >= logging.WARNING], caplog.messages
    status = client.status()
    here = status.next_place
    for begin, ledger_end, done in ((0, here, True), (here, 0, False), (0, here + 1, False)):
        assert is_whole(status, Position(begin), Position(ledger_end)) is done
    client.stop()


def test_a_puller_goes_to_the_next_node_when_one_is_dead(site, subscriber):
    """Any node will do, so a dead one costs one attempt."""
    session(site, "jfk", 20)
    merged(site)
    with socket.create_server(("localhost", 0)) as free:
        dead = ("localhost", free.getsockname()[1])
    client = site.puller(subscriber, [dead, site.node])
    client.start()
    assert client.wait_caught_up(60)
    assert client.status().node == f"localhost:{site.port}"
    client.stop()


def test_the_reason_of_a_copy_that_ended_is_not_erased_by_a_connection(site, subscriber):
    """An `rt pull` that ended without a reason would be started again, on the same disk."""
    merged(site)
    failing, dialled = threading.Event(), threading.Event()

    def fail(_log):
        if failing.is_set():
            raise OSError(5, "Input/output error")

    def fail_meanwhile():
        failing.set()
        assert eventually(lambda: not client.running)
        dialled.set()

    late = Dialling(subscriber)
    client = site.puller(late, sweep=fail)
    client.start()
    assert eventually(lambda: client.status().has_all)
    late.before = fail_meanwhile
    site.stop()
    site.start()
    assert dialled.wait(60)
    assert not client.running
    assert client.status().error == (
        f"{site.path('sub', STREAM, 'out')}: input/output error; this copy has ended"
    )
    client.stop()


def test_one_directory_has_one_puller(site, subscriber):
    """Two pullers would append to the same files."""
    client = site.puller(subscriber)
    with pytest.raises(Misuse, match="already"):
        site.puller(subscriber)
    client.stop()
    site.puller(subscriber).stop()


ROLES = {
    "a publisher of jfk": (CertificateRole.PUBLISHER, {"sessions": ["jfk"]}),
    "a publisher of e*": (CertificateRole.PUBLISHER, {"sessions": ["e*"]}),
    "a subscriber of flights": (CertificateRole.SUBSCRIBER, {"streams": ["flights"]}),
    "a subscriber of trains": (CertificateRole.SUBSCRIBER, {"streams": ["trains"]}),
    "a node": (CertificateRole.NODE, {}),
}
VERBS = {
    "push jfk": (PUSH, "jfk"),
    "push ewr": (PUSH, "ewr"),
    "push lga": (PUSH, "lga"),
    "push ../jfk": (PUSH, "../jfk"),
    "pull": (PULL, ""),
}
ALLOWED = {
    ("a publisher of jfk", "push jfk"), ("a publisher of e*", "push ewr"),
    ("a subscriber of flights", "pull"), ("a node", "pull"),
    ("a node", "push jfk"), ("a node", "push ewr"), ("a node", "push lga"),  # it relays
}  # fmt: skip


@pytest.fixture(scope="module")
def roles(certs):
    """Return a client context for each of the roles."""
    return {
        role: Contexts(issue(certs.directory, f"r{place}", kind, **granted), client_context)
        for place, (role, (kind, granted)) in enumerate(ROLES.items())
    }


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("role", ROLES)
def test_a_certificate_grants_what_it_says_and_nothing_else(site, roles, role, verb, caplog):
    """A certificate must not open anything that is granted to another."""
    caplog.set_level(logging.WARNING)
    session(site, "jfk", 1)
    merged(site)
    direction, name = VERBS[verb]
    sock, _ = connect(site.node, roles[role].current())
    sock.sendall(encode(Hello(VERSION, VERSION, direction, STREAM, "test")))
    if name:
        sock.sendall(encode(Open(0, LogIdentity(SESSION, STREAM, name, "a" * 32, 1))))
    answer = first_answer(sock)
    sock.close()
    if (role, verb) in ALLOWED:
        assert isinstance(answer, Standing if name else Open)
    else:
        assert isinstance(answer, Refusal)
        pushes = ROLES[role][0] is not CertificateRole.SUBSCRIBER and direction == PUSH
        assert answer.code == (("name" if "/" in name else "session") if pushes else "role")
        assert eventually(lambda: any(answer.words in each.message for each in caplog.records))
        assert site.host.inboxes == {}
        assert not os.path.exists(site.host.root)


@pytest.mark.parametrize(("granted", "code"), [(["jfk"], "session"), (["jfk", "pair"], None)])
def test_a_group_has_to_be_granted_as_a_session_is(site, certs, granted, code):
    """A member of a group decides which numbers of the other members are repeats."""
    sock, _ = connect(site.node, certs.publisher(f"pair-{len(granted)}", granted).current())
    sock.sendall(encode(Hello(VERSION, VERSION, PUSH, STREAM, "test")))
    sock.sendall(encode(Open(0, LogIdentity(SESSION, STREAM, "jfk", "a" * 32, 1, "pair"))))
    answer = first_answer(sock)
    sock.close()
    assert getattr(answer, "code", None) == code
    assert code is None or "'pair'" in answer.words


@pytest.mark.parametrize(
    ("hello", "code"),
    [
        (Hello(VERSION + 1, 9, PUSH, STREAM, "future"), "version"),
        (Hello(1, 1, PUSH, STREAM, "past"), "version"),
        (Hello(VERSION, VERSION, PUSH, "trains", "lost"), "stream"),
        (Hello(1, 7, PULL, STREAM, "wrong"), "role"),
    ],
)
def test_a_hello_that_does_not_fit_is_refused_with_a_code(site, publisher, hello, code):
    """Programs of different versions and streams meet every day; both logs say which."""
    sock, _ = connect(site.node, publisher.current())
    sock.sendall(encode(hello))
    answer = first_answer(sock)
    assert (answer.channel, answer.code) == (CONNECTION, code)
    sock.close()


@pytest.mark.parametrize(
    ("theirs", "common"), [((2, 2), 2), ((1, 2), 2), ((2, 9), 3), ((3, 9), 3), ((1, 3), 3)]
)
def test_both_sides_settle_on_the_newest_version_they_share(theirs, common):
    """A release speaks its own version and the one before, so that an update needs no halt."""
    assert common_version(Hello(*theirs, PUSH, STREAM, "rt 9"), 2, 3) == common
    assert common_version(Hello(2, 3, PUSH, STREAM, "rt 9"), *theirs) == common  # the other side


@pytest.mark.parametrize("theirs", [(1, 1), (4, 5)])
def test_sides_without_a_common_version_say_what_each_speaks(theirs):
    """The one sentence from which an operator sees what to update."""
    with pytest.raises(Refused, match="this side speaks versions 2 to 3 of the protocol") as caught:
        common_version(Hello(*theirs, PUSH, STREAM, "rt 9"), 2, 3)
    assert caught.value.code == "version"
    assert f"the other version{'s' if theirs[0] < theirs[1] else ''} {theirs[0]}" in str(
        caught.value
    )


@pytest.mark.parametrize("log", ["another stream", "a merged log", "a line of ours"])
def test_a_log_of_another_kind_or_stream_is_not_taken(site, publisher, log, caplog):
    """A mistaken root directory must not become a session of this stream."""
    identity = {
        "another stream": LogIdentity(SESSION, "trains", "jfk", "a" * 32, 1),
        "a merged log": LogIdentity(MERGED, STREAM, "jfk", "a" * 32, 1),
        "a line of ours": LogIdentity("\n2026 CRITICAL", STREAM, "jfk", "a" * 32, 1),
    }[log]
    sock, _ = connect(site.node, publisher.current())
    sock.sendall(encode(Hello(VERSION, VERSION, PUSH, STREAM, "test")) + encode(Open(0, identity)))
    assert first_answer(sock).code == "stream"
    assert eventually(lambda: "is wanted, not a" in caplog.text)
    assert not any("\n" in each.message for each in caplog.records)
    sock.close()


@pytest.mark.parametrize("restarted", [False, True])
def test_a_file_without_a_frame_holds_up_no_drain(site, publisher, restarted):
    """A publisher killed before the first frame of its run leaves one."""
    session(site, "jfk", 5)
    with open(site.path("pub", STREAM, "jfk", "log.1.0"), "xb"):
        pass
    if restarted:
        session(site, "jfk", 0)  # which says that the file has ended
    client = PushClient(site.path("pub"), STREAM, [site.node], publisher)
    client.start()
    assert eventually(client.drained)
    client.stop()
    assert_pushed(site, *(["jfk"] if restarted else []))


def test_two_connections_do_not_fill_one_session(site, publisher):
    """The second is refused as busy, retries, and gets the session when the first has gone."""
    session(site, "jfk", 5)
    first = PushClient(site.path("pub"), STREAM, [site.node], publisher)
    first.start()
    assert eventually(first.drained)
    second = PushClient(site.path("pub"), STREAM, [site.node], publisher)
    second.start()
    assert eventually(lambda: any("being pushed" in each.error for each in second.status()))
    first.stop()
    assert eventually(second.drained)
    second.stop()


@pytest.fixture
def hasty(site):
    """Give up a peer that does not greet within half a second."""
    site.restart(greeting_s=0.5)


def test_plaintext_and_silence_end_at_the_deadline_and_others_are_served(
    site, publisher, hasty, caplog
):
    """A peer that never finishes its handshake holds a thread for 10 seconds, and nothing else."""
    silent, _ = connect(site.node, publisher.current())  # a handshake, and then no Hello
    site.server.use_limits(ServerLimits(handshake_s=0.5))
    plain = [socket.create_connection(site.node) for _ in range(20)]
    for sock in plain[:10]:
        sock.sendall(b"GET / HTTP/1.1\r\n\r\n")
    session(site, "jfk", 5)
    client = PushClient(site.path("pub"), STREAM, [site.node], publisher)
    client.start()
    assert client.stop(drain_s=60)
    assert eventually(lambda: site.server.connections == 0)
    assert any("plain HTTP" in each.message for each in caplog.records)
    assert any("no Hello came" in each.message for each in caplog.records)
    for sock in (*plain, silent):
        sock.close()


def send_slowly(sock, data):
    """Send a byte every tenth of a second."""
    for place in range(len(data)):
        sock.sendall(data[place : place + 1])
        time.sleep(0.1)


def test_a_greeting_that_trickles_in_is_cut_off(site, publisher, hasty):
    """A deadline for the whole greeting, not for each byte, stops a slow loris."""
    sock, _ = connect(site.node, publisher.current())
    hello = encode(Hello(VERSION, VERSION, PUSH, STREAM, "slow" * 16))  # takes ten seconds
    with pytest.raises((OSError, ssl.SSLError)):
        send_slowly(sock, hello)
    sock.close()


def test_a_peer_that_falls_silent_is_dropped(site, publisher):
    """Half-open links end."""
    site.restart(dead_s=0.3)
    silent, _ = connect(site.node, publisher.current())
    silent.sendall(encode(Hello(VERSION, VERSION, PUSH, STREAM, "silent")))
    assert silent.recv(1)
    assert eventually(lambda: site.server.connections == 0)
    silent.close()


def test_both_ends_of_an_idle_connection_send_heartbeats(
    site, publisher, subscriber, monkeypatch, caplog
):
    """Each would take the other for dead."""
    caplog.set_level(logging.INFO)
    beats, send = Counter(), Link.send

    def sent(link, data):
        beats[id(link)] += data == encode(Heartbeat())
        send(link, data)

    monkeypatch.setattr(link_module, "PATIENCE", Patience(heartbeat_s=0.05))
    monkeypatch.setattr(Link, "send", sent)
    session(site, "jfk", 5)
    merged(site)
    clients = [
        PushClient(site.path("pub"), STREAM, [site.node], publisher),
        site.puller(subscriber),
    ]
    for client in clients:
        client.start()
    assert eventually(lambda: sum(count > 3 for count in [*beats.values()]) == 4)
    assert caplog.text.count("connected") == 2, "one had to connect again"
    for client in clients:
        client.stop()


@pytest.mark.parametrize("megabytes", [4, 64])
def test_memory_does_not_grow_with_the_backlog(site, publisher, subscriber, megabytes):
    """A week of backlog after an outage must fit where a second of it does."""
    with Publisher(site.path("pub"), stream=STREAM, session="jfk") as writer:
        for _ in range(megabytes):
            writer.publish_many([b"x" * 1024] * 1024)
    merged(site)
    tracemalloc.start()
    push = PushClient(site.path("pub"), STREAM, [site.node], publisher)
    pull = site.puller(subscriber)
    push.start(), pull.start()
    assert push.stop(drain_s=60)
    assert pull.wait_caught_up(60)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    pull.stop()
    assert_pushed(site, "jfk")
    assert peak < 10 << 20  # of both sides of both connections


def test_a_connection_that_gets_no_thread_is_hung_up_on_and_the_next_is_served(
    site, publisher, caplog
):
    """A limit of threads is reached by surprise; the node must go on accepting afterwards."""
    session(site, "jfk")
    before = threading.stack_size(1 << 46)  # more than there is, for any new thread
    try:
        with socket.create_connection(site.node):
            assert eventually(lambda: "can't start new thread" in caplog.text)
    finally:
        threading.stack_size(before)
    client = PushClient(site.path("pub"), STREAM, [site.node], publisher)
    client.start()
    assert client.stop(drain_s=60)
    assert site.server.connections <= 1
    assert_pushed(site, "jfk")


def test_a_connection_made_during_a_stop_ends_with_it(site, publisher):
    """Otherwise it would never be ended, and the client would wait for a dead server."""
    agreed, stopping = threading.Event(), threading.Event()

    class Slow(Streams):
        """Learns what a connection is about once the server is being stopped."""

        def speaking(self, protocol):
            agreed.set()
            assert stopping.wait(60)
            return super().speaking(protocol)

    site.stop()
    site.start(Slow)
    sock, _ = connect(site.node, publisher.current())
    assert agreed.wait(60)
    stop = threading.Thread(target=site.server.stop)
    stop.start()
    assert eventually(lambda: not can_connect(site.node))
    stopping.set()
    with sock:
        assert not sock.recv(1)
    stop.join()
    assert eventually(lambda: not site.server.connections)


def test_a_puller_that_is_stopped_while_it_dials_releases_its_directory_at_once(site, subscriber):
    """A machine that is off does not answer for ten seconds, and nothing needs its answer."""
    before = set(os.listdir("/proc/self/fd"))
    with socket.create_server(("localhost", 0)) as deaf:
        client = site.puller(subscriber, [deaf.getsockname()])
        client.start()
        plain, _ = deaf.accept()
        assert plain.recv(1 << 20)
        assert client.stop(60)
        site.puller(subscriber).stop()
        plain.setblocking(False)
        with pytest.raises(BlockingIOError):  # the dial is still under way
            plain.recv(1)
        plain.close()
    assert eventually(lambda: set(os.listdir("/proc/self/fd")) <= before)


def test_a_connection_that_is_made_after_its_puller_was_stopped_is_closed(site, subscriber, caplog):
    """Nobody is left who would use it, or close it."""
    dialling, stopped, made = threading.Event(), threading.Event(), []

    class Kept(ssl.SSLSocket):
        """A connection that no collector closes."""

        def __new__(cls, *args, **options):
            made.append(super().__new__(cls, *args, **options))
            return made[-1]

    def await_stop():
        dialling.set()
        assert stopped.wait(60)

    def keeping(*files):
        context = client_context(*files)
        context.sslsocket_class = Kept
        return context

    client = site.puller(Dialling(Contexts(subscriber.files, keeping), await_stop))
    client.start()
    assert dialling.wait(60)
    assert client.stop(60)
    stopped.set()
    assert eventually(lambda: made and made[0].fileno() < 0)


def test_a_pusher_that_is_stopped_while_it_dials_leaves_no_descriptor(site, publisher):
    """A program that keeps trying a node that is off would run out of them."""
    before = set(os.listdir("/proc/self/fd"))
    with socket.create_server(("localhost", 0)) as deaf:
        client = PushClient(site.path("pub"), STREAM, [deaf.getsockname()], publisher)
        client.start()
        plain, _ = deaf.accept()
        client.stop(wait_s=0.01)
        plain.close()
    assert eventually(lambda: set(os.listdir("/proc/self/fd")) <= before)


@pytest.mark.parametrize("manifest", [b"", b"half a line", b"no line\n"])
def test_a_session_that_cannot_be_shipped_costs_no_descriptor_at_each_look(
    site, publisher, manifest
):
    """A crash while a session is made, on a full disk, leaves a manifest without a line."""
    os.makedirs(site.path("pub", STREAM, "jfk"))
    with open(site.path("pub", STREAM, "jfk", "manifest"), "wb") as file:
        file.write(manifest)
    client = PushClient(site.path("pub"), STREAM, [site.node], publisher, refused_retry_s=0.0)
    client.start()
    assert eventually(lambda: site.server.connections)
    for number in range(20):
        Publisher(site.path("pub"), stream=STREAM, session=f"s{number}").close()  # it looks at all
        assert eventually(lambda number=number: len(client.status()) == 2 + number)
    client.stop()
    opened = []
    for fd in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # another thread has closed it
            opened.append(os.readlink(f"/proc/self/fd/{fd}"))
    assert site.path("pub", STREAM, "jfk", "manifest") not in opened


def test_stop_ends_all_threads_at_once(site, publisher, subscriber):
    """SIGTERM is answered before an orchestrator sends SIGKILL."""

    def threads():  # the server's loop and its pool go on
        return [each for each in threading.enumerate() if not each.name.startswith("pool")]

    before = len(threads())
    session(site, "jfk", 50)
    merged(site)
    push = PushClient(site.path("pub"), STREAM, [site.node, ("localhost", 1)], publisher)
    pull = site.puller(subscriber)
    push.start(), pull.start()
    assert pull.wait_caught_up(60)
    began = time.monotonic()
    push.stop(), pull.stop()
    assert time.monotonic() - began < 30
    assert eventually(lambda: len(threads()) <= before)


def test_a_peer_that_reads_nothing_does_not_delay_a_stop(certs, site, publisher, subscriber):
    """A stopped subscriber, or a frozen machine, must not keep others from ending."""
    with Publisher(site.path("pub"), stream=STREAM, session="jfk") as writer:
        writer.publish_many([b"x" * 1024] * 30_000)
    merged(site)
    reader, _ = connect(site.node, subscriber.current())
    reader.sendall(encode(Hello(VERSION, VERSION, PULL, STREAM, "frozen")))
    reader.sendall(encode(Standing(0, Position(0))))
    with socket.create_server(("localhost", 0)) as listener:
        push = PushClient(site.path("pub"), STREAM, [listener.getsockname()], publisher)
        push.start()
        node, _ = accept(listener.accept()[0], certs.server().current())
        node.sendall(encode(Hello(VERSION, VERSION, PUSH, STREAM, "frozen")))
        node.sendall(encode(Standing(0, Position(0))))
        assert eventually(lambda: push.status()[0].position > 0)
        time.sleep(0.3)
        began = time.monotonic()
        push.stop()
        site.server.stop()
        assert time.monotonic() - began < 20  # two each, on a machine that is busy
        assert site.server.connections == 0
        assert not push.status()[0].connected
    node.close(), reader.close()
