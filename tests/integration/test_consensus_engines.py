"""Both engines keep the same promises; the raftos half needs what `make test` installs."""

import importlib
import os
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rt.errors import Misuse, PeerError, Refused
from rt.node.host.node import Node
from rt.node.settings.agreement import AgreementSettings, engine_of
from rt.node.settings.node import NodeSettings
from sequencer.journal.journal import found, open_journal
from sequencer.raft.codec import MessageCodec
from sequencer.raft.consensus import Ballot, EngineRole, Entry, Ready
from sequencer.raft.core import Settings
from sequencer.raft.engine import Raft
from sequencer.raft.messages import AppendEntries, RequestVote, VoteReply
from tests.sim.checkers import Violation
from tests.sim.cluster import Cluster
from tests.sim.disk import SimDisk
from tests.sim.mutants import switched_on
from tests.transcripts.player import Stage

ROOT = Path(__file__).parents[2]
MEMBERS = ("n1", "n2", "n3")
CODEC = MessageCodec("demo", MEMBERS, 0)


def the_engines():
    """Both; the second is skipped, with its own error message, if it cannot be loaded."""
    try:
        return [Raft, engine_of("raftos")]
    except (Misuse, Refused) as reason:
        return [Raft, pytest.param(None, marks=pytest.mark.skip(str(reason)), id="raftos")]


ENGINES = the_engines()
needs_raftos = pytest.mark.skipif(
    not isinstance(ENGINES[1], type), reason="raftos is not installed: make .venv/raftos"
)


@pytest.fixture(params=ENGINES, ids=["raft", "raftos"])
def engine(request):
    """One of the engines."""
    return request.param


def play(engine, *commands):
    """Run these commands on a stage; return the output of the last one."""
    stage = Stage(engine)
    return [stage.perform(command) for command in commands][-1]


def applied(lines):
    """Return what each node has applied, from the output of `status`."""
    return [line.rpartition(": ")[2] for line in lines]


def settle(node):
    """Perform all duties; return the messages sent and the entries committed."""
    said, decided = [], []
    while ready := node.ready():
        node.persisted(ready)
        decided += ready.committed
        said += [CODEC.decode(each.data)[1] for each in (*ready.early, *ready.messages)]
    return said, decided


# Elections


def test_one_node_is_elected_and_the_others_follow_it(engine):
    """The first job of an engine."""
    lines = play(engine, "cluster n1 n2 n3", "timeout n1", "deliver", "status")
    assert [line.split(",")[0] for line in lines] == [
        "n1 leader term 1", "n2 follower term 1", "n3 follower term 1",
    ]  # fmt: skip


def test_without_a_majority_no_node_leads_and_the_term_does_not_grow(engine):
    """A node that returns from a partition disrupts no leader (raftos increments terms)."""
    lines = play(engine, "cluster n1 n2 n3", "cut n2 n3", "wait 500", "deliver", "status")
    assert {line.split()[3] for line in lines} == {"0,"}
    assert not any(" leader " in line for line in lines)


def test_another_node_leads_after_the_leader_is_killed(engine):
    """The point of having three nodes."""
    lines = play(
        engine, "cluster n1 n2 n3", "elect n1", "propose n1 apple", "deliver", "crash n1",
        *["wait 1", "deliver"] * 100, "status",
    )  # fmt: skip
    assert sum(" leader " in line for line in lines) == 1
    assert applied(lines[1:]) == ["apple", "apple"]


def test_a_leader_that_hears_no_majority_steps_down(engine):
    """Its clients must not wait for what it cannot commit (raftos' timer, our majority)."""
    commands = ["cluster n1 n2 n3", "elect n1", "cut n1", *["wait 1", "deliver"] * 25, "status"]
    assert not play(engine, *commands)[0].startswith("n1 leader")


def test_a_leader_that_hears_a_majority_stays(engine):
    """An idle cluster does not change leaders."""
    commands = ["cluster n1 n2 n3", "elect n1", "cut n3", *["wait 1", "deliver"] * 300, "status"]
    assert play(engine, *commands)[0].startswith("n1 leader term 1,")


