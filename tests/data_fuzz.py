"""Hostile bytes with correct checksums, for every decoder of data from peers and disks.

Each fuzzer makes an input at random, decodes it, and returns whether the decoder accepted it. A
fuzzer whose inputs are all refused tests only the first check.
"""

from collections.abc import Callable
from random import Random

from replicator.wire import codec as wire
from replicator.wire import messages
from rt.errors import FrameError, ManifestError, Misuse, PeerError
from rt.format.checksum import crc32
from rt.format.columns import check_columns
from rt.format.frame import HEADER_BYTES, FrameKind, body_matches, parse_header
from rt.format.manifest import SESSION, Archived, LogIdentity, Rolled, decode_entry, encode_entry
from rt.format.ranges import EMPTY_DIGEST, Range, decode_range
from rt.position import START, Position
from sequencer.journal.identity import StateIdentity, decode_identity, encode_identity
from sequencer.ledger.instruction import (
    Archive,
    ArchivedFile,
    Merge,
    Note,
    Roll,
    Slice,
    decode_instruction,
    encode_instruction,
)
from sequencer.ledger.ledger import Ledger, decode_ledger
from sequencer.planning.holdings import decode_report, encode_reports
from sequencer.raft.codec import MessageCodec
from sequencer.raft.consensus import Entry, EntryKind, Snapshot
from sequencer.raft.entries import Seat
from sequencer.raft.messages import AppendEntries, RequestVote, VoteReply
from sequencer.raft.snapshots import decode_snapshot, encode_snapshot
from tests.logs import make_frame

LOG = LogIdentity(SESSION, "flights", "jfk", "a" * 32, 1, "pair")
ROLLED = Rolled(START, 88, 0, 1, 5, 6, 7, "ab" * 16, "jfk,lga")
ARCHIVED = Archived(START, 8, "time", 3)
WIRE = [
    messages.Hello(2, 2, messages.PUSH, "flights", "rt 1"),
    messages.Open(3, LOG),
    messages.Standing(3, Position(88), START, ROLLED, (messages.TailSpan(START, 88),), 9),
    messages.RolledNotice(3, ROLLED),
    messages.ArchivedNotice(3, ROLLED, ARCHIVED),
    messages.CaughtUpNotice(3, Position(88)),
    messages.Ack(3, *(Position(88),) * 5),
    messages.Refusal(3, "busy", "another has it"),
]
LINES = [LOG, ROLLED, ARCHIVED]
PLAIN = b"".join(make_frame(START, [b"a", b"bcd", b""], keys=[b"k", b"", b"l"]).parts)
PACKED = b"".join(make_frame(START, [b"x" * 90] * 9, level=1).parts)
CODEC = MessageCodec("c", ("n1", "n2", "n3"), 7)
RAFT = [
    RequestVote(5, 10, 4),
    VoteReply(5, granted=True),
    AppendEntries(3, 2, 2, 1, 0, (Entry(3, 3, b"command", EntryKind.COMMAND),)),
]
INSTRUCTIONS = [
    Merge(9, (Slice("jfk", START, START, 88, 1, 0, 0, 1, "", b"d" * 16),)),
    Roll(9),
    Archive(9, (ArchivedFile(START, "time"),)),
    Note(9, "policy", '{"time": 10}'),
]
IDENTITY = StateIdentity("c" * 32, "n1", 7, 9, "1a2b", {"n1": "a:1"})
# They skip what they cannot read.
TOLERANT = {"fuzz_notes", "fuzz_founded"}
SNAPSHOT = Snapshot(9, 3, (("n1", Seat(1, True, "a:1")),), b"data")


def mutated(chance: Random, data: bytes, times: int = 6) -> bytearray:
    """Return the bytes with a few replaced, removed or inserted."""
    found = bytearray(data)
    for _ in range(chance.randrange(1, times)):
        at = chance.randrange(len(found) + 1)
        new = chance.choice([chance.randbytes(chance.randrange(5)), b"\xff" * 4, bytes(8)])
        found[at : at + chance.randrange(9)] = new
    return found


def fuzz_frame(chance: Random) -> bool:
    """Decode a frame with any header and body and correct CRCs; only `FrameError` may be raised."""
    data = bytearray(chance.choice([PLAIN, PACKED]))
    for _ in range(chance.randrange(1, 5)):
        data[chance.randrange(8, len(data))] = chance.randrange(256)
    body = bytes(data[HEADER_BYTES:])
    length = min(int.from_bytes(data[44:48], "little"), len(body))
    data[52:56] = crc32(body[:length]).to_bytes(4, "little")
    data[4:8] = crc32(bytes(data[8:HEADER_BYTES])).to_bytes(4, "little")
    try:
        header = parse_header(data)
        body = body[: header.length]
        if body_matches(header, body) and header.kind == FrameKind.MESSAGES:
            check_columns(header, body)
    except FrameError:
        return False
    return True


