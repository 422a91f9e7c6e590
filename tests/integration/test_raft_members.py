"""Changes of a cluster's members: the rules one by one, and what is written and read of them."""

import struct
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rt.errors import Refused, WriterFailed
from rt.format.checksum import crc32
from sequencer.journal.journal import found, open_journal
from sequencer.raft.codec import MessageCodec
from sequencer.raft.consensus import (
    Ballot,
    EngineState,
    Entry,
    EntryKind,
    PeerMessage,
    Ready,
    Seat,
    Snapshot,
)
from sequencer.raft.engine import Raft
from sequencer.raft.entries import (
    ADDRESS_BYTES_MAX,
    pack_configuration,
    pack_member,
    unpack_configuration,
)
from sequencer.raft.messages import AppendReply, VoteReply
from sequencer.raft.quorum import LEARNING, suspended
from sequencer.raft.snapshots import decode_snapshot, encode_snapshot
from tests.sim.disk import SimDisk

FOUNDERS = ("n1", "n2", "n3")
THEIRS = MessageCodec("", FOUNDERS, 0)
JOINED = MessageCodec("", (), 77)


def settle(node: Raft) -> list[PeerMessage]:
    """Perform all duties; return the messages."""
    said: list[PeerMessage] = []
    while ready := node.ready():
        node.persisted(ready)
        said += [*ready.early, *ready.messages]
    return said


def a_leader(heard: tuple[str, ...] = ("n2", "n3")) -> Raft:
    """Node n1 of n1, n2 and n3, elected by n2, with its no-op committed by those it has heard."""
    node = Raft("n1", FOUNDERS, chance=Random(1))
    while not settle(node):
        node.tick()
    for pre_vote in (True, False):
        node.step("n2", THEIRS.encode(VoteReply(1, True, pre_vote)))
        settle(node)
    acknowledge(node, *heard)
    return node


def acknowledge(node: Raft, *names: str, codec: MessageCodec = THEIRS) -> None:
    """Acknowledge the leader's whole log as some peers, by default n2 and n3."""
    settle(node)
    for name in names or ("n2", "n3"):
        node.step(name, codec.encode(AppendReply(1, True, node.status().last, 0)))
    settle(node)


def with_learner() -> Raft:
    """A leader that has added n4, which is caught up."""
    node = a_leader()
    node.changes.add("n4", "d:4")
    acknowledge(node)
    acknowledge(node, "n4", codec=JOINED)
    return node


def refusal(node: Raft, verb: str, *words: str) -> str:
    """The code with which a leader refuses a change."""
    with pytest.raises(Refused) as refused:
        getattr(node.changes, verb)(*words)
    return refused.value.code


def test_a_learner_counts_for_nothing_until_it_is_promoted() -> None:
    """If its acknowledgements counted, two of four copies could decide."""
    node = with_learner()
    entry = node.propose(b"apple")
    acknowledge(node, "n4", codec=JOINED)
    assert node.status().commit < entry.index
    acknowledge(node, "n2")
    assert node.status().commit == entry.index
    node.changes.promote("n4")
    acknowledge(node, "n2")
    assert node.status().commit == entry.index  # 2 of 4 are no majority
    acknowledge(node, "n4", codec=JOINED)
    assert node.status().commit == entry.index + 1
    assert node.members["n4"] == Seat(77, True, "d:4")


def test_the_last_change_names_its_entry_and_what_it_replaces_until_it_is_decided() -> None:
    """Nodes compare configurations by it, and start with either while it is undecided."""
    node = a_leader()
    before = node.members
    entry = node.changes.add("n4", "d:4")
    change = node.last_change
    assert (change.term, change.index) == (entry.term, entry.index)
    assert change.now.keys() - change.before.keys() == {"n4"}
    acknowledge(node)
    assert not node.last_change.before
    last = node.propose(b"apple")
    acknowledge(node)
    node.compact(last.index, b"")
    assert before.keys() < node.last_change.now.keys()
    assert node.last_change.index >= entry.index


def test_a_change_is_refused_with_the_reason() -> None:
    """It says what to do first."""
    node = a_leader()
    assert refusal(node, "remove", "n9") == refusal(node, "promote", "n9") == "not-a-member"
    assert refusal(node, "add", "n2", "x:1") == refusal(node, "promote", "n2") == "is-member"
    assert refusal(node, "remove", "n1") == "leads"
    node.changes.add("n4", "d:4")
    assert refusal(node, "remove", "n3") == "changing"
    acknowledge(node)
    assert refusal(node, "add", "n5", "e:5") == "too-many"
    assert refusal(node, "promote", "n4") == "not-caught-up"
    assert refusal(node, "move", "n3", "d:4") == "is-member"
    follower = Raft("n2", FOUNDERS, chance=Random(1))
    assert refusal(follower, "add", "n4", "d:4") == "not-leader"


