"""LoneMessages: the short road of a small update, and what it leaves to the general one."""

from dataclasses import replace
from pathlib import Path

import pytest

from rt.position import START
from sequencer.execution.lone_messages import LoneMessages
from sequencer.ledger.instruction import Merge, demand_readable, encode_merge
from sequencer.raft.consensus import Entry, EntryKind
from tests.unit.test_recent_frames import Node

LONE = LoneMessages()


@pytest.fixture
def node(tmp_path: Path) -> Node:
    """A leader that has received a message after one that was merged."""
    return with_one_merged(tmp_path / "node", b"two")


def with_one_merged(top: Path, *received: bytes) -> Node:
    """Return a node that has received these after a message that was merged."""
    made = Node(top).merge_first()
    made.receive(*received)
    return made


def planned(node: Node) -> Merge | None:
    """Plan what the only session has received."""
    return LONE.plan(
        "jfk", executor=node.executor, planner=node.planner, holdings=node.holdings,
        checked=node.copies.checked, time_ns=1,
    )  # fmt: skip


def proposed(node: Node) -> Merge:
    """Plan it as a leader that has proposed it."""
    made = planned(node)
    assert made is not None
    node.executor.proposed = node.planner.carrier.frames
    return made


def merged(node: Node, merge: Merge) -> bool:
    """Execute an instruction, if it is one for the short road."""
    entry = Entry(node.executor.ledger.index + 1, 1, b"", EntryKind.COMMAND)
    return LONE.merge(entry, merge, node.executor)


def log_of(node: Node) -> bytes:
    """Return the merged log."""
    return (node.top / "out" / START.file_name).read_bytes()


def test_both_roads_write_the_same(node, tmp_path):
    """Nodes that take different roads must have one log, and go on from one state."""
    other = with_one_merged(tmp_path / "other", b"two")
    made, general = proposed(node), other.plan()
    assert encode_merge(made) == demand_readable(general)
    assert merged(node, made)
    assert log_of(node) == other.merge(general)
    assert node.executor.ledger.encode() == other.executor.ledger.encode()
    assert node.executor.traffic == other.executor.traffic
    assert not node.executor.is_half_done


def test_a_repeat_is_left_to_the_general_road(tmp_path):
    """It must be neither delivered nor numbered."""
    node = with_one_merged(tmp_path)
    node.number = 0
    node.receive(b"one")
    assert planned(node) is None


def test_a_session_with_nothing_new_is_left_to_the_general_road(tmp_path):
    """That road puts it to rest."""
    assert planned(with_one_merged(tmp_path)) is None


def test_what_a_majority_holds_is_not_carried(node):
    """The instruction only names it then."""
    node.sync()
    node.holdings.hold("jfk", node.inbox.appender.end)
    node.holdings.follow(["n1"])
    assert planned(node) is None


def test_an_instruction_for_another_state_is_not_merged(node):
    """As after a crash that repeats it: the general road knows what to do with it."""
    made = proposed(node)
    [each] = made.slices
    for wrong in (replace(each, watermark=7), replace(each, after=START)):
        assert not merged(node, replace(made, slices=(wrong,)))
    assert merged(node, made)
    assert not merged(node, made)


def test_a_copy_with_other_bytes_is_left_to_the_general_road(node, tmp_path):
    """That road says which session has diverged."""
    other = with_one_merged(tmp_path / "other", b"owt")
    assert not merged(other, proposed(node))
    assert log_of(other) == log_of(node)


def test_a_copy_whose_message_comes_later_than_the_leaders_is_doubted(node, tmp_path):
    """Its publisher may send other bytes then."""
    other = with_one_merged(tmp_path / "other")
    assert merged(other, proposed(node))
    assert other.executor.take_unproven() == ["jfk"]
    assert b"two" in log_of(other)


def test_a_file_that_is_full_is_rolled_by_the_general_road(node):
    """A range is never split, and no file exceeds its limit."""
    made, ledger = proposed(node), node.executor.ledger
    ledger.file_bytes_max = ledger.end.offset + 100
    assert not merged(node, made)