def fuzz_range(chance: Random) -> bool:
    """Decode any body of a range frame; only `FrameError` may be raised."""
    frame = Range(9, 3, 2, "jfk", START, 88, 0, 1, 0, EMPTY_DIGEST).frame(START)
    header = parse_header(b"".join(frame.parts))
    body = bytes(mutated(chance, frame.parts[1]))
    try:
        decode_range(header._replace(length=len(body), raw_length=len(body)), body)
    except FrameError:
        return False
    return True


def resealed(line: bytes) -> bytes:
    """Return a manifest line with the checksum corrected."""
    text = line.rpartition(b" ")[0]
    return b"%s %08x" % (text, crc32(text))


def fuzz_line(chance: Random) -> bool:
    """Parse any line of a manifest; only `ManifestError` may be raised."""
    line = encode_entry(chance.choice(LINES)).removesuffix(b"\n")
    try:
        decode_entry(resealed(bytes(mutated(chance, line[:-9])) + line[-9:]))
    except ManifestError:
        return False
    return True


def fuzz_wire(chance: Random) -> bool:
    """Decode any message, and the manifest lines in it; only `PeerError` may be raised."""
    data = wire.encode(chance.choice(WIRE))
    body = bytes(mutated(chance, data[5:]))
    if chance.random() < 0.5:  # so that the lines themselves are decoded
        head, *lines = body.split(b'{"rt"')
        body = head + b"".join(
            resealed(b'{"rt"' + line.removesuffix(b"\n")) + b"\n" for line in lines
        )
    try:
        kind, _ = wire.decode_prefix(
            bytearray(len(body).to_bytes(4, "little") + data[4:5] + body), 0
        )
        wire.BODIES[kind][0](memoryview(body))
    except PeerError:
        return False
    return True


def fuzz_raft(chance: Random) -> bool:
    """Decode any message between nodes; only `PeerError` may be raised."""
    try:
        CODEC.decode(bytes(mutated(chance, CODEC.encode(chance.choice(RAFT)))))
    except PeerError:
        return False
    return True


def fuzz_instruction(chance: Random) -> bool:
    """Decode any instruction; only `PeerError` may be raised."""
    try:
        decode_instruction(bytes(mutated(chance, encode_instruction(chance.choice(INSTRUCTIONS)))))
    except PeerError:
        return False
    return True


def fuzz_report(chance: Random) -> bool:
    """Decode any report of what a node holds; only `PeerError` may be raised."""
    [data] = encode_reports({"jfk": Position(88), "lga": START}, whole=True)
    try:
        decode_report(bytes(mutated(chance, data)))
    except PeerError:
        return False
    return True


def fuzz_snapshot(chance: Random) -> bool:
    """Decode any snapshot; only `ValueError` may be raised."""
    data = encode_snapshot(SNAPSHOT)
    body = bytes(mutated(chance, data[12:]))
    try:
        decode_snapshot(data[:8] + crc32(body).to_bytes(4, "little") + body)
    except ValueError:
        return False
    return True


def fuzz_ledger(chance: Random) -> bool:
    """Decode any state in a snapshot that a leader sends; only `Misuse` may be raised."""
    data = bytearray(Ledger(file_bytes_max=1 << 20).encode())
    for _ in range(chance.randrange(1, 4)):
        place = chance.randrange(len(data))
        if data[place : place + 1].isdigit():  # JSON of other values, more often than no JSON
            data[place] = chance.choice(b'0123456789-.eE"[]{} ')
    nested = b'{"version":%s}' % (b"[" * 20_000)
    try:
        decode_ledger(chance.choice([bytes(data), bytes(mutated(chance, data)), nested]))
    except Misuse:
        return False
    return True


def fuzz_identity(chance: Random) -> bool:
    """Decode any identity of a state directory; it must be accepted, or recognised as damaged."""
    line = bytes(mutated(chance, encode_identity(IDENTITY).partition(b"\n")[0])).replace(b"\n", b"")
    return decode_identity(b"%s\n%08x\n" % (line, crc32(line))) is not None


def demand_tried(fuzz: Callable[[Random], bool], chance: Random, runs: int) -> None:
    """Run a fuzzer; some inputs must be accepted, and some refused, if any can be refused."""
    accepted = sum(fuzz(chance) for _ in range(runs))
    assert accepted > 0
    assert accepted < runs or fuzz.__name__ in TOLERANT


DECODERS: dict[str, Callable[[Random], bool]] = {
    "frame": fuzz_frame,
    "range": fuzz_range,
    "line": fuzz_line,
    "wire": fuzz_wire,
    "raft": fuzz_raft,
    "instruction": fuzz_instruction,
    "report": fuzz_report,
    "snapshot": fuzz_snapshot,
    "ledger": fuzz_ledger,
    "identity": fuzz_identity,
}
