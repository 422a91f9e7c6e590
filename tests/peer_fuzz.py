"""Hostile bytes in nodes' reports, and hostile instructions that can be decoded."""

import json
import struct
from collections.abc import Callable
from copy import deepcopy
from random import Random
from types import SimpleNamespace
from typing import Any

from rt.errors import Misuse, PeerError
from rt.events import SessionChange
from rt.format.manifest import MERGED, LogIdentity
from rt.node.agree.heartbeat_codec import decode_heartbeat, encode_heartbeat, group_of
from rt.node.resources.peer_addresses import PeerAddresses
from rt.node.retain.reports import RetentionReport, decode_retention_report
from rt.position import START, Position
from sequencer.execution.executor import Executor
from sequencer.ledger.digests import Digests, encode_digest
from sequencer.ledger.instruction import (
    Archive,
    ArchivedFile,
    Instruction,
    Lives,
    Merge,
    Note,
    Roll,
    Slice,
    decode_instruction,
    encode_instruction,
)
from sequencer.ledger.ledger import Ledger, decode_ledger
from sequencer.ledger.life import Life
from sequencer.membership import CUT_OFF_TICKS, Membership
from sequencer.peers.departed import Departed
from sequencer.peers.restart_check import RestartCheck, RestartMessage, encode_restart
from sequencer.planning.holdings import Holdings
from sequencer.planning.presence import PresencePart, Pushed, decode_part, encode_part
from sequencer.planning.session_log import SessionLogs
from sequencer.raft.consensus import LastChange, Quiescence, Seat
from sequencer.raft.entries import pack_configuration
from sequencer.raft.starts import Claim, Memory, Reach, StartChain
from tests.data_fuzz import mutated
from tests.note_fuzz import VALUES
from tests.sim.disk import SimDisk

CLAIM = Claim(0, StartChain(2, (11, 22)), Reach(3, 40), Reach(3, 44))
GREETING = encode_restart(RestartMessage(CLAIM, 22, Memory(0, 1, 11, Reach(2, 9))))
SEATS = {"n1": Seat(0, True, "a:1"), "n2": Seat(7, True, "b.example:2"), "n4": Seat(5, False)}
PLACE = struct.pack("<QQ", 9, 99)
REPORT = RetentionReport(9, 5, 4, Position(64), 7, 6, 10**18).encode()
PART = encode_part(PresencePart(True, {"jfk": Pushed("pub", "ab" * 16)}, 0))
BEAT = encode_heartbeat(
    {group_of("flights"): Quiescence(3, 14), group_of("trains"): Quiescence(1, 2)}
)
NUMBERS = [0, 1, 7, 64, 88, (1 << 30) - 8, 1 << 31, (1 << 32) - 1, 1 << 53, 1 << 62, (1 << 63) - 1,
           1 << 63, (1 << 64) - 1, -1, -(1 << 63)]  # fmt: skip
PLACES = [0, 64, 88, 1 << 30, 1 << 44, (1 << 30) - 8, 16383 << 30, 16384 << 30, (1 << 63) - 1]


def fuzz_greeting(chance: Random) -> bool:
    """Read any greeting; only `PeerError` may be raised, and it must be possible to answer it."""
    restart_check = RestartCheck(("n2", "n3"), CLAIM, {}, lambda _memories: None)
    try:
        restart_check.receive("n2", bytes(mutated(chance, GREETING)))
    except PeerError:
        return False
    restart_check.hello("n2")
    return True


def fuzz_announcement(chance: Random) -> bool:
    """Follow any announced configuration, with any addresses; only `PeerError` may be raised."""
    settings: Any = SimpleNamespace(name="n1", addresses={"n2": ("b", 2)})
    now = {name: Seat(0) for name in ("n1", "n2", "n3")}
    engine: Any = SimpleNamespace(
        leader="", members=now, last_change=LastChange(2, 10, now, {}),
        announce=lambda _place, _seats: None,
    )  # fmt: skip
    restart_check = RestartCheck(("n2", "n3"), CLAIM, {}, lambda _memories: None)
    membership = Membership(
        "n1", engine, Holdings("n1", [*now]), restart_check, PeerAddresses(settings).follow,
        departed=Departed(),
    )  # fmt: skip
    membership.follow()
    for _ in range(CUT_OFF_TICKS):
        restart_check.tick()
    membership.tick()
    try:
        data = PLACE + pack_configuration(SEATS)
        membership.receive(chance.choice(["n2", "n4"]), bytes(mutated(chance, data)))
    except PeerError:
        return False
    membership.announcement()
    return True


