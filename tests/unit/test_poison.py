"""Poison: a node refuses frames that no reader could decode, and readers pass over the others."""

import os
import shutil
from dataclasses import replace

import pytest
import zstandard

from replicator import columns_check
from replicator.columns_check import ColumnsCheck
from replicator.push import PushClient
from replicator.server import Server
from replicator.streams import only
from rt.cli import exits
from rt.errors import PoisonError
from rt.events import Poisoned
from rt.format.checksum import crc32
from rt.format.frame import HEADER_BYTES, Encoded, encode_frame, parse_header, seal_header
from rt.log import writer
from rt.net.certificates import issue
from rt.net.identity import CertificateRole
from rt.net.tls import Contexts, client_context
from rt.position import START, Position
from rt.publisher import Publisher
from rt.subscriber import Subscriber
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
    server = Server(("localhost", 0), certs.server(), only(host))
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


def resealed(body, header, **changed):
    """Return a frame of this body whose checksums are right."""
    changed = {"length": len(body), "body_crc": crc32(body)} | changed
    return seal_header(header._replace(**changed)) + body + bytes(-len(body) % 8)


def bad_offsets(raw, header):
    """Compress a body whose first offset is wrong."""
    return resealed(zstandard.ZstdCompressor().compress(raw[:8] + b"\x09" + raw[9:]), header)


def bad_compression(_raw, header):
    """Say that bytes are compressed which are not."""
    return resealed(b"no zstandard here", header)


def bad_length(raw, header):
    """Compress fewer bytes than the header claims."""
    return resealed(zstandard.ZstdCompressor().compress(raw[:-8]), header)


def bad_window(raw, header):
    """Demand a window of 2 GiB, which a decoder would have to allocate."""
    body = bytearray(zstandard.ZstdCompressor(write_content_size=True).compress(raw))
    # magic number, a descriptor with a window and 8 bytes of content size, and the window
    body[4:6] = bytes([0b11000000, 21 << 3]) + len(raw).to_bytes(8, "little")
    return resealed(bytes(body), header)


def bad_count(raw, header):
    """Claim more messages than the body has room for."""
    packed = zstandard.ZstdCompressor().compress(raw)
    return resealed(packed, header, messages=2)


def bad_tail(raw, header):
    """Add bytes after the compressed ones."""
    return resealed(zstandard.ZstdCompressor().compress(raw) + b"more", header)


BAD = [bad_offsets, bad_compression, bad_length, bad_window, bad_count, bad_tail]


@pytest.fixture(params=BAD, ids=lambda make: make.__name__)
def unchecked(request, tmp_path, node, monkeypatch):
    """Push a compressed frame that cannot be decoded to a node without any budget left.

    Returns the root of the node's copies, and where the frame is.
    """
    monkeypatch.setattr(ColumnsCheck, "_has_budget", lambda _self, header: header.codec == 0)
    directory = tmp_path / "pub" / STREAM / "jfk"
    real, bad = encode_frame, []

    def encode(body, **fields):
        good = real(body, **fields)
        if fields["sequence"] != 1:
            return good
        header = good.header._replace(codec=1, raw_length=len(body))
        bad.append(request.param(bytes(body), header))
        found = parse_header(bad[0])
        return Encoded(found, (bad[0], b"", b""))

    monkeypatch.setattr(writer, "encode_frame", encode)
    with Publisher(str(tmp_path / "pub"), stream=STREAM, session="jfk") as publisher:
        for payload in (b"a", b"b" * 20, b"c"):
            publisher.publish_many([payload])
    [found] = map(parse_header, bad)
    at, messages = Position(found.position), found.messages
    address, certs = node
    ours = log_bytes(directory)
    client = PushClient(str(tmp_path / "pub"), STREAM, [address], certs.publisher())
    client.start()
    there = tmp_path / "node" / STREAM / "in" / "jfk"
    try:
        assert eventually(lambda: there.is_dir() and log_bytes(there) == ours)
    finally:
        client.stop()
    return str(there), Poisoned("jfk", at, Position(at + messages), messages, "")


def test_readers_get_a_typed_event_of_poison_that_no_node_looked_into(unchecked, tmp_path):
    """A node checks compressed frames within a budget; what comes later, its readers meet."""
    directory, expected = unchecked
    events = []
    root = str(tmp_path / "copy")
    shutil.copytree(directory, os.path.join(root, STREAM, "jfk"))
    options = {"stream": STREAM, "session": "jfk", "follow": False}
    with Subscriber(root, **options) as subscriber:
        messages = iter(subscriber)
        assert next(messages).payload == b"a"
        with pytest.raises(PoisonError) as error:
            next(messages)
    assert replace(error.value.event, reason="") == expected
    with Subscriber(root, **options, on_poison="notify", on_event=events.append) as subscriber:
        assert [message.payload for message in subscriber] == [b"a", b"c"]
    [event] = [each for each in events if isinstance(each, Poisoned)]
    assert event == error.value.event
    assert event.reason
    found = run("verify", directory)
    assert found.exit_code == exits.FOUND_WRONG
    assert str(expected.position) in found.stdout
    shown = run("dump", directory)
    assert "cannot be read" in shown.output
    assert shown.exit_code != exits.OUR_FAULT