def test_a_member_is_not_removed_if_the_others_would_be_no_quorum() -> None:
    """With n3 silent, n1 and n2 must stay: one of two is no majority."""
    node = a_leader()
    for _ in range(40):
        node.tick()
        acknowledge(node, "n2")
    assert refusal(node, "remove", "n2") == "no-quorum"
    node.changes.remove("n3")
    acknowledge(node, "n2")
    assert list(node.members) == ["n1", "n2"]


def test_a_new_leader_counts_no_node_as_live_before_it_has_heard_it() -> None:
    """With n3 dead and n2 removed, n1 could decide nothing more, and n2 could not be elected."""
    node = a_leader(heard=("n2",))
    assert refusal(node, "remove", "n2") == "changing"
    for _ in range(40):
        node.tick()
        acknowledge(node, "n2")
    assert refusal(node, "remove", "n2") == "no-quorum"
    acknowledge(node, "n3")
    node.changes.remove("n2")


def test_a_node_that_was_founded_again_is_not_promoted() -> None:
    """Every founder has the same incarnation, so votes of an earlier copy would count for it."""
    node = a_leader()
    node.changes.add("n4", "d:4")
    acknowledge(node)
    acknowledge(node, "n4", codec=MessageCodec("", (), 0))
    assert refusal(node, "promote", "n4") == "not-caught-up"


def test_a_copy_that_was_removed_is_not_promoted_again() -> None:
    """It may be what a late message of the old machine says, and that machine has ended."""
    node = with_learner()
    node.changes.promote("n4")
    acknowledge(node)
    acknowledge(node, "n4", codec=JOINED)
    node.changes.remove("n4")
    acknowledge(node)
    node.changes.add("n4", "e:4")
    acknowledge(node)
    acknowledge(node, "n4", codec=JOINED)
    assert refusal(node, "promote", "n4") == "not-caught-up"
    acknowledge(node, "n4", codec=MessageCodec("", (), 78))
    node.changes.promote("n4")
    assert node.members["n4"].incarnation == 78


def test_a_snapshot_holds_the_configuration_of_its_own_entry() -> None:
    """A later one may never be decided; a node that installed the snapshot could not undo it."""
    node = a_leader()
    decided = node.status().commit
    node.changes.add("n4", "d:4")
    snapshot = node.compact(decided, b"")
    assert snapshot is not None
    assert [name for name, _ in snapshot.roster] == ["n1", "n2", "n3"]


def test_a_node_that_joins_makes_no_snapshot_before_its_log_says_so() -> None:
    """Until then it has the members from its file, and of eight that vote no state can be read."""
    seats = {f"n{number}": Seat(0) for number in range(1, 8)}
    joined = pack_configuration({**seats, "n8": Seat(LEARNING, False)})
    entries = (Entry(1, 1, b"", EntryKind.NO_OP), Entry(2, 1, joined, EntryKind.CONFIGURATION))
    state = EngineState(Ballot(1), None, entries, 77)
    node = Raft("n8", [*seats, "n8"], chance=Random(1), state=state)
    assert [node.may_compact(index) for index in range(3)] == [False, False, True]
    assert node.compact(0, b"") is None


def test_a_node_that_lost_its_state_makes_no_snapshot_before_its_log_says_so() -> None:
    """The list would say that the lost copy counts."""
    lost = pack_member("n1", suspended(0))
    entries = (Entry(1, 1, b"", EntryKind.NO_OP), Entry(2, 1, lost, EntryKind.MEMBER))
    state = EngineState(Ballot(1), None, entries, 77)
    node = Raft("n1", FOUNDERS, chance=Random(1), state=state)
    assert [node.may_compact(index) for index in range(3)] == [False, False, True]
    assert Raft("n1", FOUNDERS, chance=Random(1)).may_compact(0), "a founder knows who they were"


def test_a_cluster_shrinks_to_one_node_and_grows_again() -> None:
    """A node that is a majority by itself commits its own changes."""
    node = a_leader()
    node.changes.remove("n3")
    acknowledge(node, "n2")
    node.changes.remove("n2")
    settle(node)
    assert node.status().commit == node.status().last
    node.changes.add("n4", "d:4")
    settle(node)
    acknowledge(node, "n4", codec=JOINED)
    node.changes.promote("n4")
    settle(node)
    assert node.status().commit == node.status().last - 1
    acknowledge(node, "n4", codec=JOINED)
    assert node.status().commit == node.status().last