def test_the_same_vote_twice_is_one_vote(engine):
    """Raftos counts datagrams: two of five nodes elected a leader."""
    members = ("n1", "n2", "n3", "n4", "n5")
    codec = MessageCodec("demo", members, 0)
    node = engine("n1", members, cluster="demo", chance=Random(1))
    while node.status().role is not EngineRole.PRE_CANDIDATE:
        node.tick()
    for pre_vote, before in ((True, EngineRole.PRE_CANDIDATE), (False, EngineRole.CANDIDATE)):
        for _ in range(3):
            node.step("n2", codec.encode(VoteReply(1, True, pre_vote=pre_vote)))
        assert node.status().role is before
        node.step("n3", codec.encode(VoteReply(1, True, pre_vote=pre_vote)))
    assert node.leads


def test_a_single_node_leads_at_once_and_for_ever(engine):
    """There is no other node to wait for (raftos on its own never leads)."""
    node = engine("n1", ["n1"], chance=Random(1))
    assert node.leads
    for _ in range(1_000):
        node.tick()
    settle(node)
    node.propose(b"apple")
    assert [entry.command for entry in settle(node)[1]] == [b"apple"]
    assert node.status().term == 1


# Replication


def test_committed_commands_are_applied_everywhere_in_order(engine):
    """The second job of an engine."""
    lines = play(
        engine, "cluster n1 n2 n3", "elect n1", "propose n1 apple pear plum", "deliver", "status"
    )  # fmt: skip
    assert applied(lines) == ["apple pear plum"] * 3


def test_uncommitted_entries_of_an_isolated_leader_are_replaced(engine):
    """Its uncommitted tail is replaced, and nothing else."""
    lines = play(
        engine, "cluster n1 n2 n3", "elect n1", "propose n1 apple", "deliver",
        "cut n1", "propose n1 lost", "tick n3 10", "timeout n2", "deliver",
        "propose n2 pear", "deliver", "heal", *["wait 1", "deliver"] * 60, "status",
    )  # fmt: skip
    assert applied(lines) == ["apple pear"] * 3


def test_a_late_duplicate_of_an_old_message_truncates_nothing(engine):
    """Raftos 0.2.6 dropped acknowledged entries on a late duplicate."""
    node = engine("n1", MEMBERS, cluster="demo", chance=Random(1))
    entries = tuple(Entry(index, 1, b"%d" % index) for index in range(1, 6))
    first = CODEC.encode(AppendEntries(1, 0, 0, 0, 0, entries[:1]))
    node.step("n2", first)
    node.step("n2", CODEC.encode(AppendEntries(2, 1, 1, 5, 0, entries[1:])))
    assert [entry.index for entry in settle(node)[1]] == [1, 2, 3, 4, 5]
    node.step("n2", first)
    node.step("n2", CODEC.encode(AppendEntries(2, 0, 0, 5, 0, entries[:1])))
    settle(node)
    assert node.status().last == 5


# Disks


def a_disk():
    """A disk with the state of the founding member n1."""
    disk = SimDisk(Random(1))
    found(disk, "state", cluster="demo", node="n1", directory=7)
    disk.settle_all()
    return disk


def opened(disk):
    """What the journal recovers."""
    return open_journal(disk, "state", cluster="demo", node="n1", fresh=9)


def test_vote_and_entries_survive_a_power_cut(engine):
    """Raftos forgets its vote at every start, and votes again in the same term."""
    disk = a_disk()
    journal = opened(disk).journal
    node = engine("n1", MEMBERS, cluster="demo", chance=Random(1))
    node.step("n2", CODEC.encode(RequestVote(5, 0, 0)))
    node.step("n3", CODEC.encode(AppendEntries(4, 0, 0, 0, 0)))
    ready = node.ready()
    assert isinstance(ready, Ready)
    journal.persist(ready)
    disk.cut_power()
    state = opened(disk).state
    assert state.ballot == Ballot(5, "n2")
    again = engine("n1", MEMBERS, cluster="demo", chance=Random(1), state=state)
    again.step("n3", CODEC.encode(RequestVote(5, 9, 4)))
    assert settle(again)[0] == [VoteReply(5, False)]


