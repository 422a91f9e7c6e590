"""The cost of a node's round besides its duties."""

from contextlib import suppress
from dataclasses import replace
from types import SimpleNamespace

import pytest
from archive_cluster import ArchiveCluster
from replicator_host import eventually

from rt.errors import Refused
from rt.log.notify.confirmations import Level
from rt.node.agree.duties import Duties
from rt.node.agree.view import NodeView, Waiting
from rt.node.host.pipeline import can_wait
from rt.position import START
from sequencer.ledger.format_level import CARRYING, LEVEL_NOTE, FormatLevel
from sequencer.ledger.instruction import Note
from sequencer.ledger.ledger import Ledger
from sequencer.raft.codec import MessageCodec
from sequencer.raft.consensus import EngineRole, Entry
from sequencer.raft.messages import AppendEntries, AppendReply


def said(message):
    """A message of another node's engine, as it arrives."""
    return b"\x01" + MessageCodec("flights", ["n1", "n2"], 1).encode(message)


NOTE = AppendEntries(1, 5, 1, commit=5, round=0, no_reply=True)
ENTRY = Entry(6, 1, b"x")


@pytest.mark.parametrize(
    ("messages", "is_pulled", "is_done_now"),
    [
        ([said(NOTE)], False, False),
        ([said(NOTE)], True, True),
        ([said(NOTE), said(NOTE)], False, True),
        ([said(NOTE._replace(no_reply=False))], False, True),
        ([said(NOTE._replace(heartbeat=True))], False, True),
        ([said(NOTE._replace(entries=(ENTRY,)))], False, True),
        ([said(AppendReply(1, True, 5, 0))], False, True),
        ([said(AppendReply(1, True, 5, 0)), said(NOTE)], False, True),
        ([b"\x02" + said(NOTE)[1:]], False, True),
        ([b"\x01"], False, True),
    ],
)
def test_what_is_committed_is_merged_with_what_comes_next_unless_somebody_pulls(
    messages, is_pulled, is_done_now
):
    """A round less for each message on each follower that is not pulled from."""
    view = SimpleNamespace(leads=False, is_executing=False)
    waits = can_wait("n2", messages, view, is_pulled=is_pulled, is_reading=False)
    assert waits != is_done_now


REPLY = AppendReply(1, True, 5, 0)


@pytest.mark.parametrize(
    ("reply", "view", "is_done_now"),
    [
        (REPLY, {}, False),
        (REPLY, {"is_executing": True}, True),
        (REPLY, {"leads": False}, True),
        (REPLY, {"lag": 3}, True),
        (REPLY, {"name": "n3"}, True),
        (replace(REPLY, success=False), {}, True),
        (replace(REPLY, round=7), {}, False),
        (replace(REPLY, round=7), {"is_waiting": True}, True),
    ],
)
def test_a_reply_waits_if_nothing_depends_on_it(reply, view, is_done_now):
    """The second of two followers replies when the first has made the majority already.

    A read waits for its round, a rejection or a member that lags for more entries.
    """
    known = {"leads": True, "is_executing": False, "name": "n2", "lag": 2} | view
    is_waiting = known.get("is_waiting", False)
    peers = (SimpleNamespace(name=known["name"], lag=known["lag"]),)
    shown = SimpleNamespace(
        leads=known["leads"], is_executing=known["is_executing"],
        engine=SimpleNamespace(peers=peers),
    )  # fmt: skip
    waits = can_wait("n2", [said(reply)], shown, is_pulled=True, is_reading=is_waiting)
    assert waits != is_done_now


LEARNER, FOLLOWER = EngineRole.LEARNER, EngineRole.FOLLOWER


@pytest.mark.parametrize(
    ("is_behind", "waiting", "role", "is_whole", "is_open"),
    [
        (False, {}, FOLLOWER, True, True),
        (True, {}, FOLLOWER, False, True),
        (False, {"confirmations": 1}, FOLLOWER, False, True),
        (False, {"undecided": 7}, FOLLOWER, False, True),
        (False, {"copy": "copying"}, FOLLOWER, False, False),
        (False, {}, LEARNER, False, False),
    ],
)
def test_a_puller_is_complete_only_where_the_node_is(is_behind, waiting, role, is_whole, is_open):
    """What a node lacks, its pullers lack, and they would end with exit 0."""
    fields = dict.fromkeys(NodeView._fields)
    fields |= {"engine": SimpleNamespace(role=role), "waiting": Waiting(**waiting)}
    view = NodeView(**{**fields, "is_behind": is_behind})
    assert (view.is_whole, view.refusal is None) == (is_whole, is_open)


def test_nothing_is_carried_before_the_level_of_the_cluster_allows_it(tmp_path):
    """A member that went back to an older version would end at the first instruction with bytes."""
    with ArchiveCluster(tmp_path, nodes=3) as cluster:

        def leader():
            led = [each for each in cluster.nodes.values() if each.pipeline.sequencer.view.leads]
            return led[0] if led else None

        assert eventually(lambda: leader() and leader().pipeline.sequencer.view.carries)
        for level in (CARRYING - 1, CARRYING):

            def is_agreed(level=level):
                led = leader()
                with suppress(Refused):  # another one may be elected just then
                    if led is not None and led.pipeline.sequencer.view.carries != (
                        level >= CARRYING
                    ):
                        note = Note(1, LEVEL_NOTE, FormatLevel(level, "a test", 1).text())
                        led.pipeline.sequencer.order(note)
                        return False
                return led is not None

            assert eventually(is_agreed)


@pytest.mark.parametrize("is_half_done", [False, True])
def test_an_instruction_that_was_cut_short_is_not_executed_for_a_read(is_half_done):
    """A leader with a full disk said that the stream ends before what others had confirmed."""
    engine = SimpleNamespace(leader="n1", leads=True)
    member = SimpleNamespace(
        engine=engine,
        execution=SimpleNamespace(queue=[7]),
        proposals=SimpleNamespace(carries=False),
    )
    ledger = Ledger()
    ledger.index = 7
    executor = SimpleNamespace(ledger=ledger, is_half_done=is_half_done)
    duties = SimpleNamespace(
        _member=member, _executor=executor, _status=engine, _waiting=None, _agreed_ns=()
    )
    assert Duties.view(duties).executed == 7 - is_half_done


class CountingBell:
    """Counts how often a pulling connection is woken."""

    def __init__(self):
        self.ends = []
        self.feed = None

    def set(self):
        self.ends.append(self.feed.end())


def test_a_merge_wakes_a_pulling_connection_once(tmp_path):
    """A second time its thread would look, find nothing, and take the processor from the rest."""
    with ArchiveCluster(tmp_path) as cluster:
        node, bell = cluster.nodes["n1"], CountingBell()
        bell.feed = node.pipeline.feeds.open(bell)
        cluster.push(cluster.addresses)
        publisher = cluster.publisher()
        for _ in range(3):
            publisher.publish(b"x")
            publisher.flush(Level.MERGED, 60)
        feeds = node.pipeline.feeds
        assert eventually(lambda: bell.ends and bell.ends[-1] == feeds.end)
        assert len(bell.ends) == len(set(bell.ends)) >= 3
        assert START not in bell.ends
