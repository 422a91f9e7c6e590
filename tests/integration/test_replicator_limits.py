"""Limits of what peers can make a node hold."""

import socket
import ssl
import time
from contextlib import suppress
from itertools import pairwise

import pytest
from logs import make_frame
from replicator_host import STREAM, Certificates, DiskHost, eventually, first_answer

from replicator.limits.admission import ServerLimits
from replicator.push.client import PushClient
from replicator.serve.server import Server
from replicator.wire.backoff import FIRST_S
from replicator.wire.codec import VERSION, encode
from replicator.wire.dialer import Destination, Dialer
from replicator.wire.large_messages import LargeMessages
from replicator.wire.link import Link
from replicator.wire.messages import (
    PULL,
    PUSH,
    Ack,
    ArchivedNotice,
    Data,
    Heartbeat,
    Hello,
    Open,
    Refusal,
    RolledNotice,
    Standing,
)
from rt import Publisher
from rt.errors import PeerError
from rt.format.manifest import MERGED, SESSION, Archived, LogIdentity, Rolled
from rt.limits import MIB, READ_BYTES
from rt.log.files.disk import OsDisk
from rt.log.files.identity import new_identity
from rt.log.write.appender import Appender
from rt.net.loop.event_loop import EventLoop
from rt.net.tls import connect
from rt.position import START, Position
from tests.links import arrives
from tests.replicator_host import only


def refusal(link):
    """Return the refusal that a peer sends, ignoring what it sends before."""
    while True:
        for message in link.receive():
            if isinstance(message, Refusal):
                return message
        arrives(link, 60)


def test_unfinished_large_messages_are_refused_beyond_a_bound_and_others_are_served(tmp_path):
    """With one certificate 16 connections pinned 875 MB; now each has to wait for the others."""
    certs = Certificates(str(tmp_path / "ca"))
    publisher, host = certs.publisher(), DiskHost(str(tmp_path / "node"))
    server = Server(("localhost", 0), certs.server(), only(host))
    server.start()
    server.memory = LargeMessages(6 << 20)
    body = b"".join(make_frame(0, [bytes(4 << 20)]).parts)
    data = encode(Data(0, Position(0), memoryview(body)))
    answers, socks = [], []
    for number in range(4):
        sock, _ = connect(server.address, publisher.current())
        socks.append(sock)
        sock.sendall(encode(Hello(VERSION, VERSION, PUSH, STREAM, "large")))
        sock.sendall(encode(Open(0, LogIdentity(SESSION, STREAM, f"s{number}", "a" * 32, 1))))
        with suppress(OSError):
            sock.sendall(data[: 2 << 20])
        if not number:
            assert eventually(lambda: server.memory.held.total())
            continue
        answers.append(first_answer(sock, (Hello, Open, Standing, Ack)).code)
    assert answers == ["memory"] * 3
    with Publisher(str(tmp_path / "pub"), stream=STREAM, session="jfk") as writer:
        writer.publish(bytes(4 << 20))
    client = PushClient(str(tmp_path / "pub"), STREAM, [server.address], certs.publisher("jfk"))
    client.start()
    assert client.stop(drain_s=60)
    for sock in socks:
        sock.close()
    assert eventually(lambda: not server.memory.held.total())
    server.stop(), host.stop()


def test_a_subscriber_has_no_frames_to_send(tmp_path):
    """128 connections of one, with an unfinished message of 1 MB each, took 270 MB of a node."""
    certs = Certificates(str(tmp_path / "ca"))
    host = DiskHost(str(tmp_path / "node"))
    server = Server(("localhost", 0), certs.server(), only(host))
    server.start()
    sock, _ = connect(server.address, certs.subscriber().current())
    link = Link(sock, "node")
    try:
        link.send(encode(Hello(VERSION, VERSION, PULL, STREAM, "hoarder")))
        link.expect(Hello)
        link.send(encode(Data(0, START, memoryview(bytes(1 << 20))))[:100])
        assert refusal(link).words == "a sink does not send messages of type 4"
    finally:
        link.close()
        server.stop(), host.stop()


@pytest.mark.parametrize("progresses", [False, True])
def test_only_progress_shortens_the_pause_before_the_next_dial(tmp_path, progresses):
    """259 reconnects in 30 s: each connection was made, acknowledged what was known, and ended."""
    certs = Certificates(str(tmp_path / "ca"))
    publisher, host = certs.publisher(), DiskHost(str(tmp_path / "node"))
    server = Server(("localhost", 0), certs.server(), only(host))
    server.start()
    dialled = []

    class Breaks:
        """Ends each connection at once."""

        def is_wanted(self):
            """Always."""
            return True

        def avoids(self, _node):
            """There is only one."""
            return False

        def begin(self, _link):
            """Break."""
            dialled.append(time.monotonic())
            if progresses:
                dialer.progressed()
            raise PeerError("it broke")

        def end(self):
            """Nothing is held."""

    loop = EventLoop()
    dialer = Dialer(Destination([server.address], publisher, PUSH, STREAM), Breaks())
    dialer.start(loop)
    least_s = FIRST_S * 2**4 / 2  # half of a pause is random

    def shortest_s():
        return min(later - earlier for earlier, later in pairwise(dialled[4:]))

    if progresses:  # a busy machine may prolong some
        assert eventually(lambda: len(dialled) >= 16 and shortest_s() < least_s)
    else:
        assert eventually(lambda: len(dialled) >= 6)
        assert shortest_s() >= least_s
    dialer.stop()
    assert dialer.join(60)
    loop.stop(), server.stop(), host.stop()


