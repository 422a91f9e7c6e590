"""Raft: rules that a simulated cluster exercises too rarely, tested one by one."""

import contextlib
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rt.errors import Misuse, PeerError, Refused
from rt.format.checksum import crc32
from sequencer.raft.codec import MessageCodec
from sequencer.raft.consensus import (
    Ballot,
    EngineRole,
    EngineState,
    Entry,
    EntryKind,
    Seat,
    Snapshot,
    UnheardError,
)
from sequencer.raft.core import Settings
from sequencer.raft.engine import Raft
from sequencer.raft.entries import pack_configuration, pack_member
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
from sequencer.raft.quorum import LEARNING, Roster, majority_of, reached, suspended
from sequencer.raft.snapshots import encode_snapshot

MEMBERS = ("n1", "n2", "n3")
CODEC = MessageCodec("", MEMBERS, 0)


def a_node(
    state: EngineState | None = None,
    members: tuple[str, ...] = MEMBERS,
    settings: Settings | None = None,
) -> Raft:
    """Node n1, whose peers' messages are made by hand."""
    return Raft("n1", members, chance=Random(1), state=state, settings=settings)


def settle(node: Raft) -> list[AnyMessage]:
    """Perform all duties; return the messages sent."""
    said = []
    while ready := node.ready():
        node.persisted(ready)
        said += [CODEC.decode(message.data)[1] for message in (*ready.early, *ready.messages)]
    return said


def a_leader() -> Raft:
    """Node n1, elected by n2 in term 1, with its no-op committed."""
    node = a_node()
    while node.status().role is not EngineRole.PRE_CANDIDATE:
        node.tick()
    settle(node)
    node.step("n2", CODEC.encode(VoteReply(1, True, pre_vote=True)))
    settle(node)
    node.step("n2", CODEC.encode(VoteReply(1, True)))
    settle(node)
    node.step("n2", CODEC.encode(AppendReply(1, True, 1, 0)))
    settle(node)
    return node


def a_pair(settings: Settings) -> tuple[Raft, Raft]:
    """Node n1, which leads, and n2, which has everything that is committed."""
    node, other = a_node(settings=settings), Raft("n2", MEMBERS, chance=Random(2))
    while other.status().commit == 0:
        node.tick()
        talk(node, other)
    return node, other


def talk(leader: Raft, other: Raft) -> None:
    """Deliver messages between n1 and n2 until both are silent."""
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
    """The log it was about may have been replaced since; raftos counted it and lost entries."""
    node = a_leader()
    node.propose(b"apple")
    settle(node)
    node.step("n2", CODEC.encode(AppendReply(0, True, 2, 0)))
    settle(node)
    assert node.status().commit == 1
    node.step("n2", CODEC.encode(AppendReply(1, True, 2, 0)))
    assert node.status().commit == 2


def test_an_acknowledgement_of_an_entry_that_does_not_exist_is_the_peers_fault() -> None:
    """A broken or hostile peer cannot move the commit index past the end of the log."""
    with pytest.raises(PeerError, match="does not exist"):
        a_leader().step("n2", CODEC.encode(AppendReply(1, True, 99, 0)))


def test_reordering_does_not_resend_the_window_for_each_message() -> None:
    """Seed 20040: 70 entries took 65,720 messages to six peers, since each rejection of a message
    that arrived out of turn, and the reply after it, resent everything in flight.
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


def test_a_window_that_is_lost_is_sent_again() -> None:
    """No entry of it arrives, and the next messages are heartbeats."""
    node, other = a_pair(Settings(batch_bytes_max=1))
    for number in range(9):
        node.propose(b"%d" % number)
    settle(node)
    for _ in range(100):
        node.tick()
        talk(node, other)
    assert node.status().commit == other.status().commit == 10


def test_own_copy_counts_only_once_it_is_durable() -> None:
    """A single node acknowledges nothing that its disk could still lose (etcd 14370)."""
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


def test_a_follower_that_was_sent_a_snapshot_is_current_once_the_leader_says_what_follows() -> None:
    """It may be any number of committed entries."""
    late = Raft("n3", MEMBERS, chance=Random(3))
    assert not late.status().is_current
    roster = tuple((name, Seat(0)) for name in MEMBERS)
    blob = encode_snapshot(Snapshot(2, 1, roster, b"state"))
    late.step("n1", CODEC.encode(InstallSnapshot(1, 2, 1, 0, len(blob), 0, blob)))
    settle(late)
    assert (late.status().last, late.status().is_current) == (2, False)
    for commit in (3, 2):
        late.step("n1", CODEC.encode(AppendEntries(1, 2, 1, commit, 0, (), heartbeat=True)))
        assert late.status().is_current == (commit == 2)
    assert a_leader().status().is_current


def test_a_snapshot_older_than_the_newest_is_not_made() -> None:
    """The leader's snapshot arrived while the application was still at an older entry."""
    node = a_node(members=("n1",))
    settle(node)
    node.propose(b"apple")
    settle(node)
    newer = node.compact(2, b"apple")
    assert newer is not None
    assert newer.index == 2
    assert node.compact(1, b"") is None


