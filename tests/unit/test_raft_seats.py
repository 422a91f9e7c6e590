"""How much each message counts in consensus, by its sender's seat."""

from random import Random

import pytest

from rt.errors import PeerError
from sequencer.raft.codec import MessageCodec
from sequencer.raft.consensus import EngineState, Entry, EntryKind, Seat, Snapshot, UnheardError
from sequencer.raft.engine import Raft
from sequencer.raft.entries import pack_configuration
from sequencer.raft.messages import (
    AnyMessage,
    AppendEntries,
    AppendReply,
    InstallSnapshot,
    ReadIndex,
    ReadIndexReply,
    RequestVote,
    SnapshotReply,
    TimeoutNow,
    VoteReply,
)
from sequencer.raft.quorum import LEARNING
from sequencer.raft.snapshots import encode_snapshot

FOUNDERS = ("n1", "n2", "n3")
CODEC = MessageCodec("", FOUNDERS, 0)
LEARNER = MessageCodec("", (), 77)
BLOB = encode_snapshot(Snapshot(900, 9, (("n9", Seat(0)),), b""))


def every_kind(term: int) -> list[AnyMessage]:
    """Return one message of each kind, with this term."""
    return [
        AppendEntries(term, 2, 1, 3, 0, (Entry(3, term, b"evil"),)),
        AppendEntries(term, 0, 0, 0, 0, heartbeat=True),
        InstallSnapshot(term, 900, min(term, 9), 0, len(BLOB), 0, BLOB),
        RequestVote(term, 900, term),
        RequestVote(term, 900, term, pre_vote=True),
        RequestVote(term, 900, term, transfer=True),
        VoteReply(term, True),
        VoteReply(term, False),
        VoteReply(term, True, pre_vote=True),
        AppendReply(term, True, 1, 0),
        AppendReply(term, False, 1, 0),
        SnapshotReply(term, 1, 1, 0),
        TimeoutNow(term),
        ReadIndex(term, 5),
        ReadIndexReply(term, 5, 900),
    ]


def kind_of(message: AnyMessage) -> str:
    """The name of its kind."""
    return type(message).__name__


def settle(node: Raft) -> list[str]:
    """Perform all duties; return to whom something was sent."""
    said = []
    while ready := node.ready():
        node.persisted(ready)
        said += [message.to for message in (*ready.early, *ready.messages)]
    return said


def log_of(*seats: dict[str, Seat]) -> EngineState:
    """A log with a no-op, and then these configurations."""
    entries = [Entry(1, 1, b"", EntryKind.NO_OP)]
    for each in seats:
        command = pack_configuration(each)
        entries.append(Entry(len(entries) + 1, 1, command, EntryKind.CONFIGURATION))
    return EngineState(entries=tuple(entries))


def voters(*names: str) -> dict[str, Seat]:
    """Seats of nodes that vote."""
    return {name: Seat(0, True, f"{name}:1") for name in names}


WITH_LEARNER = {**voters(*FOUNDERS), "n4": Seat(LEARNING, False, "n4:1")}
WITHOUT_N3 = voters("n1", "n2")


def a_follower(*seats: dict[str, Seat], commit: int = 0) -> Raft:
    """Node n1 with these configurations in its log, which follows n2 in term 1."""
    node = Raft("n1", FOUNDERS, chance=Random(1), state=log_of(*seats))
    last = len(seats) + 1
    node.step("n2", CODEC.encode(AppendEntries(1, last, 1, commit or last, 0)))
    settle(node)
    return node


def shown(node: Raft) -> tuple[object, ...]:
    """Return the state that a message may change."""
    status = node.status()
    voted = node.core.voted_for
    return (
        status.term, status.role, status.leader, status.last, status.commit, voted, node.members,
        node.fork, status.refusal,
    )  # fmt: skip