NAMES = st.text(min_size=1, max_size=40).filter(lambda text: text.isprintable())
VOTERS = st.dictionaries(
    NAMES, st.builds(Seat, st.integers(0, LEARNING), st.just(True), NAMES), min_size=1, max_size=7
)


@given(VOTERS, st.booleans())
def test_a_configuration_survives_encoding_and_decoding(
    seats: dict[str, Seat], has_learner: bool
) -> None:
    """In an entry and in a snapshot."""
    if has_learner:
        seats = {**seats, "the learner, a name that is longer than forty": Seat(LEARNING, False)}
    data = pack_configuration(seats)
    assert unpack_configuration(b"--" + data + b"-", 2) == (seats, 2 + len(data))
    snapshot = Snapshot(7, 3, tuple(sorted(seats.items())), b"state")
    assert decode_snapshot(encode_snapshot(snapshot)) == snapshot


@given(st.binary(max_size=100), st.integers(0, 60))
def test_hostile_configurations_are_a_value_error(noise: bytes, place: int) -> None:
    """A peer's entry is checked before it has any effect."""
    good = pack_configuration({"n1": Seat(0, True, "a:1"), "n2": Seat(5, True, "b:2")})
    for data in (noise, good[:place] + noise, good[:place]):
        try:
            seats, end = unpack_configuration(data)
        except ValueError:
            continue
        assert end <= len(data)
        assert 0 < len(seats) <= 8


def test_too_many_voters_learners_or_none_are_no_configuration() -> None:
    """A majority of no voters is every node; the limits hold on the way in."""
    for seats in (
        {},
        {"n1": Seat(LEARNING, False)},
        {f"n{number}": Seat(0) for number in range(8)},
        {"n1": Seat(0), "n2": Seat(LEARNING, False), "n3": Seat(LEARNING, False)},
    ):
        with pytest.raises(ValueError, match="a configuration of"):
            unpack_configuration(pack_configuration(seats))
    with pytest.raises(ValueError, match="an address of"):
        pack_configuration({"n1": Seat(0, True, "a" * (ADDRESS_BYTES_MAX + 1))})


def test_a_snapshot_of_version_1_is_read() -> None:
    """Its members have no address and all vote."""
    body = struct.pack("<BQQ", 1, 7, 3) + struct.pack("<QB", 5, 2) + b"n1" + b"state"
    blob = b"rtsnap\x00\x01" + struct.pack("<I", crc32(body)) + body
    assert decode_snapshot(blob) == Snapshot(7, 3, (("n1", Seat(5)),), b"state")


def a_disk(**members: str) -> SimDisk:
    """A disk on which node n1 was founded."""
    disk = SimDisk(Random(1))
    found(disk, "state", cluster="c", node="n1", directory=9, members=members)
    return disk


def opened_state(disk: SimDisk) -> EngineState:
    """Return the state that a start finds there."""
    return open_journal(disk, "state", cluster="c", node="n1", fresh=5).state


def test_a_node_starts_from_its_own_configuration_and_not_from_its_file() -> None:
    """The file says who founded the cluster; afterwards it may be old, or edited too early."""
    state = opened_state(a_disk(n1="a:1", n2="b:2", n3="c:3"))
    node = Raft("n1", ("n1", "n7", "n8"), chance=Random(1), state=state)
    assert list(node.members) == ["n1", "n2", "n3"]
    assert node.members["n3"].address == "c:3"
    seats = {"n1": Seat(0, True, "a:1"), "n2": Seat(0, True, "b:2")}
    change = Entry(1, 1, pack_configuration(seats), EntryKind.CONFIGURATION)
    disk = a_disk(n1="a:1", n2="b:2", n3="c:3")
    opened = open_journal(disk, "state", cluster="c", node="n1", fresh=5)
    opened.journal.persist(Ready(ballot=Ballot(1, ""), entries=(change,)))
    again = Raft("n1", ("n1", "n7", "n8"), chance=Random(1), state=opened_state(disk))
    assert again.members == seats


def test_a_removed_node_does_not_start_again() -> None:
    """Its directory is kept; a new machine of that name starts with an empty one."""
    disk = a_disk(n1="a:1")
    opened = open_journal(disk, "state", cluster="c", node="n1", fresh=5)
    with pytest.raises(WriterFailed, match="removed from its cluster"):
        opened.journal.persist(Ready(removed=True))
    with pytest.raises(Refused, match="empty its directory"):
        opened_state(disk)
    assert "entries" in disk.names("state")