def test_entries_survive_a_power_cut_and_are_committed_again(engine):
    """Raftos 0.2.6 never committed anything again after a full restart."""
    disk = a_disk()
    for fruit in (b"apple", b"pear"):
        there = opened(disk)
        node = engine("n1", ["n1"], cluster="demo", chance=Random(1), state=there.state)
        node.propose(fruit)
        decided = []
        while ready := node.ready():
            there.journal.persist(ready)
            node.persisted(ready)
            decided += [entry.command for entry in ready.committed if entry.command]
        disk.cut_power()
    assert decided == [b"apple", b"pear"]


def test_a_whole_cluster_that_restarts_goes_on(engine):
    """A power cut of the whole building loses nothing."""
    lines = play(
        engine, "cluster n1 n2 n3", "elect n1", "propose n1 apple", "deliver",
        "crash n1 n2 n3", "restart n1 n2 n3", "timeout n2", "deliver",
        "propose n2 pear", "deliver", "status",
    )  # fmt: skip
    assert applied(lines) == ["apple pear"] * 3


def test_a_node_whose_next_entries_were_compacted_gets_a_snapshot(engine):
    """Otherwise a log could never be compacted (raftos never compacts it)."""
    lines = play(
        engine, "cluster n1 n2 n3 trail_entries=0 chunk_bytes=40", "elect n1", "cut n3",
        "propose n1 apple pear plum", "deliver", "snapshot n1", "heal",
        *["tick n1 2", "deliver"] * 2, "status",
    )  # fmt: skip
    assert applied(lines) == ["apple pear plum"] * 3


# Handing over, reading


def test_leadership_is_handed_over_without_a_timeout(engine):
    """A planned stop causes no outage."""
    lines = play(engine, "cluster n1 n2 n3", "elect n1", "transfer n1 n2", "deliver", "status")
    assert [line.split(",")[0] for line in lines] == [
        "n1 follower term 2", "n2 leader term 2", "n3 follower term 2",
    ]  # fmt: skip


def test_a_read_sees_everything_committed_before_it(engine):
    """Even when a follower is asked."""
    lines = play(engine, "cluster n1 n2 n3", "elect n1", "propose n1 apple", "deliver", "read n2 7",
                 "deliver")  # fmt: skip
    assert "n2 may answer read 7 from index 2" in lines


def test_a_deposed_leader_answers_no_read(engine):
    """It may not know yet that another leader commits (raftos reads its own dictionary)."""
    stage = Stage(engine)
    said = []
    for command in ("cluster n1 n2 n3", "elect n1", "cut n1", "tick n3 10", "timeout n2",
                    "deliver", "read n1 7", "deliver", "heal", "wait 30", "deliver"):  # fmt: skip
        said += stage.perform(command)
    assert not any("may answer" in line for line in said)


# Hostile bytes


@pytest.mark.parametrize("make", ENGINES, ids=["raft", "raftos"])
def test_hostile_bytes_raise_nothing_but_the_peers_error(make):
    """Whatever a peer sends, the node carries on and does not become leader."""
    honest = [
        CODEC.encode(each)
        for each in (RequestVote(1, 0, 0, pre_vote=True), AppendEntries(0, 0, 0, 0, 0))
    ]

    @settings(max_examples=200)
    @given(st.binary(max_size=200), st.sampled_from(honest), st.integers(0, 60))
    def feed(noise, data, place):
        node = make("n1", MEMBERS, cluster="demo", chance=Random(1))
        for hostile in (noise, data[:place] + noise):
            try:
                node.step("n2", hostile)
            except PeerError:
                continue
        for _ in range(100):
            node.tick()
        assert node.status().role is not EngineRole.LEADER

    feed()


# Simulated worlds


def live_through(seeds, make):
    """Run these worlds, whose nodes have these engines."""

    class Engines(Cluster):
        engine = staticmethod(make)

    for seed in seeds:
        assert Engines(seed).run()


