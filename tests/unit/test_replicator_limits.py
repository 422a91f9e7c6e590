"""Limits of what peers can make a node hold."""

import time
from contextlib import suppress

import pytest
from logs import make_frame
from replicator_host import STREAM, Certificates, DiskHost, eventually

from replicator.admission import ServerLimits
from replicator.backoff import FIRST_S
from replicator.dialer import Destination, Dialer
from replicator.large_messages import LargeMessages
from replicator.link import Link
from replicator.messages import (
    PUSH,
    ArchivedNotice,
    Data,
    Hello,
    Open,
    Refusal,
    RolledNotice,
)
from replicator.push import PushClient
from replicator.server import Server
from replicator.streams import only
from replicator.wire import VERSION, encode
from rt import Publisher
from rt.errors import PeerError
from rt.format.manifest import SESSION, Archived, LogIdentity, Rolled
from rt.limits import MIB
from rt.log.watch import Wake
from rt.net.tls import connect
from rt.position import Position


def refusal(link):
    """Return the refusal that a peer sends, whatever it sends before."""
    while True:
        for message in link.receive():
            if isinstance(message, Refusal):
                return message
        link.wait(5)


def test_unfinished_large_messages_are_refused_beyond_a_bound_and_others_are_served(tmp_path):
    """With one certificate 16 connections pinned 875 MB; now each has to wait for the others."""
    certs = Certificates(str(tmp_path / "ca"))
    publisher, host = certs.publisher(), DiskHost(str(tmp_path / "node"))
    server = Server(("localhost", 0), certs.server(), only(host))
    server.start()
    server._large = LargeMessages(6 << 20)
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
            assert eventually(lambda: server._large._taken)
            continue
        wake = Wake()
        link = Link(sock, wake, "node")
        link._decoder.greeting = False
        answers.append(refusal(link).code)
        wake.close()
    assert answers == ["memory"] * 3
    with Publisher(str(tmp_path / "pub"), stream=STREAM, session="jfk") as writer:
        writer.publish(b"x")
    client = PushClient(str(tmp_path / "pub"), STREAM, [server.address], publisher)
    client.start()
    assert client.stop(drain_s=20)
    for sock in socks:
        sock.close()
    assert eventually(lambda: not server._large._taken)
    server.stop(), host.stop()


@pytest.mark.parametrize("progresses", [False, True])
def test_only_progress_shortens_the_pause_before_the_next_dial(tmp_path, progresses):
    """259 reconnects in 30 s: each connection was made, acknowledged what was known, and ended."""
    certs = Certificates(str(tmp_path / "ca"))
    publisher, host = certs.publisher(), DiskHost(str(tmp_path / "node"))
    server = Server(("localhost", 0), certs.server(), only(host))
    server.start()
    dialled = []

    def serve(_link):
        dialled.append(time.monotonic())
        if progresses:
            dialer.progressed()
        raise PeerError("it broke")

    dialer = Dialer(Destination([server.address], publisher, PUSH, STREAM), serve)
    dialer.start()
    assert eventually(lambda: len(dialled) == 6, 20)
    dialer.stop()
    assert dialer.join(5)
    server.stop(), host.stop()
    last_pause_s = dialled[5] - dialled[4]
    least_s = FIRST_S * 2**4 / 2  # half of a pause is random
    assert (last_pause_s < least_s) is progresses


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
            assert client.stop(drain_s=20)
            took_s[name] = time.monotonic() - began
    finally:
        server.stop(), host.stop()
    assert took_s["greedy"] > 1.5
    assert took_s["modest"] < 1.0
    lines = [each.message for each in caplog.records if "identity_bytes_s" in each.message]
    most = "1Mi bytes (identity_bytes_s) and 10000 messages (identity_messages_s) a second"
    assert lines == [f"publisher greedy is slowed down to {most}"]


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
            wake = Wake()
            link = Link(sock, wake, "node")
            link._decoder.greeting = False
            link.send(encode(Hello(VERSION, VERSION, PUSH, STREAM, "hostile")))
            link.send(encode(Open(0, identity)))
            if message is not None:
                link.send(encode(message))
            assert refusal(link).code == code
            link.close(), wake.close()
    finally:
        server.stop(), host.stop()
