"""Poison: a node refuses frames that no reader could decode, and readers pass over the others."""

import os
import shutil
import threading
from contextlib import closing, contextmanager
from dataclasses import replace

import pytest
import zstandard

from replicator.push.client import PushClient
from replicator.serve.server import Server
from replicator.sink.columns_check import ColumnsCheck
from replicator.sink.late_check import LateCheck
from rt.cli.common import exits
from rt.cli.look.status_report import cluster_report, node_report
from rt.cli.look.status_tables import status_text
from rt.config.settings import load
from rt.errors import PoisonError, Refused
from rt.events import Poisoned
from rt.format.checksum import crc32
from rt.format.frame import HEADER_BYTES, parse_header, seal_header
from rt.format.manifest import SESSION
from rt.limits import KIB, MIB
from rt.log.files.disk import OsDisk
from rt.log.files.identity import new_identity
from rt.log.write.appender import Appender
from rt.net.authority.certificates import certificate_files, issue
from rt.net.authority.identity import CertificateRole
from rt.net.tls import Contexts, client_context
from rt.node.founding.cluster_files import init_local_cluster
from rt.node.host.node import Node
from rt.node.observe.sample import PoisonView
from rt.node.settings.node import NodeSettings
from rt.position import START, Position
from rt.publisher import Publisher
from rt.subscriber import Subscriber
from tests.commands import PATIENCE_S, run
from tests.logs import make_frame
from tests.replicator_host import STREAM, Certificates, DiskHost, eventually, log_bytes, only

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
    assert check.check(*frames(good, good)) == (None, ())
    for _ in range(100):
        assert check.check(*frames(good, poison(good), good)).poison == (len(good), REASON)


def test_compressed_frames_are_checked_within_a_budget():
    """A peer that sends nothing but bombs must not take a processor from the others."""
    now = [0.0]
    check = ColumnsCheck(10_000, 25_000, clock=lambda: now[0])
    given = frames(bomb(10_000))
    assert [check.check(*given).poison for _ in range(3)] == [(0, REASON), (0, REASON), None]
    now[0] = 1.0
    assert check.check(*given).poison == (0, REASON)
    now[0] = 1000.0
    assert [check.check(*given).poison is None for _ in range(3)] == [False, False, True]


@contextmanager
def serving(tmp_path, columns=None):
    """Return a node that syncs and does nothing else, and its certificates."""
    certs = Certificates(str(tmp_path / "certs"))
    host = DiskHost(str(tmp_path / "node"))
    server = Server(("localhost", 0), certs.server(), only(host), columns=columns)
    server.start()
    try:
        yield ("localhost", server.address[1]), certs
    finally:
        server.stop()
        host.stop()


@pytest.fixture
def node(tmp_path):
    """Return such a node."""
    with serving(tmp_path) as node:
        yield node


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


class Copies:
    """Copies of sessions, filled without a connection, and a budget that tests set."""

    def __init__(self, top):
        self.top, self.left = str(top), 0
        self.check = LateCheck(self.take)
        self.logs = {}

    def take(self, count):
        self.left -= count
        if self.left < 0:
            self.left = 0
            return False
        return True

    def fill(self, name, frames, roll_after=(), log_id=""):
        """Append frames that were not looked into; return where each is."""
        identity = new_identity(SESSION, STREAM, name, created_ns=1)
        identity = identity._replace(id=log_id or identity.id)
        log = self.logs[name] = Appender(OsDisk(), os.path.join(self.top, name), identity)
        log.recover()
        log.begin_file(START)
        places = []
        for number, make in enumerate(frames):
            if number in roll_after:
                log.roll(number)
                log.begin_file(log.next_place)
            at, walk = log.end, log.walk.copy()
            data = make(at, number, name)
            header = parse_header(data)
            walk.step(header)
            log.append((data,), [header], walk)
            self.check.record(log, [at])
            places.append(at)
        return places

    def restarted(self):
        """Return the check of the next process."""
        return LateCheck(self.take)


def good(at, number, name):
    """Return a compressed frame."""
    return b"".join(make_frame(at, [b"x" * 5000], session=name, sequence=number, level=1).parts)


def bad(at, number, name):
    """Return a compressed frame that cannot be decoded."""
    data = good(at, number, name)
    header = parse_header(data)
    return resealed(b"no zstandard here", header)


@pytest.fixture
def copies(tmp_path):
    """Return copies; they are closed."""
    copies = Copies(tmp_path)
    yield copies
    for log in copies.logs.values():
        log.close()