def test_a_single_node_leads_without_a_tick() -> None:
    """There is no other node to wait for."""
    node = a_node(members=("n1",))
    assert node.leads
    assert node.leader == "n1"


def test_an_admission_is_undone_with_its_entry() -> None:
    """The log says which copies count; after a truncation it says something else."""
    roster = Roster.founding(dict.fromkeys(MEMBERS, ""))
    roster.admit(5, "n3", suspended(0))
    roster.admit(6, "n3", 77)
    roster.truncate(6)
    assert roster.now["n3"].incarnation == suspended(0)
    assert roster.changed_at == 5
    roster.truncate(3)
    assert roster.now["n3"].incarnation == 0


def test_a_follower_loses_its_vote_with_the_entry_that_gave_it() -> None:
    """A conflicting entry in place of its admission makes a node a learner again."""
    entries = (
        Entry(1, 1, b"", EntryKind.NO_OP),
        Entry(2, 1, pack_member("n1", suspended(0)), EntryKind.MEMBER),
        Entry(3, 1, pack_member("n1", 9), EntryKind.MEMBER),
    )
    node = a_node(EngineState(Ballot(1, ""), None, entries, incarnation=9))
    assert node.status().role is EngineRole.FOLLOWER
    replaced = AppendEntries(2, 2, 1, 0, 0, (Entry(3, 2, b"", EntryKind.NO_OP),))
    node.step("n2", CODEC.encode(replaced))
    assert node.status().role is EngineRole.LEARNER


def test_entries_that_replace_durable_ones_are_persisted() -> None:
    """What was synced at their indices is of another leader; a restart would bring it back."""
    old = tuple(Entry(index, 1, b"", EntryKind.NO_OP) for index in (1, 2, 3, 4))
    node = a_node(EngineState(Ballot(1, ""), None, old, incarnation=0))
    replacing = Entry(3, 2, b"", EntryKind.NO_OP)
    node.step("n2", CODEC.encode(AppendEntries(2, 2, 1, 0, 0, (replacing,))))
    ready = node.ready()
    assert ready is not None
    assert list(ready.entries) == [replacing]
    node.persisted(ready)
    assert (node.status().last, node.status().durable) == (3, 3)


def test_a_learner_that_is_not_caught_up_neither_votes_nor_campaigns() -> None:
    """An empty disk does not know what the node has promised."""
    node = a_node(EngineState(incarnation=9))
    for _ in range(200):
        node.tick()
    node.step("n2", CODEC.encode(RequestVote(5, 10, 4)))
    assert settle(node) == []
    assert node.status().role is EngineRole.LEARNER


def test_a_suspended_copy_votes_if_the_candidate_may_count_it() -> None:
    """The candidate's log may hold its admission, whose leader was lost before it sent it here."""
    entries = (
        Entry(1, 1, b"", EntryKind.NO_OP),
        Entry(2, 1, pack_member("n1", suspended(0)), EntryKind.MEMBER),
    )
    node = a_node(EngineState(Ballot(1, ""), None, entries, incarnation=9))
    node.step("n2", CODEC.encode(RequestVote(2, 3, 1)))
    assert settle(node) == [VoteReply(2, True)]
    node.step("n3", CODEC.encode(RequestVote(2, 3, 1)))
    assert settle(node) == [VoteReply(2, False)]