@pytest.mark.parametrize("quarter", range(4))
def test_simulated_worlds_break_no_promise(engine, quarter):
    """A few of each engine; the rest are below, and tests/sim runs thousands of raft."""
    live_through(range(quarter * 10, (quarter + 1) * 10), engine)


def mixed(name, *rest, **more):
    """Return an engine for a node, of the kind that its number has."""
    return ENGINES[int(name[1:]) % 2](name, *rest, **more)


@needs_raftos
def test_nodes_of_both_engines_serve_one_stream():
    """The engine is changed node by node, like everything else."""
    live_through(range(200, 210), mixed)


@needs_raftos
@pytest.mark.faults
def test_many_simulated_worlds_of_the_second_engine_break_no_promise():
    """Alone, and with nodes of the first."""
    live_through(range(40, 200), ENGINES[1])
    live_through(range(210, 230), mixed)


@needs_raftos
@pytest.mark.parametrize(
    ("mutant", "first"),
    [("vote-forgotten-on-restart", 50), ("half-is-a-majority", 0), ("reads-without-asking", 0)],
)
def test_the_worlds_detect_mistakes_in_this_engine_too(mutant, first):
    """Two hundred quiet worlds prove nothing if no checker looks."""
    with switched_on(mutant), pytest.raises(Violation):
        live_through(range(first, first + 10), ENGINES[1])


# Which parts of raftos run, and when they may


@needs_raftos
@pytest.mark.faults
def test_what_the_record_says_of_raftos_is_what_runs():
    """A figure in a document was printed by the command named beside it."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.raftos_share"], cwd=ROOT, check=True,
        capture_output=True, text=True, env={**os.environ, "PYTHONHASHSEED": "0"},
    )  # fmt: skip
    record = (ROOT / "docs" / "adr" / "0005-raftos.md").read_text()
    for line in done.stdout.splitlines():
        assert line in record


@needs_raftos
def test_two_engines_of_one_process_do_not_share_a_leader():
    """Raftos keeps leader, nodes and configuration in globals; here they stay untouched."""
    raftos = importlib.import_module("raftos.state")
    ENGINES[1]("n1", ["n1"], chance=Random(1), settings=Settings(1, 3))
    assert raftos.State.leader is None
    assert raftos.config.heartbeat_interval == 0.3
    assert importlib.import_module("raftos.server").Node.nodes == []


def without(monkeypatch, *modules):
    """Forget that these modules were imported."""
    for name in [each for each in sys.modules if each.split(".")[0] in modules]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delitem(sys.modules, "sequencer.raftos_engine", raising=False)


def test_a_node_without_raftos_names_the_two_commands_that_install_it(monkeypatch, tmp_path):
    """In one sentence, before anything is created."""
    without(monkeypatch, "raftos")
    monkeypatch.setitem(sys.modules, "raftos", None)
    root = tmp_path / "node"
    with pytest.raises(Misuse) as missing:
        Node(NodeSettings(root=str(root), agreement=AgreementSettings(consensus="raftos")))
    assert "`pip install --no-deps raftos==0.2.6` and `pip install msgpack`" in str(missing.value)
    assert not root.exists()


def test_another_raftos_is_refused_before_a_line_of_it_runs(monkeypatch, tmp_path):
    """A fork with one more line may vote as it likes; only audited code runs."""
    package = tmp_path / "raftos"
    package.mkdir()
    (package / "__init__.py").write_text("raise SystemError('it ran')\n")
    (tmp_path / "msgpack.py").write_text("")
    without(monkeypatch, "raftos", "msgpack")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(Refused, match=r"__init__\.py.*timer\.py differ; none of it was run"):
        engine_of("raftos")


def test_an_unknown_engine_is_refused():
    """A typo does not start another engine than intended."""
    assert engine_of(AgreementSettings().consensus) is Raft
    with pytest.raises(Misuse, match="use raft or raftos"):
        AgreementSettings(consensus="paxos")
