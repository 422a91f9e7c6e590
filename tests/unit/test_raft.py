"""Raft: rules that a whole cluster meets too rarely to rely on, one by one."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rt.errors import Misuse, PeerError, Refused
from sequencer.raft.consensus import Ballot, EngineRole, EngineState, Entry, EntryKind
from sequencer.raft.core import Settings
from sequencer.raft.engine import Raft
from sequencer.raft.entries import pack_member
from sequencer.raft.messages import (
    AnyMessage,
    Append,
    Appended,
    AskRead,
    AskVote,
    Chunk,
    ChunkTaken,
    Lead,
    MessageCodec,
    ReadFrom,
    Vote,
)
from sequencer.raft.quorum import SUSPENDED, Roster, majority_of, reached

MEMBERS = ("n1", "n2", "n3")
CODEC = MessageCodec("", MEMBERS, 0)


def a_node(
    state: EngineState | None = None,
    members: tuple[str, ...] = MEMBERS,
    settings: Settings | None = None,
) -> Raft:
    """Node n1, whose messages are made by hand."""
    return Raft("n1", members, chance=Random(1), state=state, settings=settings)


def settle(node: Raft) -> list[AnyMessage]:
    """Do all duties; return what the node said."""
    said = []
    while ready := node.ready():
        node.persisted(ready)
        said += [CODEC.decode(message.data)[1] for message in (*ready.early, *ready.messages)]
    return said


def a_leader() -> Raft:
    """Node n1, elected by n2 in term 1, with its first entry decided."""
    node = a_node()
    while node.status().role is not EngineRole.PRE_CANDIDATE:
        node.tick()
    settle(node)
    node.step("n2", CODEC.encode(Vote(1, True, pre=True)))
    settle(node)
    node.step("n2", CODEC.encode(Vote(1, True)))
    settle(node)
    node.step("n2", CODEC.encode(Appended(1, True, 1, 0)))
    settle(node)
    return node


def a_pair(settings: Settings) -> tuple[Raft, Raft]:
    """Node n1, which leads, and n2, which has all that it decided."""
    node, other = a_node(settings=settings), Raft("n2", MEMBERS, chance=Random(2))
    while other.status().commit == 0:
        node.tick()
        talk(node, other)
    return node, other


def talk(leader: Raft, other: Raft) -> None:
    """Let n1 and n2 hear each other until both have said all."""
    is_silent = False
    while not is_silent:
        is_silent = True
        for each, name, to, peer in ((leader, "n1", "n2", other), (other, "n2", "n1", leader)):
            while ready := each.ready():
                each.persisted(ready)
                for message in (*ready.early, *ready.messages):
                    if message.to == to:
                        is_silent = False
                        peer.step(name, message.data)


def test_an_acknowledgement_of_an_older_term_is_not_counted() -> None:
    """The log it spoke of may have been replaced since; raftos counted it and lost entries."""
    node = a_leader()
    node.propose(b"apple")
    settle(node)
    node.step("n2", CODEC.encode(Appended(0, True, 2, 0)))
    settle(node)
    assert node.status().commit == 1
    node.step("n2", CODEC.encode(Appended(1, True, 2, 0)))
    assert node.status().commit == 2


def test_an_acknowledgement_of_an_entry_that_does_not_exist_is_the_peers_fault() -> None:
    """A peer that is broken or hostile cannot move the commit index beyond the log."""
    with pytest.raises(PeerError, match="does not exist"):
        a_leader().step("n2", CODEC.encode(Appended(1, True, 99, 0)))


def test_a_network_that_reorders_is_not_sent_everything_again_for_each_word() -> None:
    """Seed 20040: 65,720 messages brought 70 entries to six peers, since every refusal of what
    came out of turn, and the next answer after it, sent all that was under way once more.
    """
    chance, settings = Random(7), Settings(batch_bytes_max=1)
    node, other = a_pair(settings)
    for number in range(70):
        node.propose(b"%d" % number)
    wire: list[tuple[Raft, bytes]] = []
    sent = 0
    while node.status().commit < 71:
        for each, to, peer in ((node, "n2", other), (other, "n1", node)):
            while ready := each.ready():
                each.persisted(ready)
                said = [m.data for m in (*ready.early, *ready.messages) if m.to == to]
                sent += len(said)
                wire += [(peer, data) for data in said]
        if wire:
            to_whom, data = wire.pop(chance.randrange(len(wire)))
            to_whom.step("n2" if to_whom is node else "n1", data)
        else:
            node.tick()
    assert sent < 5 * 70


def test_what_is_lost_on_the_way_is_sent_again() -> None:
    """Nothing of a window arrives, and the next words are signs of life."""
    node, other = a_pair(Settings(batch_bytes_max=1))
    for number in range(9):
        node.propose(b"%d" % number)
    settle(node)
    for _ in range(100):
        node.tick()
        talk(node, other)
    assert node.status().commit == other.status().commit == 10


def test_own_copy_counts_only_once_it_is_durable() -> None:
    """A cluster of one acknowledges nothing that its disk could still lose (etcd 14370)."""
    node = a_node(members=("n1",))
    settle(node)
    entry = node.propose(b"apple")
    ready = node.ready()
    assert ready is not None
    assert ready.entries == (entry,)
    assert not ready.committed
    assert node.ready() is None
    node.persisted(ready)
    after = node.ready()
    assert after is not None
    assert after.committed == (entry,)


def test_a_snapshot_that_is_older_than_the_leaders_is_not_taken() -> None:
    """The leader's state came while the application was still at an older entry."""
    node = a_node(members=("n1",))
    settle(node)
    node.propose(b"apple")
    settle(node)
    newer = node.compact(2, b"apple")
    assert newer is not None
    assert newer.index == 2
    assert node.compact(1, b"") is None