def a_leader_with_a_forgetful_follower() -> Raft:
    """Node n1, which leads; n2 has acknowledged entry 2, and now says that it lacks it."""
    node = a_leader()
    node.step("n3", CODEC.encode(AppendReply(1, True, 1, 0)))
    node.propose(b"apple")
    settle(node)
    node.step("n2", CODEC.encode(AppendReply(1, True, 2, 0)))
    settle(node)
    node.step("n2", CODEC.encode(AppendReply(1, False, 2, 0, 1, 1)))
    return node


def suspensions(node: Raft) -> list[Entry]:
    """The changes of the roster that this leader sends."""
    sent = [each for each in settle(node) if isinstance(each, AppendEntries)]
    return [e for each in sent for e in each.entries if e.kind is EntryKind.MEMBER]


def test_a_follower_that_lost_acknowledged_entries_is_suspended_and_named() -> None:
    """Its rejections were dropped as old ones: it was stuck silently, and counted."""
    node = a_leader_with_a_forgetful_follower()
    asked = [each for each in settle(node) if isinstance(each, AppendEntries)]
    assert {each.round for each in asked} == {1}
    with pytest.raises(PeerError, match="n2 lost entry 2, which it had acknowledged"):
        node.step("n2", CODEC.encode(AppendReply(1, False, 2, 1, 1, 1)))
    assert node.status().refusal.startswith("n2 lost entry 2")
    assert suspensions(node)[0] == Entry(3, 1, pack_member("n2", suspended(0)), EntryKind.MEMBER)
    assert [peer.counts for peer in node.status().peers] == [False, True]


def test_a_late_rejection_suspends_no_follower() -> None:
    """On a network that reorders, a rejection may arrive after the acknowledgement."""
    node = a_leader_with_a_forgetful_follower()
    settle(node)
    node.step("n2", CODEC.encode(AppendReply(1, False, 2, 0, 1, 1)))
    node.step("n2", CODEC.encode(AppendReply(1, True, 2, 1)))
    node.step("n2", CODEC.encode(AppendReply(1, False, 2, 0, 1, 1)))
    assert suspensions(node) == []


def test_a_copy_that_was_suspended_for_its_losses_is_never_admitted_again() -> None:
    """Old votes and acknowledgements of it may still be on the way, and would count again."""
    node = a_leader_with_a_forgetful_follower()
    settle(node)
    with pytest.raises(PeerError):
        node.step("n2", CODEC.encode(AppendReply(1, False, 2, 1, 1, 1)))
    settle(node)
    node.step("n3", CODEC.encode(AppendReply(1, True, 3, 1)))
    node.step("n2", CODEC.encode(AppendReply(1, True, 3, 1)))
    assert suspensions(node) == []
    reborn = MessageCodec("", MEMBERS, 9)
    for _ in range(30):  # until the old copy counts as silent
        node.tick()
        node.step("n3", CODEC.encode(AppendReply(1, True, 3, 1)))
    settle(node)
    assert node.status().refusal
    node.step("n2", reborn.encode(AppendReply(1, True, 3, 1)))
    assert not node.status().refusal
    assert suspensions(node)[0].command == pack_member("n2", 9)


def test_a_node_that_finds_itself_suspended_promises_nothing_more() -> None:
    """Neither a vote nor an acknowledgement: what it knows of its promises is incomplete."""
    node = a_node()
    entry = Entry(1, 3, pack_member("n1", suspended(0)), EntryKind.MEMBER)
    node.step("n2", CODEC.encode(AppendEntries(3, 0, 0, 0, 0, (entry,))))
    ready = node.ready()
    assert ready is not None
    assert ready.disowned
    assert ready.must_persist
    assert (ready.early, ready.messages, ready.entries) == ((), (), ())
    assert node.ready() is None


def test_an_incarnation_that_would_read_as_a_suspension_is_refused() -> None:
    """No node draws one; otherwise a hostile peer could have itself admitted as suspended."""
    with pytest.raises(PeerError, match="out of range"):
        CODEC.decode(MessageCodec("", MEMBERS, 1 << 61).encode(TimeoutNow(1)))


def test_a_second_leader_in_one_term_is_refused() -> None:
    """It must be impossible; if it happens, none of its messages has an effect."""
    node = a_node()
    node.step("n2", CODEC.encode(AppendEntries(3, 0, 0, 0, 0)))
    with pytest.raises(PeerError, match="both lead term 3"):
        node.step("n3", CODEC.encode(AppendEntries(3, 0, 0, 0, 0)))