@pytest.mark.parametrize("term", [1, 2, 1 << 40])
@pytest.mark.parametrize(
    ("seat", "sender", "seats"),
    [
        ("of another cluster", "n9", []),
        ("removed", "n3", [WITHOUT_N3]),
        ("learner", "n4", [WITH_LEARNER]),
    ],
)
def test_a_follower_takes_nothing_from_a_node_that_does_not_vote(
    seat: str, sender: str, seats: list[dict[str, Seat]], term: int
) -> None:
    """One AppendEntries of a removed node made every node of a cluster a fork of its log."""
    for message in every_kind(term):
        node = a_follower(*seats)
        before = shown(node)
        with pytest.raises(UnheardError):
            node.step(sender, LEARNER.encode(message))
        assert settle(node) == [], (seat, kind_of(message))
        assert shown(node) == before, (seat, kind_of(message))


@pytest.mark.parametrize("sender", ["n3", "n4", "n9"])
def test_a_leader_takes_nothing_but_acknowledgements_from_a_node_that_does_not_vote(
    sender: str,
) -> None:
    """A learner answers what it is sent, and reads; a later term it has from those that vote."""
    seats = {**WITHOUT_N3, "n4": WITH_LEARNER["n4"]}
    for term in (1, 2, 1 << 40):
        for message in every_kind(term):
            node = a_leader(seats)
            before = shown(node)
            may_answer = sender == "n4" and term < 2 and kind_of(message) in {
                "AppendReply", "SnapshotReply", "ReadIndex",
            }  # fmt: skip
            if may_answer:
                node.step(sender, LEARNER.encode(message))
            else:
                with pytest.raises(UnheardError):
                    node.step(sender, LEARNER.encode(message))
            settle(node)
            assert shown(node) == before, (sender, kind_of(message), term)


def a_leader(seats: dict[str, Seat]) -> Raft:
    """Node n1 with this configuration in its log, elected by n2 in term 2."""
    node = Raft("n1", FOUNDERS, chance=Random(1), state=log_of(seats))
    while not settle(node):
        node.tick()
    for pre_vote in (True, False):
        node.step("n2", CODEC.encode(VoteReply(1, True, pre_vote)))
        settle(node)
    node.step("n2", CODEC.encode(AppendReply(1, True, node.status().last, 0)))
    settle(node)
    assert node.leads
    return node


def test_a_node_whose_removal_is_not_decided_is_heard() -> None:
    """It may be elected yet, and undo its removal."""
    node = a_follower(WITHOUT_N3, commit=1)
    node.step("n3", CODEC.encode(AppendEntries(2, 1, 1, 1, 0)))
    assert node.leader == "n3"


def test_an_announced_node_is_heard_until_the_log_is_as_new() -> None:
    """A node that was away while others were replaced cannot find its leader in its own log."""
    node = a_follower()
    message = CODEC.encode(AppendEntries(2, 1, 1, 1, 0))
    with pytest.raises(UnheardError):
        node.step("n4", message)
    node.announce((1, 20), voters("n1", "n3", "n4"))
    node.step("n4", message)
    assert node.leader == "n4"
    removal = Entry(2, 3, pack_configuration(voters("n1", "n3")), EntryKind.CONFIGURATION)
    node.step("n3", CODEC.encode(AppendEntries(3, 1, 1, 2, 0, (removal,))))
    settle(node)
    with pytest.raises(UnheardError):
        node.step("n4", CODEC.encode(AppendEntries(4, 2, 3, 2, 0)))


def test_malformed_messages_of_strangers_are_not_shown_as_a_peers() -> None:
    """An operator who reads why a peer is refused would look for a member of that name."""
    node = a_follower()
    with pytest.raises(PeerError):
        node.step("n9", b"\x03")
    assert node.status().refusal == ""


def test_a_node_that_is_removed_has_no_entry_written_for_it() -> None:
    """It may still acknowledge, to learn of its removal; for its doubts no member is suspended."""
    node = a_leader(voters(*FOUNDERS))
    node.step("n3", CODEC.encode(AppendReply(1, True, node.status().last, 0)))
    node.changes.remove("n3")
    settle(node)
    last = node.status().last
    for round_ in range(5):
        node.step("n3", CODEC.encode(AppendReply(1, False, last - 1, round_, 1, 1)))
    assert node.status().last == last
