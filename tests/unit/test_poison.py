"""Poison: a node refuses frames that no reader could decode, and readers pass over the others."""

import os

import pytest
import zstandard

from replicator import columns_check
from replicator.columns_check import ColumnsCheck
from replicator.push import PushClient
from replicator.server import Server
from rt.cli import exits
from rt.format.checksum import crc32
from rt.format.frame import HEADER_BYTES, parse_header, seal_header
from rt.net.certificates import issue
from rt.net.identity import CertificateRole
from rt.net.tls import Contexts, client_context
from rt.position import START
from rt.publisher import Publisher
from tests.commands import run
from tests.logs import make_frame
from tests.replicator_host import STREAM, Certificates, DiskHost, eventually, log_bytes

REASON = "the offsets of the messages go back"


def poison(data, at=0):
    """Make the first offset of a plain frame wrong, and its checksums right again."""
    data = bytearray(data)
    header = parse_header(data, at)
    data[at + HEADER_BYTES + 8 * header.messages] = 9
    body = data[at + HEADER_BYTES : at + HEADER_BYTES + header.length]
    data[at : at + HEADER_BYTES] = seal_header(header._replace(body_crc=crc32(body)))
    return bytes(data)


def bomb(size):
    """Return a compressed frame of one message whose offsets are wrong."""
    plain = b"".join(make_frame(START, [b"x" * size]).parts)
    body = bytearray(plain[HEADER_BYTES : HEADER_BYTES + parse_header(plain).length])
    body[8] = 9
    packed = zstandard.ZstdCompressor().compress(bytes(body))
    header = parse_header(plain)._replace(length=len(packed), codec=1, body_crc=crc32(packed))
    return seal_header(header) + packed + bytes(-len(packed) % 8)


def frames(*parts):
    """Return frames as one message carries them, and their headers."""
    return memoryview(b"".join(parts)), [parse_header(each) for each in parts]


def test_a_plain_frame_is_always_checked():
    """It costs so little that no budget is needed."""
    good = b"".join(make_frame(START, [b"a", b"bc"]).parts)
    check = ColumnsCheck(bytes_s=1, clock=lambda: 0.0)
    assert check.poisoned(*frames(good, good)) is None
    for _ in range(100):
        assert check.poisoned(*frames(good, poison(good), good)) == (len(good), REASON)


def test_compressed_frames_are_checked_within_a_budget(monkeypatch):
    """A peer that sends nothing but bombs must not take a processor from the others."""
    monkeypatch.setattr(columns_check, "_BURST_BYTES", 25_000)
    now = [0.0]
    check = ColumnsCheck(bytes_s=10_000, clock=lambda: now[0])
    given = frames(bomb(10_000))
    assert [check.poisoned(*given) for _ in range(3)] == [(0, REASON), (0, REASON), None]
    now[0] = 1.0
    assert check.poisoned(*given) == (0, REASON)
    now[0] = 1000.0
    assert [check.poisoned(*given) is None for _ in range(3)] == [False, False, True]


@pytest.fixture
def node(tmp_path):
    """Return a node that syncs and does nothing else, and its certificates."""
    certs = Certificates(str(tmp_path / "certs"))
    host = DiskHost(str(tmp_path / "node"))
    server = Server(("localhost", 0), certs.server(), host)
    server.start()
    yield ("localhost", server.address[1]), certs
    server.stop()
    host.stop()


@pytest.fixture
def root(tmp_path):
    """Publish two sessions, `jfk` with a second frame that cannot be decoded."""
    for name in ("jfk", "lga"):
        with Publisher(str(tmp_path / "pub"), stream=STREAM, session=name) as publisher:
            for payload in (b"a", b"b", b"c"):
                publisher.publish_many([payload])
    path = tmp_path / "pub" / STREAM / "jfk" / "log.0.0"
    data = path.read_bytes()
    path.write_bytes(poison(data, parse_header(data).size))
    return str(tmp_path / "pub")


def test_a_node_takes_a_session_up_to_its_first_poisoned_frame(node, root, tmp_path):
    """It stopped every reader of the stream, and the publisher did not even hear of it."""
    address, certs = node
    client = PushClient(root, STREAM, [address], certs.publisher())
    client.start()
    ours = log_bytes(os.path.join(root, STREAM, "jfk"))["log.0.0"]
    there = tmp_path / "node" / STREAM / "in"
    try:
        assert eventually(lambda: (there / "lga").is_dir() and len(log_bytes(there / "lga")) > 0)
        assert eventually(lambda: any(REASON in each.error for each in client.status()))
        error = next(each.error for each in client.status() if each.error)
        size = parse_header(ours).size
        assert f"the frame at 0.0.{size} cannot be decoded: {REASON}" in error
        assert "go on under another session name" in error
        assert log_bytes(there / "jfk")["log.0.0"] == ours[:size]
        other = log_bytes(os.path.join(root, STREAM, "lga"))["log.0.0"]
        assert eventually(lambda: log_bytes(there / "lga").get("log.0.0") == other)
    finally:
        client.stop()


def test_what_a_node_relays_is_not_judged_again(node, root, tmp_path):
    """Its frames may be merged already; a node that refused them could never catch up."""
    address, certs = node
    files = issue(certs.directory, "node-2", CertificateRole.NODE)
    client = PushClient(root, STREAM, [address], Contexts(files, client_context))
    client.start()
    try:
        ours = log_bytes(os.path.join(root, STREAM, "jfk"))
        there = tmp_path / "node" / STREAM / "in" / "jfk"
        assert eventually(lambda: there.is_dir() and log_bytes(there) == ours)
    finally:
        client.stop()


def test_subscribe_stops_at_poison_or_passes_over_it(root):
    """By default nothing is lost unnoticed; the operator may decide otherwise."""
    read = ("subscribe", "--root", root, "--stream", STREAM, "--own-session", "jfk", "--no-follow")
    stopped = run(*read)
    assert stopped.exit_code == exits.FOUND_WRONG
    assert f"cannot be decoded: {REASON}; start from" in stopped.stderr
    told = run(*read, "--on-poison", "notify")
    assert (told.exit_code, told.stdout) == (0, "a\nc\n")
    assert REASON in told.stderr
    silent = run(*read, "--on-poison", "skip")
    assert (silent.exit_code, silent.stdout) == (0, "a\nc\n")
    assert REASON not in silent.stderr
