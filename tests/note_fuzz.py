"""Hostile texts for every parser of the notes that all nodes of a stream share."""

import json
from collections.abc import Callable
from copy import deepcopy
from random import Random
from typing import Any

from archiver.lease import Lease, new_lease
from archiver.policy import Policy
from rt.errors import Misuse
from rt.node.host.node_admission import CERTIFICATES_NOTE
from rt.node.host.note_kinds import demand_note
from rt.node.notes.pins import pins_of
from rt.node.notes.reading_group import GROUP_NOTE, RangeClaim, ReadingGroup, groups_of_notes
from rt.node.notes.registered_cursor import CURSOR_NOTE, RegisteredCursor, cursors_of_notes
from rt.node.retain.retention import (
    LEASE_NOTE,
    OFFLOAD_NOTE,
    POLICY_NOTE,
    leases_of_notes,
    policy_of_notes,
)
from rt.node.sessions.policy import SESSIONS_NOTE, SessionPolicy, session_policy_of_notes
from rt.node.sessions.quotas import QUOTAS_NOTE, quotas_of_notes
from rt.position import Position
from sequencer.ledger.founded import FOUNDED_NOTE, obstacle
from sequencer.ledger.instruction import Note
from sequencer.ledger.ledger import Ledger

GROUP = ReadingGroup(
    "etl", "spark", "subscriber", Position(640), 3, (RangeClaim(3, Position(64), Position(128), 1),)
)
TEXTS = {
    POLICY_NOTE: Policy(limit=90 << 30).text(),
    f"{LEASE_NOTE}spark": Lease("spark", Position(64), 10**18, 1000).text(),
    OFFLOAD_NOTE: '{"url": "/backup", "to": "0.1.0"}',
    SESSIONS_NOTE: SessionPolicy(expire_s=86400).text(),
    QUOTAS_NOTE: '{"bytes_s":null,"sessions":5,"publishers":{"jfk":{"sessions":null}}}',
    f"{CURSOR_NOTE}etl": RegisteredCursor("etl", "spark", Position(64), 7, pin_bytes=9).text(),
    f"{GROUP_NOTE}etl": GROUP.text(),
    CERTIFICATES_NOTE: "4f1c",
}
VALUES: list[Any] = [
    None, True, False, -1, 0, 1, 1.5, -1.5, 1 << 62, 1 << 63, 1 << 70, 1e308, float("inf"),
    float("-inf"), float("nan"), "", "\ud800", "\x1b[2J", "\0", "0.0.0", "9" * 5000, "inf", "x",
    [], [[]], [1, 2, 3, 4], [None] * 5, {}, {"to": 1}, {"": None}, "x" * 2000, "never", "none",
]  # fmt: skip
RAW = ["", "null", "7", '"x"', "[" * 20_000, "{" * 2000, '{"a":' * 2000, "1e999", "NaN", "\ud800",
       "[ ]", "{ }", '{"start": 1e999}', "9" * 5000, "-Infinity"]  # fmt: skip


def hostile(chance: Random, text: str) -> str:
    """Return a text like this one, with other values, keys, or characters."""
    if chance.random() < 0.05:
        return chance.choice(RAW)
    try:
        fields = json.loads(text)
    except ValueError:
        fields = None
    if isinstance(fields, dict):
        for _ in range(chance.randrange(3)):
            _change(chance, fields)
        text = json.dumps(fields)
        if chance.random() < 0.3:  # as `json.dumps` would not write it
            text = text.replace(str(chance.choice([0, 1, 64, 7, 9])), "1e999", 1)
    if chance.random() < 0.2 and text:
        place = chance.randrange(len(text))
        new = chance.choice(["", "\0", "}", "1e999", '"', "[", "\ud800"])
        text = text[:place] + new + text[place + 1 :]
    return text


def _change(chance: Random, fields: dict[str, Any]) -> None:
    key = chance.choice([*fields, "x", ""])
    inner = fields.get(key)
    if isinstance(inner, list) and inner and chance.random() < 0.7:
        place = chance.randrange(len(inner))
        if isinstance(inner[place], list) and inner[place] and chance.random() < 0.7:
            inner[place][chance.randrange(len(inner[place]))] = deepcopy(chance.choice(VALUES))
        else:
            inner[place] = deepcopy(chance.choice(VALUES))
    elif isinstance(inner, dict) and inner and chance.random() < 0.7:
        inner[chance.choice([*inner])] = deepcopy(chance.choice(VALUES))
    elif chance.random() < 0.1:
        fields.pop(key, None)
    else:
        fields[key] = deepcopy(chance.choice(VALUES))


def fuzz_notes(chance: Random) -> bool:
    """Parse arbitrary notes of a ledger; every node must read the same from them."""
    notes = {name: hostile(chance, text) for name, text in TEXTS.items() if chance.random() < 0.5}
    policy_of_notes(notes).text()
    for lease in leases_of_notes(notes):
        lease.text()
        lease.first_held((), 1)
    session_policy_of_notes(notes).text()
    quotas_of_notes(notes).of("jfk")
    for cursor in cursors_of_notes(notes):
        cursor.text()
    for group in groups_of_notes(notes):
        group.text()
        _ = group.position, group.has_room
    _ = pins_of(notes, frozenset())
    return True


def fuzz_proposed_note(chance: Random) -> bool:
    """Propose an arbitrary note; it must be refused, or readable by every reader."""
    name, text = chance.choice([*TEXTS.items()])
    text = hostile(chance, text)
    try:
        demand_note(Note(1, name, text))
    except Misuse:
        return False
    if text:
        notes = {name: text}
        unreadable = [each for each in leases_of_notes(notes) if each.holder == "unreadable"]
        assert not unreadable, text
        policy = policy_of_notes(notes)
        assert name == POLICY_NOTE or policy == Policy()
    return True


def fuzz_requested_lease(chance: Random) -> bool:
    """Parse an arbitrary request for a lease; only `Misuse` may refuse it."""
    fields = {"holder": "spark", "start": "0.0.64", "seconds": 60, "bytes": 1000}
    _change(chance, fields)
    try:
        new_lease(fields, 10**18).text()
    except Misuse:
        return False
    return True


def fuzz_founded(chance: Random) -> bool:
    """Parse any note about the log that a cluster was founded from."""
    text = '{"log": "a", "time_ns": 5, "groups": ["red"], "dropped": ["jfk"], "partial": true}'
    ledger = Ledger(notes={FOUNDED_NOTE: hostile(chance, text)})
    obstacle(ledger, "jfk", "red", 3)
    return True


NOTES: dict[str, Callable[[Random], bool]] = {
    "notes": fuzz_notes,
    "proposed": fuzz_proposed_note,
    "requested lease": fuzz_requested_lease,
    "founded": fuzz_founded,
}