def test_entries_of_a_deposed_leader_are_refused_and_not_appended() -> None:
    """A later leader may have put other entries there; these were never agreed on."""
    node = a_node()
    node.step("n2", CODEC.encode(AppendEntries(3, 0, 0, 0, 0)))
    settle(node)
    stale = (Entry(1, 2, b"", EntryKind.NO_OP),)
    node.step("n3", CODEC.encode(AppendEntries(2, 0, 0, 0, 0, stale)))
    assert settle(node) == [AppendReply(3, False, 0, 0)]
    assert node.status().last == 0


def test_other_members_are_refused_with_both_lists() -> None:
    """A typo in one node's configuration is found by reading one line."""
    theirs = MessageCodec("", ("n1", "n2", "n4"), 0)
    node = a_node()
    with pytest.raises(PeerError, match=r"n1, n2, n4.*n1, n2, n3"):
        node.step("n2", theirs.encode(RequestVote(1, 0, 0, pre_vote=True)))
    assert "n1, n2, n4" in node.status().refusal


def test_a_stranger_counts_for_nothing() -> None:
    """It may be a removed node, or one of another cluster: its certificate is good."""
    node = a_node()
    for _ in range(2 * Settings().election_ticks):
        node.tick()
    for reply in (VoteReply(1, True, pre_vote=True), VoteReply(1, True), TimeoutNow(1)):
        for stranger in ("n8", "n9"):
            with pytest.raises(UnheardError, match="does not vote"):
                node.step(stranger, CODEC.encode(reply))
    assert not node.leads
    with pytest.raises(PeerError, match="calls itself 'n1'"):
        node.step("n1", CODEC.encode(TimeoutNow(1)))


def test_a_follower_refuses_proposals_and_names_the_leader() -> None:
    """So that the caller knows where to go."""
    node = a_node()
    node.step("n2", CODEC.encode(AppendEntries(3, 0, 0, 0, 0)))
    with pytest.raises(Refused, match="n2") as refused:
        node.propose(b"apple")
    assert refused.value.code == "not-leader"


def test_proposals_are_refused_while_too_much_is_uncommitted() -> None:
    """Memory does not grow while a majority is away."""
    node = a_leader()
    for _ in range(16):
        node.propose(bytes(1 << 20))
    with pytest.raises(Refused) as refused:
        node.propose(b"apple")
    assert refused.value.code == "busy"


def test_a_commit_index_alone_is_not_acknowledged() -> None:
    """A reply would only repeat the one to the entries, and each costs the leader a turn."""
    node = a_node()
    node.step("n2", CODEC.encode(AppendEntries(3, 0, 0, 0, 0, (Entry(1, 3, b"apple"),))))
    assert settle(node) == [AppendReply(3, True, 1, 0)]
    node.step("n2", CODEC.encode(AppendEntries(3, 1, 3, 1, 0, no_reply=True)))
    assert settle(node) == []
    assert node.status().commit == 1
    node.step(
        "n2", CODEC.encode(AppendEntries(3, 5, 3, 5, 0, no_reply=True))
    )  # entries were lost before it
    assert settle(node) == [AppendReply(3, False, 5, 0, 1, 3)]


def test_everything_but_a_commit_index_wants_a_reply() -> None:
    """A round of reads, a heartbeat, and any message to a peer that is probed or does not count."""
    node = a_leader()
    node.step("n2", CODEC.encode(AppendReply(1, True, 1, 0)))
    node.propose(b"apple")
    settle(node)
    node.step("n2", CODEC.encode(AppendReply(1, True, 2, 0)))
    commits = [each for each in settle(node) if isinstance(each, AppendEntries)]
    # n3 is silent, and still being probed
    assert commits == [AppendEntries(1, 2, 1, 2, 0, no_reply=True)]
    node.read_index(7)
    asked = [each for each in settle(node) if isinstance(each, AppendEntries)]
    assert [(each.round, each.no_reply) for each in asked] == [(1, False)] * len(asked)
    assert asked
    for _ in range(5):
        node.tick()
    beats = [each for each in settle(node) if isinstance(each, AppendEntries)]
    assert [(each.heartbeat, each.no_reply) for each in beats] == [(True, False), (True, False)]