def test_one_name_is_held_to_its_bytes_a_second_and_no_other_is(tmp_path, caplog):
    """One that ships a backlog must not take the line from the others; the log names it once."""
    certs = Certificates(str(tmp_path / "ca"))
    host = DiskHost(str(tmp_path / "node"))
    limits = ServerLimits(identity_bytes_s=MIB)
    server = Server(("localhost", 0), certs.server(), only(host), limits)
    server.start()
    took_s = {}
    try:
        # of five seconds one was saved up, and the last 1.7 are paid when all has arrived
        for name, size in (("greedy", 5 * MIB), ("modest", 1000)):
            with Publisher(str(tmp_path / name), stream=STREAM, session=name) as writer:
                for _ in range(3):
                    writer.publish(bytes(size // 3))
            began = time.monotonic()
            client = PushClient(
                str(tmp_path / name), STREAM, [server.address], certs.publisher(name)
            )
            client.start()
            assert client.stop(drain_s=60)
            took_s[name] = time.monotonic() - began
    finally:
        server.stop(), host.stop()
    assert took_s["greedy"] > 1.5
    # that the modest one waited would be in the log
    lines = [each.message for each in caplog.records if "identity_bytes_s" in each.message]
    most = "1.0 MiB (identity_bytes_s) and 10000 messages (identity_messages_s) a second"
    assert lines == [f"publisher greedy is slowed down to {most}"]


class Counted(Server):
    """A server that records what its connections spend."""

    def __init__(self, *given):
        super().__init__(*given)
        self.spent, spend = [], self.admission.spend

        def counting(peer, size, messages):
            self.spent.append(messages)
            return spend(peer, size, messages)

        self.admission.spend = counting


def test_a_reader_that_floods_wakes_no_thread_for_nothing(tmp_path):
    """Four connections of one name woke each other's threads 400 times a second to wait again."""
    certs = Certificates(str(tmp_path / "ca"))
    host = DiskHost(str(tmp_path / "node"))
    Appender(OsDisk(), host.out, new_identity(MERGED, STREAM, MERGED, created_ns=1)).close()
    limits = ServerLimits(identity_messages_s=5000)
    server = Counted(("localhost", 0), certs.server(), only(host), limits)
    server.start()
    acks = encode(Ack(0, *(START,) * 5)) * 8192
    context, socks = certs.subscriber().current(), []
    try:
        for _ in range(4):
            socks.append(connect(server.address, context)[0])
            socks[-1].sendall(encode(Hello(VERSION, VERSION, PULL, STREAM, "x")))
            socks[-1].settimeout(0)
        began_s = time.monotonic()
        while len(server.spent) < 20:
            assert time.monotonic() < began_s + 60
            for sock in socks:
                with suppress(OSError):
                    sock.send(acks)
            time.sleep(0.01)
        spent, passed_s = server.spent.copy(), time.monotonic() - began_s
    finally:
        for sock in socks:
            sock.close()
        server.stop(), host.stop()
    assert 0 not in spent
    # a second was saved up, and each of four may have taken a turn that is not paid yet
    assert sum(spent) < 5000 * (passed_s + 1) + 4 * max(spent)


def test_files_are_counted_as_the_messages_that_they_cost(tmp_path):
    """One name had a thousand sessions begin 62 files each: others waited 8 s to be merged."""
    certs = Certificates(str(tmp_path / "ca"))
    host = DiskHost(str(tmp_path / "node"))
    server = Counted(("localhost", 0), certs.server(), only(host))
    server.start()
    sock, _ = connect(server.address, certs.publisher().current())
    files = [Rolled(Position.of(run, 0, 0), 0, 0, 0, 0, 0, 0) for run in range(12)]
    try:
        sock.sendall(encode(Hello(VERSION, VERSION, PUSH, STREAM, "x")))
        sock.sendall(encode(Open(0, LogIdentity(SESSION, STREAM, "jfk", "a" * 32, 1))))
        sock.sendall(b"".join(encode(RolledNotice(0, each)) for each in files))
        assert eventually(lambda: sum(server.spent) > 2000 * len(files))
    finally:
        sock.close()
        server.stop(), host.stop()


def test_a_session_is_counted_as_the_messages_that_it_costs_and_a_new_one_as_more(tmp_path):
    """A thousand sessions were opened as fast as they came, and again on the next connection."""
    certs = Certificates(str(tmp_path / "ca"))
    host = DiskHost(str(tmp_path / "node"))
    server = Counted(("localhost", 0), certs.server(), only(host))
    server.start()
    frame = b"".join(make_frame(0, [b"x"]).parts)
    offer = encode(Hello(VERSION, VERSION, PUSH, STREAM, "x"))
    offer += encode(Open(0, LogIdentity(SESSION, STREAM, "jfk", "a" * 32, 1)))
    contexts, costs = certs.publisher(), []
    try:
        for _ in range(2):
            server.spent.clear()
            with connect(server.address, contexts.current())[0] as sock:
                sock.sendall(offer + encode(Data(0, START, memoryview(frame))))
                assert eventually(lambda: sum(server.spent) >= 20)
            assert eventually(lambda: not server.connections)
            costs.append(sum(server.spent))
    finally:
        server.stop(), host.stop()
    assert 150 < costs[0] < 200
    assert 20 < costs[1] < 50


def test_what_is_charged_for_messages_ends_a_turn():
    """Others of the name are held back only between two turns."""
    given, link = greeted(encode(Heartbeat()) * 100, 200)
    count = 0
    for _ in link.receive(1000):
        link.charge(99)
        count += 1
    assert count == 10
    assert link.take_passed().messages == 1000
    given.ours.close(), given.theirs.close()


class Given:
    """A TLS connection from which bytes can be read that tests have given."""

    def __init__(self, data, part):
        self.data, self.part = memoryview(data), part
        self.ours, self.theirs = socket.socketpair()

    def read(self, length, space):
        length = min(length, self.part, len(self.data))
        if not length:
            raise ssl.SSLWantReadError
        space[:length], self.data = self.data[:length], self.data[length:]
        return length

    def fileno(self):
        return self.ours.fileno()

    def settimeout(self, _seconds):
        pass

    def pending(self):
        return len(self.data)


def greeted(data, part):
    """Return a connection that gives some bytes in parts, and its link, which has a greeting."""
    given = Given(encode(Hello(VERSION, VERSION, PUSH, STREAM, "test")), READ_BYTES)
    link = Link(given, "test")
    link.expect(Hello)
    link.take_passed()
    given.data, given.part = memoryview(data), part
    link.has_more = True
    return given, link


def received(data, part, **options):
    """Return what a link receives of bytes that come in parts, and how many messages it counts."""
    given, link = greeted(data, part)
    found, count = [], 0
    while given.data or link.has_more:
        if given.data:
            link.has_more = True
        found += link.receive(100, **options)
        count += link.take_passed().messages
    given.ours.close(), given.theirs.close()
    return found, count


@pytest.mark.parametrize("part", [1, 7, 49, 50, 200, 16384])
def test_acknowledgements_that_were_overtaken_are_passed_over_and_counted(part):
    """Only the last of a channel says anything; whatever comes between them is taken in order."""
    acks = [Ack(0, *map(Position, (number,) * 5)) for number in range(0, 800, 8)]
    sent = [*acks, Heartbeat(), *acks, Ack(1, *(START,) * 5), *acks, Heartbeat()]
    data = b"".join(map(encode, sent))
    assert received(data, part) == (sent, len(sent))
    found, count = received(data, part, last_acks=True)
    assert count == len(sent)
    left = iter(sent)
    assert all(each in left for each in found), "in order"
    for place, each in enumerate(sent[:-1]):
        if not isinstance(each, Ack) or not is_overtaken(each, sent[place + 1]):
            assert each in found
    assert len(found) < 20 or part < 1000


def is_overtaken(ack, following):
    """Whether what follows says all that an acknowledgement says."""
    return isinstance(following, Ack) and following.channel == ack.channel


LAST = Position.of(2**19 - 1, 0, 0)
HOSTILE = {
    "data in the last run": (
        {}, Data(0, LAST, memoryview(b"".join(make_frame(LAST, [b"x"]).parts))), "protocol"
    ),
    "an empty file in the last run": (
        {}, RolledNotice(0, Rolled(LAST, 0, 0, 0, 0, 0, 0)), "protocol"
    ),
    "an archived file in the last run": (
        {}, ArchivedNotice(0, Rolled(LAST, 96, 0, 1, 0, 0, 0), Archived(LAST, 0, "merged")),
        "protocol",
    ),
    "an id that leads out of a directory": ({"id": "../../../etc"}, None, "name"),
}  # fmt: skip


@pytest.mark.parametrize("case", HOSTILE)
def test_a_log_that_nothing_could_follow_is_refused(tmp_path, case):
    """After the last run positions end; to open such a copy again was an internal error."""
    changed, message, code = HOSTILE[case]
    certs = Certificates(str(tmp_path / "ca"))
    host = DiskHost(str(tmp_path / "node"))
    server = Server(("localhost", 0), certs.server(), only(host))
    server.start()
    publisher = certs.publisher()
    identity = LogIdentity(SESSION, STREAM, "jfk", changed.get("id", "a" * 32), 1)
    try:
        for _ in range(2):
            sock, _ = connect(server.address, publisher.current())
            sock.sendall(encode(Hello(VERSION, VERSION, PUSH, STREAM, "hostile")))
            sock.sendall(encode(Open(0, identity)))
            if message is not None:
                sock.sendall(encode(message))
            assert first_answer(sock, (Hello, Open, Standing, Ack)).code == code
            sock.close()
    finally:
        server.stop(), host.stop()