def test_one_node_leads_at_once_and_without_a_tick() -> None:
    """There is nobody to wait for."""
    node = a_node(members=("n1",))
    assert node.leads
    assert node.leader == "n1"


def test_an_admission_is_taken_back_with_its_entry() -> None:
    """Who counts is what the log says; a log that was cut says something else."""
    roster = Roster.founding(MEMBERS)
    roster.change(5, "n3", SUSPENDED)
    roster.change(6, "n3", 77)
    roster.cut(6)
    assert roster.now["n3"] == SUSPENDED
    assert roster.changed_at == 5
    roster.cut(3)
    assert roster.now["n3"] == 0


def test_a_follower_loses_its_vote_with_the_entry_that_gave_it() -> None:
    """A conflict that replaces an admission makes the node a learner again."""
    entries = (
        Entry(1, 1, b"", EntryKind.NOTHING),
        Entry(2, 1, pack_member("n1", SUSPENDED), EntryKind.MEMBER),
        Entry(3, 1, pack_member("n1", 9), EntryKind.MEMBER),
    )
    node = a_node(EngineState(Ballot(1, ""), None, entries, incarnation=9))
    assert node.status().role is EngineRole.FOLLOWER
    replaced = Append(2, 2, 1, 0, 0, (Entry(3, 2, b"", EntryKind.NOTHING),))
    node.step("n2", CODEC.encode(replaced))
    assert node.status().role is EngineRole.LEARNER


def test_a_learner_neither_votes_nor_stands() -> None:
    """An empty disk knows nothing of what it promised."""
    node = a_node(EngineState(incarnation=9))
    for _ in range(200):
        node.tick()
    node.step("n2", CODEC.encode(AskVote(5, 10, 4)))
    assert settle(node) == []
    assert node.status().role is EngineRole.LEARNER


def test_a_second_leader_in_one_term_is_refused() -> None:
    """It cannot be; if it is, nothing it says is taken."""
    node = a_node()
    node.step("n2", CODEC.encode(Append(3, 0, 0, 0, 0)))
    with pytest.raises(PeerError, match="both lead term 3"):
        node.step("n3", CODEC.encode(Append(3, 0, 0, 0, 0)))


def test_other_members_are_refused_with_both_lists() -> None:
    """A typing error in one node's configuration is found by reading one line."""
    theirs = MessageCodec("", ("n1", "n2", "n4"), 0)
    node = a_node()
    with pytest.raises(PeerError, match=r"n1, n2, n4.*n1, n2, n3"):
        node.step("n2", theirs.encode(AskVote(1, 0, 0, pre=True)))
    assert "n1, n2, n4" in node.status().refusal


def test_a_stranger_is_refused() -> None:
    """The transport proves the name; the engine knows whose names count."""
    with pytest.raises(PeerError, match="n9"):
        a_node().step("n9", CODEC.encode(Lead(1)))


def test_a_follower_refuses_proposals_and_names_the_leader() -> None:
    """So that the caller knows where to go."""
    node = a_node()
    node.step("n2", CODEC.encode(Append(3, 0, 0, 0, 0)))
    with pytest.raises(Refused, match="n2") as refused:
        node.propose(b"apple")
    assert refused.value.code == "not-leader"


def test_too_much_undecided_is_refused() -> None:
    """Memory does not grow because a majority is away."""
    node = a_leader()
    for _ in range(16):
        node.propose(bytes(1 << 20))
    with pytest.raises(Refused) as refused:
        node.propose(b"apple")
    assert refused.value.code == "busy"