def test_what_was_taken_unchecked_is_checked_when_there_is_budget(copies):
    """A publisher had only to send faster than nodes check, and was never refused."""
    places = copies.fill("jfk", [good, good, bad, good])
    copies.fill("lga", [good, good])
    jfk, lga = copies.logs.values()
    copies.check.turn()
    assert not copies.check.why_refused(jfk)
    assert len(copies.check.unchecked) == 2
    copies.left = 10 * MIB
    copies.check.turn()
    words = f"the messages of the frame at {places[2]} cannot be decoded: "
    assert copies.check.why_refused(jfk).startswith(words)
    copies.check.demand_sound(lga)
    assert not copies.check.unchecked
    with pytest.raises(Refused, match="go on under another session name") as caught:
        copies.check.demand_sound(jfk)
    assert caught.value.code == "poisoned"


def test_poison_under_the_log_id_of_another_session_does_not_have_that_refused(copies):
    """A publisher chooses the id of its log, and could have blocked any session for good."""
    copies.fill("lga", [good])
    lga = copies.logs["lga"]
    copies.fill("jfk", [bad], log_id=lga.identity.id)
    copies.left = 10 * MIB
    copies.check.turn()
    copies.check.demand_sound(lga)
    copies.restarted().begin(lga)
    with pytest.raises(Refused, match="cannot be decoded"):
        copies.check.demand_sound(copies.logs["jfk"])


def test_what_proved_to_be_poisoned_is_refused_after_a_restart_too(copies):
    """But not another log that takes the name once the copy was removed."""
    copies.fill("jfk", [bad])
    copies.left = 10 * MIB
    copies.check.turn()
    fresh = copies.restarted()
    with pytest.raises(Refused, match="cannot be decoded"):
        fresh.begin(copies.logs["jfk"])
    copies.logs["jfk"].close()
    shutil.rmtree(copies.logs["jfk"].directory)
    copies.fill("jfk", [good])
    fresh.begin(copies.logs["jfk"])
    copies.check.begin(copies.logs["jfk"])


@pytest.mark.parametrize("roll_after", [(), (3, 7)])
def test_a_check_goes_on_where_the_budget_ended(copies, roll_after):
    """Each frame is looked into once, in the next file too."""
    copies.fill("jfk", [good] * 9 + [bad], roll_after)
    taken = []
    while not copies.check.why_refused(copies.logs["jfk"]):
        copies.left = 3 * 16 * KIB
        copies.check.turn()
        taken.append(copies.left)
        assert len(taken) <= 4, "it began again"
    assert len(taken) == 4  # three small frames a turn, each for 16 KiB


def test_frames_that_come_during_a_check_are_checked_by_the_next_one(copies):
    """The check would have forgotten the copy at its end, and with it what it had not looked at."""
    posted, noted = [], []
    copies.check.post = posted.append
    copies.check.noted = lambda: noted.append(True)

    def loop():
        while posted:
            posted.pop(0)()

    copies.fill("jfk", [good])
    log = copies.logs["jfk"]
    loop()
    copies.left = 10 * MIB
    copies.check.turn()  # what it did is posted, and comes after this:
    copies.check.record(log, [log.end])
    posted.insert(0, posted.pop())
    loop()
    assert copies.check.unchecked == {log.directory}
    assert noted == [True], "a turn follows anyway"
    copies.check.turn()
    loop()
    assert not copies.check.unchecked
    copies.check.record(log, [log.end])
    loop()
    assert noted == [True, True]


def test_a_copy_that_cannot_be_read_keeps_no_other_from_being_checked(copies):
    """One bad sector, and no session of the node was ever found poisoned."""
    copies.fill("jfk", [good])
    copies.fill("lga", [bad])
    path = os.path.join(copies.top, "jfk", "log.0.0")
    os.unlink(path)
    os.mkdir(path)
    copies.left = 10 * MIB
    with pytest.raises(OSError, match=r"jfk|directory"):
        copies.check.turn()
    assert copies.check.why_refused(copies.logs["lga"])
    assert copies.check.unchecked == {copies.logs["jfk"].directory}


def test_memory_does_not_grow_with_what_is_unchecked(copies):
    """Frames come faster than they are checked for as long as a publisher likes."""
    copies.fill("jfk", [good] * 500)
    assert len(copies.check.unchecked) == 1