def fuzz_retention_report(chance: Random) -> bool:
    """Read any report of a node's disk; only `PeerError` may be raised."""
    try:
        decode_retention_report(bytes(mutated(chance, REPORT)), sender="n2", heard_s=1.0)
    except PeerError:
        return False
    return True


def fuzz_presence(chance: Random) -> bool:
    """Read any report of a node's publishers; only `PeerError` may be raised."""
    try:
        decode_part(bytes(mutated(chance, PART)))
    except PeerError:
        return False
    return True


def fuzz_digest(chance: Random) -> bool:
    """Compare any digest; only `PeerError` may be raised."""
    digests, ledger = Digests(), Ledger(index=4)
    digests.remember(ledger)
    try:
        digests.conflict(bytes(mutated(chance, encode_digest(ledger))))
    except PeerError:
        return False
    return True


def fuzz_beat(chance: Random) -> bool:
    """Read any heartbeat, which says where streams are idle; only `PeerError` may be raised."""
    try:
        decode_heartbeat(bytes(mutated(chance, BEAT)))
    except PeerError:
        return False
    return True


def fuzz_state(chance: Random) -> bool:
    """Decode any state of another node into a ledger; only `Misuse` may be raised."""
    fields = json.loads(Ledger(sessions={"jfk": Position(64)}, notes={"a": "b"}).encode())
    for _ in range(chance.randrange(1, 3)):
        key = chance.choice([*fields])
        inner = fields[key]
        if isinstance(inner, dict) and inner and chance.random() < 0.5:
            inner[chance.choice([*inner])] = deepcopy(chance.choice(VALUES))
        else:
            fields[key] = deepcopy(chance.choice(VALUES))
    try:
        ledger = decode_ledger(json.dumps(fields).encode())
    except Misuse:
        return False
    ledger.encode()
    return True


def drawn_instruction(chance: Random) -> Instruction:
    """Return an instruction with numbers, names and texts at their limits."""

    def place() -> Position:
        return Position(chance.choice(PLACES))

    def life() -> Life:
        return Life(
            number(), chance.choice([*SessionChange]), chance.choice(["jfk", "a" * 63]), place(),
            place().file, chance.choice(["", "ab" * 16]), chance.choice(["", "pub"]), number(),
            chance.random() < 0.5,
        )  # fmt: skip

    def number() -> int:
        return chance.choice(NUMBERS)

    def part() -> Slice:
        return Slice(
            chance.choice(["jfk", "lga"]), place(), place(), number(), number(), number(),
            number(), number(), chance.choice(["", "red"]), chance.choice([b"", b"d" * 16]),
        )  # fmt: skip

    reasons = ["time", "", "\n\0 x", "é" * 200]
    makers: list[Callable[[], Instruction]] = [
        lambda: Merge(number(), tuple(part() for _ in range(chance.randrange(3)))),
        lambda: Roll(number()),
        lambda: Archive(
            number(), tuple(ArchivedFile(place(), chance.choice(reasons)) for _ in range(2))
        ),
        lambda: Note(number(), chance.choice(["policy", "\n", "x" * 200]), chance.choice(reasons)),
        life,
        lambda: Lives(number(), tuple(life() for _ in range(chance.randrange(3)))),
    ]
    return chance.choice(makers)()


def fuzz_execution(chance: Random) -> bool:
    """Execute any decoded instruction; it may wait for bytes, and the state can be saved after."""
    disk = SimDisk(Random(1))
    identity = LogIdentity(MERGED, "flights", "merged", "a" * 32, 0)
    ledger = Ledger(file_bytes_max=chance.choice([600, 2000]))
    executor = Executor(disk, "out", identity, ledger, SessionLogs(disk, "in"))
    for index in range(1, 4):
        try:
            instruction = decode_instruction(encode_instruction(drawn_instruction(chance)))
        # the last two are raised by the node that proposes
        except (PeerError, Misuse, struct.error):
            continue
        if not (isinstance(instruction, Merge) and executor.lacking(instruction)):
            executor.execute(index, 1, instruction)
    restored = decode_ledger(ledger.encode())
    assert restored.encode() == ledger.encode()
    assert executor.ledger.end >= START
    return ledger.index > 0


PEERS: dict[str, Callable[[Random], bool]] = {
    "greeting": fuzz_greeting,
    "announcement": fuzz_announcement,
    "retention report": fuzz_retention_report,
    "presence": fuzz_presence,
    "digest": fuzz_digest,
    "beat": fuzz_beat,
    "state": fuzz_state,
    "execution": fuzz_execution,
}
