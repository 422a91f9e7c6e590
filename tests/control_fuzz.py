"""Hostile ballots, admin requests and admin answers, with checksums that are right."""

import json
import struct
from types import SimpleNamespace

from archiver.plan import Prospect
from archiver.policy import Policy
from rt.errors import Refused, RtError
from rt.format.checksum import crc32
from rt.net.admin import parse_history
from rt.net.authority.identity import CertificateRole, PeerIdentity
from rt.node.admin.node_admin import NodeAdmin
from rt.position import Position
from sequencer.journal.ballot import decode_slot, encode_slot
from sequencer.ledger.instruction import Note
from sequencer.raft.consensus import Ballot

NODE = PeerIdentity("n1", CertificateRole.NODE)
REQUESTS = [
    {"do": "policy"},
    {"do": "set-policy", "policy": {"time": 10, "limit": "90Gi", "disk": 90}},
    {"do": "plan", "at_ns": 10**18},
    {"do": "roll"},
    {"do": "lease", "start": "0.0.0", "seconds": 60, "bytes": 1000},
    {"do": "release", "holder": "spark"},
    {"do": "offloaded", "text": '{"url": "/backup", "to": "0.1.0"}'},
    {"do": "cursors"},
    {"do": "cursor-open", "name": "etl", "takeover": "fence", "silence_s": 1.0, "pin_bytes": 0},
    {"do": "cursor-ack", "name": "etl", "epoch": 1, "position": "0.0.64"},
    {"do": "cursor-reset", "name": "etl", "start": "earliest"},
    {"do": "cursor-forget", "name": "etl"},
    {"do": "policy", "latest": True},
]
HEAD = {
    "directory": "out", "node": "n1", "bytes": 0, "offloaded": {"url": "/b", "to": "0.1.0"},
    "active": [0, 64, 0, 1, 1, 1, 0, "", "jfk"],
}  # fmt: skip
VALUES = [
    None, True, -1, 0, 1 << 62, 1 << 70, 1e308, -1.5, "", "\ud800", "\x1b[2J", "0.0.0", "9" * 400,
    [], [[]], {}, {"to": 1}, {"": None}, "[" * 20_000, json.dumps({"to": "0.0.0"}), "x" * 2000,
]  # fmt: skip


def fuzz_ballot(chance):
    """Read a ballot's slot of arbitrary bytes with a correct checksum: it is read or refused."""
    data = bytearray(encode_slot(Ballot(chance.getrandbits(40), "n1"), 7))
    for _ in range(chance.randrange(1, 8)):
        where = chance.randrange(len(data) + 1)
        data[where : where + chance.randrange(3)] = chance.randbytes(chance.randrange(4))
    sealed = data[:4] + struct.pack("<I", crc32(bytes(data[8:]))) + data[8:]
    found = decode_slot(bytes(sealed), 7)
    assert found is None or isinstance(found, Ballot)


class Archiver:
    """A fake of a node's retention, with what admin requests use of it."""

    now_ns, leases = 10**18, ()

    def disks(self):
        return []

    def prospect(self):
        return Prospect(self.now_ns, Policy(), (), (), 0, (), (), 1)


class Confirmed:
    """A fake of reads that a majority has to confirm; these are confirmed at once, at `index`."""

    def __init__(self, index=0):
        self.index = index

    def open(self):
        """Return the only ticket."""
        return 1

    def ask(self, ticket):
        """Do nothing: it is confirmed already."""

    forget = ask

    def is_answered(self, _ticket, executed):
        """Whether the log has been executed up to `index`."""
        return executed >= self.index


class Sequencer:
    """A fake of a leader that carries out every instruction at once."""

    def __init__(self):
        self.view = SimpleNamespace(
            notes={}, archived_to=Position(0), end=Position(0), leads=True, is_executing=False,
            executed=0, number=0, time_ns=0, engine=SimpleNamespace(term=1),
        )  # fmt: skip

    def order(self, instruction):
        self.view.executed += 1
        if isinstance(instruction, Note):
            if not instruction.replaces(self.view.notes.get(instruction.name, "")):
                return
            rest = {
                name: text for name, text in self.view.notes.items() if name != instruction.name
            }
            changed = {instruction.name: instruction.text} if instruction.text else {}
            self.view.notes = rest | changed  # replaced as a whole, as a ledger's are
        else:
            self.view.end = Position.of(0, self.view.end.roll + 1, 64)

    def ask(self, question):
        return question()


def at_once(need):
    """Raise `Refused` unless the condition `need` holds now, instead of waiting for it."""
    if not need.is_over():
        raise Refused(need.code, need.words)


def node_admin(audit=None, archiver=None, kind=NodeAdmin, **options):
    """Return the admin endpoint of a leader that carries out every instruction at once."""
    settings = SimpleNamespace(name="n1", stream="flights")
    identity = SimpleNamespace(id="log")
    appender = SimpleNamespace(directory="nowhere", is_open=False, identity=identity)
    executor = SimpleNamespace(appender=appender)
    member = SimpleNamespace(executor=executor, reads=Confirmed())
    return kind(settings, Sequencer(), member, archiver or Archiver(), audit, **options)


def fuzz_request(admin, chance):
    """Send an arbitrary request; the answer must be a JSON object with a result or error code."""
    request = dict(chance.choice(REQUESTS))
    for _ in range(chance.randrange(3)):
        request[chance.choice([*request, "do", "x"])] = chance.choice(VALUES)
    if isinstance(request.get("policy"), dict) and chance.random() < 0.5:
        key = chance.choice(["time", "limit", "disk", "x"])
        request["policy"] = {**request["policy"], key: chance.choice(VALUES)}
    answer = json.loads(admin.answer(_damaged(request, chance), NODE))
    assert isinstance(answer, dict)
    if "error" in answer:
        assert answer["code"]


def fuzz_history(chance):
    """Parse an arbitrary answer of a node; it must be accepted, or refused by `PeerError`."""
    head = dict(HEAD)
    for _ in range(chance.randrange(1, 3)):
        head[chance.choice(list(head))] = chance.choice(VALUES)
    if isinstance(head["active"], list) and head["active"] and chance.random() < 0.5:
        active = list(head["active"])
        active[chance.randrange(len(active))] = chance.choice(VALUES)
        head["active"] = active
    try:
        _, rows, copies, *_ = parse_history(_damaged(head, chance) + b"\n", "n1:1")
    except RtError:
        return
    assert isinstance(copies, dict)
    for row in rows:
        assert row.file.startswith("log.")


def _damaged(fields, chance):
    """Return an object as JSON, sometimes with a few wrong bytes."""
    data = bytearray(json.dumps(fields).encode())
    if chance.random() < 0.3:
        for _ in range(chance.randrange(1, 4)):
            data[chance.randrange(len(data))] = chance.randrange(256)
    return bytes(data).replace(b"\n", b" ")