@pytest.mark.parametrize("members", [("n1", "n2"), ("n1", "n1", "n2"), ("n2", "n3", "n4")])
def test_an_impossible_list_of_members_is_refused(members: tuple[str, ...]) -> None:
    """Two nodes are worse than one, and a node must be one of its own cluster."""
    with pytest.raises(Misuse):
        a_node(members=members)


def test_any_two_majorities_share_a_member() -> None:
    """The fact on which everything rests."""
    assert all(2 * majority_of(count) > count for count in range(1, 8))
    assert reached([9, 1, 5, 7, 3], 3) == 5
    assert reached([9, 8], 3) == 0


SEATS = {"n1": Seat(0, True, "a:1"), "n2": Seat(5), "n4": Seat(LEARNING, False, "b:2")}

MESSAGES = [
    RequestVote(7, 3, 2, pre_vote=True),
    RequestVote(7, 3, 2, transfer=True),
    VoteReply(7, True),
    VoteReply(7, False, pre_vote=True),
    AppendEntries(7, 3, 2, 1, 9, heartbeat=True),
    AppendEntries(7, 3, 2, 1, 9, no_reply=True),
    AppendEntries(7, 3, 2, 1, 9, (Entry(4, 2, b"apple"), Entry(5, 7, b"", EntryKind.NO_OP))),
    AppendEntries(7, 3, 2, 1, 9, (Entry(4, 7, pack_member("n2", 5), EntryKind.MEMBER),)),
    AppendEntries(
        7, 3, 2, 1, 9, (Entry(4, 7, pack_configuration(SEATS), EntryKind.CONFIGURATION),)
    ),
    AppendReply(7, True, 3, 9),
    AppendReply(7, False, 3, 9, 2, 1),
    InstallSnapshot(7, 3, 2, 10, 20, 9, b"0123456789"),
    SnapshotReply(7, 3, 10, 9),
    TimeoutNow(7),
    ReadIndex(7, 5),
    ReadIndexReply(7, 5, 3),
]


# CRC-32 of the encoding of each message above: nodes of two versions must understand each other.
ENCODED = [
    0xC01C3B01, 0x973E1753, 0x9101D24B, 0xE7E4EB76, 0x192E992F, 0x56BF61A5, 0x356B6D9B, 0x3C7AB7BE,
    0xB59D6886, 0x217DE175, 0x48747798, 0x49DB2C86, 0x8BC61E72, 0x94B4FADA, 0x844D283C, 0x9D7974E4,
]  # fmt: skip


def test_the_bytes_on_the_wire_are_those_of_this_version() -> None:
    """If they change, so does the version that nodes agree on in the handshake."""
    assert [crc32(CODEC.encode(message)) for message in MESSAGES] == ENCODED


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_every_message_survives_encoding_and_decoding(message: AnyMessage) -> None:
    """The same fields come out, whatever the kind."""
    assert CODEC.decode(CODEC.encode(message)) == (0, message)


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_a_truncated_message_is_the_peers_fault(message: AnyMessage) -> None:
    """No prefix of a message is a valid message, nor is one with bytes appended."""
    data = CODEC.encode(message)
    # The data of a chunk has no length field: a shorter chunk is a valid one too.
    ends = 24 + 40 if isinstance(message, InstallSnapshot) else len(data)
    for cut in range(ends):
        with pytest.raises(PeerError):
            CODEC.decode(data[:cut])
    with pytest.raises(PeerError):
        CODEC.decode(data + b"\0" * 11)


@given(st.binary(max_size=200), st.sampled_from(MESSAGES), st.integers(0, 200))
def test_hostile_bytes_raise_nothing_but_a_peer_error(
    noise: bytes, message: AnyMessage, place: int
) -> None:
    """Whatever a peer sends, the node carries on."""
    node = a_node()
    data = CODEC.encode(message)
    for hostile in (noise, data[:place] + noise, data[:24] + noise):
        with contextlib.suppress(PeerError):
            node.step("n2", hostile)
        with contextlib.suppress(PeerError):
            incarnation, decoded = CODEC.decode(hostile)
            assert MessageCodec("", MEMBERS, incarnation).encode(decoded) == hostile
