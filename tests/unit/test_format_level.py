"""The level of a cluster's formats: what may be written, and when a node is refused."""

from types import SimpleNamespace

import pytest

from rt.errors import Misuse, Refused
from rt.node.agree.level_gate import LevelGate
from rt.node.host.note_kinds import demand_note
from rt.version import SOFTWARE
from sequencer.ledger.format_level import (
    CARRYING,
    FEATURES,
    HEADERS,
    HEADERS_NOTE,
    LEVEL_NOTE,
    NEWEST,
    OLDEST,
    FormatLevel,
    demand_level,
    demand_readable_level,
    level_of,
    parse_level,
)
from sequencer.ledger.instruction import Note, note_digest
from sequencer.ledger.ledger import Ledger
from sequencer.peers.versions import PEER_VERSIONS, PeerVersion, alpn_of


def at(level):
    """Notes of a cluster of this level."""
    return {LEVEL_NOTE: FormatLevel(level, "operator ops", 7).text()}


class Node:
    """What a gate knows: what it has heard of others, and the agreed notes."""

    def __init__(self, spoken, others=("n2", "n3"), notes=None):
        self.view = SimpleNamespace(notes=notes or {})
        self.peers = SimpleNamespace(spoken=spoken, versions=self.versions)
        self.gate = LevelGate("n1", lambda: others, lambda: self.peers, lambda: self.view)

    def versions(self):
        """The version of each member that is connected."""
        spoken = self.peers.spoken.items()
        return {name: PeerVersion(each, f"rt 0.{each}") for name, each in spoken}


def test_a_node_reads_the_levels_that_it_speaks_and_each_has_its_words():
    """A level is the version of the nodes' protocol of the first nodes that read it."""
    assert (PEER_VERSIONS[0], PEER_VERSIONS[-1]) == (NEWEST, OLDEST)
    assert [*FEATURES] == list(range(CARRYING, NEWEST + 1))


@pytest.mark.parametrize(
    ("notes", "level"),
    [({}, OLDEST), ({HEADERS_NOTE: "1"}, HEADERS), (at(9), CARRYING), (at(40), 40)],
)
def test_the_level_is_what_was_agreed_on(notes, level):
    """Clusters of version 0.1 agreed on headers by a note of their own."""
    assert level_of(notes) == level


@pytest.mark.parametrize(
    "text",
    ["", "{}", "[]", "9", '{"level": "9", "by": "", "at_ns": 1}', "[" * 100_000,
     '{"level": true, "by": "", "at_ns": 1}', '{"level": 6, "by": "", "at_ns": 1}',
     '{"level": 9, "by": "\\u001b", "at_ns": 1}', '{"level": 9, "by": "", "at_ns": -1}',
     '{"level": 1e999, "by": "", "at_ns": 1}'],
)  # fmt: skip
def test_a_level_that_cannot_be_read_is_not_proposed_and_counts_as_a_later_one(text):
    """A node that cannot judge what may be written must not guess."""
    with pytest.raises(Misuse, match="a level is malformed"):
        parse_level(text)
    if text:
        with pytest.raises(Misuse):
            demand_note(Note(1, LEVEL_NOTE, text))
    assert level_of({LEVEL_NOTE: text}) > NEWEST


def test_what_is_written_waits_for_its_level():
    """An earlier version still reads everything until then."""
    demand_level(at(NEWEST), NEWEST)
    with pytest.raises(Refused, match="rt cluster upgrade status says what is in the way"):
        demand_level(at(NEWEST - 1), NEWEST)


def test_a_node_does_not_start_on_what_it_may_not_be_able_to_read():
    """A downgrade after the upgrade was finalized ends with one sentence."""
    demand_readable_level(at(NEWEST), "/n1")
    with pytest.raises(Misuse, match=f"/n1: .* level {NEWEST + 1} .* a later version"):
        demand_readable_level(at(NEWEST + 1), "/n1")


@pytest.mark.parametrize(
    ("spoken", "named"),
    [
        ({}, ["n2 is not connected", "n3 is not connected"]),
        ({"n2": NEWEST, "n3": 9}, ["node n3 runs rt 0.9, which reads up to level 9"]),
    ],
)
def test_the_level_is_raised_once_every_node_can_read_it(spoken, named):
    """One that cannot would stop for good at the first frame or instruction of the new kind."""
    node = Node(spoken)
    with pytest.raises(Refused) as caught:
        node.gate.raised("operator ops", 7)
    assert all(each in str(caught.value) for each in named)
    assert all(each in node.gate.why_no_headers() for each in named)
    node.peers.spoken.update({"n2": NEWEST, "n3": NEWEST + 1})
    assert "rt cluster upgrade finalize" in node.gate.why_no_headers()
    text = node.gate.raised("operator ops", 7)
    assert parse_level(text) == FormatLevel(NEWEST, "operator ops", 7)
    node.view.notes = {LEVEL_NOTE: text}
    assert node.gate.raised("operator ops", 8) is None
    node.peers.spoken.clear()  # what was agreed on needs no node that is down
    assert node.gate.why_no_headers() == ""


def test_a_new_cluster_begins_with_what_all_that_were_heard_can_read():
    """Nothing has to be finalized where nothing was updated."""
    assert parse_level(Node({}).gate.first_note().text).level == NEWEST
    note = Node({"n2": 9, "n3": NEWEST}).gate.first_note()
    assert parse_level(note.text).level == 9
    assert note.expected == note_digest("")
    assert parse_level(Node({"n2": OLDEST}).gate.first_note().text).level == OLDEST
    assert Ledger().is_new
    assert not Ledger(notes={HEADERS_NOTE: "1"}).is_new


def test_a_node_that_went_back_after_that_is_refused_with_a_reason():
    """It would end at what it cannot read, or lead and write what others no longer expect."""
    gate = Node({}, notes=at(NEWEST)).gate
    assert gate.objection(alpn_of("flights", NEWEST)) == ""
    why = gate.objection(alpn_of("flights", NEWEST - 1))
    assert "start it with rt of the other nodes' version" in why
    assert gate.objection("") == gate.objection("rt-admin/1") == ""
    assert Node({}).gate.objection(alpn_of("flights", OLDEST)) == ""


def test_the_nodes_are_shown_with_what_they_read():
    """What an operator updates next."""
    shown = Node({"n2": 9}).gate.nodes()
    assert shown == {"n1": (NEWEST, SOFTWARE), "n2": (9, "rt 0.9"), "n3": (0, "")}