def test_a_copy_that_goes_is_not_checked(copies):
    """It was set aside, or its files were archived after they were merged."""
    copies.fill("jfk", [bad])
    _, second = copies.fill("lga", [bad, bad], roll_after=(1,))
    copies.logs["jfk"].close()
    os.unlink(os.path.join(copies.top, "lga", "log.0.0"))
    copies.left = 10 * MIB
    copies.check.turn()
    assert not copies.check.unchecked
    assert f"the frame at {second} cannot" in copies.check.why_refused(copies.logs["lga"])
    assert not copies.check.why_refused(copies.logs["jfk"])


@pytest.fixture
def place(tmp_path):
    """Configure a cluster of one node."""
    return init_local_cluster(str(tmp_path / "node"), STREAM, 1)[0]


def started(place):
    """Start the node."""
    node = Node(load(NodeSettings, place.config, "node", {}, {"reserve": 0}))
    node.start()
    return node


def error_of(client):
    """Return what a pusher says is wrong."""
    return "".join(each.error for each in client.status())


def test_a_node_refuses_a_session_that_proves_to_be_poisoned(place, tmp_path, monkeypatch):
    """Its frame is merged by then; what follows it need not be, before a restart and after."""
    is_late, turn = threading.Event(), LateCheck.turn
    monkeypatch.setattr(ColumnsCheck, "charge", lambda _self, _count: is_late.is_set())
    monkeypatch.setattr(LateCheck, "turn", lambda self: turn(self) if is_late.is_set() else None)
    files = certificate_files(str(tmp_path / "node" / "certs"), "publisher")
    root = str(tmp_path / "pub")
    write_bad(root, bad_compression)
    node = started(place)
    client = PushClient(root, STREAM, [node.address], Contexts(files, client_context))
    client.start()
    try:
        with Publisher(root, stream=STREAM, session="jfk") as publisher:
            publisher.publish_many([b"d"])
            publisher.flush("merged", timeout_s=PATIENCE_S)
            end = node.pipeline.inboxes.get("jfk").merged
            is_late.set()
            assert eventually(lambda: node.status()["sessions"][0]["poisoned"], PATIENCE_S)
            publisher.publish_many([b"e"])
            assert eventually(lambda: "cannot be decoded" in error_of(client), PATIENCE_S)
        node.periodic_sampler.take_sample()
        assert node.periodic_sampler.sample.poison == PoisonView(poisoned=1)
        assert node.periodic_sampler.sample.changes.refused["poisoned"]
        text = status_text(cluster_report([node_report("localhost", node.status())]))
        assert "n1 refuses session jfk: the messages of the frame at 0.0." in text
        assert node.pipeline.inboxes.get("jfk").merged == end
    finally:
        client.stop()
        node.stop()
    node = started(place)
    client = PushClient(root, STREAM, [node.address], Contexts(files, client_context))
    client.start()
    try:
        assert eventually(lambda: "cannot be decoded" in error_of(client), PATIENCE_S)
        assert node.pipeline.inboxes.get("jfk").merged <= end
    finally:
        client.stop()
        node.stop()


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


def write_bad(root, damage):
    """Write a session of three frames, whose second is damaged; return that frame's header."""
    path = os.path.join(root, STREAM, "jfk")
    identity = new_identity(SESSION, STREAM, "jfk", created_ns=0)
    with closing(Appender(OsDisk(), path, identity)) as log:
        log.recover()
        log.begin_file(START)
        for number, payload in enumerate((b"a", b"b" * 20, b"c")):
            frame = make_frame(log.end, [payload], sequence=number)
            data, header = b"".join(frame.parts), frame.header
            if number == 1:
                body = data[HEADER_BYTES : HEADER_BYTES + header.length]
                data = damage(body, header._replace(codec=1, raw_length=header.length))
                header = bad = parse_header(data)
            after = log.walk.copy()
            after.step(header)
            log.append([data], [header], after)
        log.sync()
    return bad


@pytest.fixture(params=BAD, ids=lambda make: make.__name__)
def unchecked(request, tmp_path):
    """Push a compressed frame that cannot be decoded to a node without any budget left.

    Returns the root of the node's copies, and where the frame is.
    """
    root = str(tmp_path / "pub")
    found = write_bad(root, request.param)
    at, messages = Position(found.position), found.messages
    ours = log_bytes(os.path.join(root, STREAM, "jfk"))
    there = tmp_path / "node" / STREAM / "in" / "jfk"
    with serving(tmp_path, ColumnsCheck(bytes_s=0, burst_bytes=0)) as (address, certs):
        client = PushClient(root, STREAM, [address], certs.publisher())
        client.start()
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