def test_word_of_a_commit_is_not_answered() -> None:
    """All that the answer could say was said with the entries; each costs the leader a turn."""
    node = a_node()
    node.step("n2", CODEC.encode(Append(3, 0, 0, 0, 0, (Entry(1, 3, b"apple"),))))
    assert settle(node) == [Appended(3, True, 1, 0)]
    node.step("n2", CODEC.encode(Append(3, 1, 3, 1, 0, quiet=True)))
    assert settle(node) == []
    assert node.status().commit == 1
    node.step("n2", CODEC.encode(Append(3, 5, 3, 5, 0, quiet=True)))  # entries were lost before it
    assert settle(node) == [Appended(3, False, 5, 0, 1, 3)]


def test_only_word_of_a_commit_is_not_to_be_answered() -> None:
    """Not what a read waits for, a heartbeat, nor what goes to who does not count or is probed."""
    node = a_leader()
    node.step("n2", CODEC.encode(Appended(1, True, 1, 0)))
    node.propose(b"apple")
    settle(node)
    node.step("n2", CODEC.encode(Appended(1, True, 2, 0)))
    told = [each for each in settle(node) if isinstance(each, Append)]
    assert told == [Append(1, 2, 1, 2, 0, quiet=True)]  # n3 is silent, and still being probed
    node.read_index(7)
    asked = [each for each in settle(node) if isinstance(each, Append)]
    assert [(each.round, each.quiet) for each in asked] == [(1, False)] * len(asked)
    assert asked
    for _ in range(5):
        node.tick()
    beats = [each for each in settle(node) if isinstance(each, Append)]
    assert [(each.opens, each.quiet) for each in beats] == [(True, False), (True, False)]


@pytest.mark.parametrize("members", [("n1", "n2"), ("n1", "n1", "n2"), ("n2", "n3", "n4")])
def test_a_list_of_members_that_cannot_be_is_refused(members: tuple[str, ...]) -> None:
    """Two nodes are worse than one, and a node must be one of its own cluster."""
    with pytest.raises(Misuse):
        a_node(members=members)


def test_any_two_majorities_share_a_member() -> None:
    """The one fact on which everything rests."""
    assert all(2 * majority_of(count) > count for count in range(1, 8))
    assert reached([9, 1, 5, 7, 3], 3) == 5
    assert reached([9, 8], 3) == 0


SAID = [
    AskVote(7, 3, 2, pre=True),
    AskVote(7, 3, 2, forced=True),
    Vote(7, True),
    Vote(7, False, pre=True),
    Append(7, 3, 2, 1, 9, opens=True),
    Append(7, 3, 2, 1, 9, quiet=True),
    Append(7, 3, 2, 1, 9, (Entry(4, 2, b"apple"), Entry(5, 7, b"", EntryKind.NOTHING))),
    Append(7, 3, 2, 1, 9, (Entry(4, 7, pack_member("n2", 5), EntryKind.MEMBER),)),
    Appended(7, True, 3, 9),
    Appended(7, False, 3, 9, 2, 1),
    Chunk(7, 3, 2, 10, 20, 9, b"0123456789"),
    ChunkTaken(7, 3, 10, 9),
    Lead(7),
    AskRead(7, 5),
    ReadFrom(7, 5, 3),
]


@pytest.mark.parametrize("message", SAID, ids=lambda message: type(message).__name__)
def test_what_is_said_is_what_is_heard(message: AnyMessage) -> None:
    """Every kind of message survives its bytes."""
    assert CODEC.decode(CODEC.encode(message)) == (0, message)


@pytest.mark.parametrize("message", SAID, ids=lambda message: type(message).__name__)
def test_a_message_cut_anywhere_is_the_peers_fault(message: AnyMessage) -> None:
    """No prefix of a message is taken for a message, nor is one with a byte too many."""
    data = CODEC.encode(message)
    # The data of a chunk has no length of its own: a shorter chunk is another honest one.
    ends = 24 + 40 if isinstance(message, Chunk) else len(data)
    for cut in range(ends):
        with pytest.raises(PeerError):
            CODEC.decode(data[:cut])
    with pytest.raises(PeerError):
        CODEC.decode(data + b"\0" * 11)


@given(st.binary(max_size=200), st.sampled_from(SAID), st.integers(0, 200))
def test_hostile_bytes_raise_nothing_but_a_peer_error(
    noise: bytes, message: AnyMessage, place: int
) -> None:
    """Whatever a peer sends, the node goes on."""
    node = a_node()
    data = CODEC.encode(message)
    for hostile in (noise, data[:place] + noise, data[:24] + noise):
        try:
            node.step("n2", hostile)
        except PeerError:
            continue
