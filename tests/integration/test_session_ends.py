"""Sessions that end by decision: reset and forgotten on all nodes at the same instruction."""

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from replicator.push.progress import SessionProgress
from replicator.wire.messages import Ack
from rt import Position, SessionChange
from rt.errors import FlushTimeout, Refused, SessionDiverged
from rt.log.files.directory import LogDirectory
from rt.log.notify.confirmations import ConfirmationsFile, Level
from rt.log.read.start import end_of
from rt.node.ingest.session_epochs import SessionEpoch
from rt.position import START
from sequencer.execution.copies import Copies
from sequencer.ledger.instruction import Merge
from sequencer.ledger.ledger import decode_ledger
from sequencer.ledger.life import Life
from sequencer.ledger.session_facts import Ownership
from sequencer.planning.holdings import Holdings
from sequencer.planning.planner import Planner
from tests.archive_cluster import STREAM, ArchiveCluster
from tests.commands import run
from tests.integration.test_session_life import events_of
from tests.replicator_host import eventually
from tests.unit.test_sequencing import Bench, publish
from tests.unit.test_session_epochs import noted, remembered

PATIENCE_S = 60
LOG = "0123456789abcdef" * 2


def decided(cluster, *words):
    """Run `rt session`, and return its answer."""
    config = os.path.join(cluster.root, "clients.toml")
    done = run("session", *words, "--config", config, "--json")
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def merged(cluster, payloads, session="jfk"):
    """Publish, wait until it is merged and all nodes have it, and end publisher and pusher."""
    push = cluster.push()
    with cluster.publisher(session) as publisher:
        publisher.publish_many(payloads)
        publisher.flush(Level.MERGED, PATIENCE_S)
        # A majority merges it; the last node may not have been reached yet.
        assert eventually(lambda: all(each.exists() for each in copies(cluster)), PATIENCE_S)
    push.stop()
    assert eventually(lambda: not decided(cluster, "show", session)["pushed_by"], PATIENCE_S)


def copies(cluster, session="jfk"):
    """The directories of all nodes' copies of a session."""
    inputs = (os.path.dirname(cluster.out(name)) for name in cluster.nodes)
    return [Path(each) / "in" / session for each in inputs]


def are_equal(cluster):
    """Whether all nodes have executed the same."""
    return len({cluster.ledger(name).encode() for name in cluster.nodes}) == 1


@pytest.mark.parametrize("nodes", [1, 3])
def test_a_session_whose_directory_was_made_again_goes_on_after_a_reset(tmp_path, nodes):
    """Its owner was refused as another log for ever."""
    with ArchiveCluster(tmp_path, nodes=nodes) as cluster:
        directory = tmp_path / "pub" / STREAM / "jfk"
        merged(cluster, [b"old%d" % number for number in range(10)])
        directory.rename(tmp_path / "zombie")
        publisher, push = cluster.publisher(), cluster.push()
        publisher.publish_many([b"new%d" % number for number in range(4)])
        assert eventually(
            lambda: "this directory was deleted" in publisher.shipping_note, PATIENCE_S
        )
        push.stop()
        answer = decided(cluster, "reset", "jfk")
        assert (answer["change"], answer["now"].get("merged", "0.0.0")) == ("reset", "0.0.0")
        push = cluster.push()
        publisher.flush(Level.MERGED, PATIENCE_S)
        assert eventually(lambda: are_equal(cluster), PATIENCE_S)
        push.stop()
        publisher.close()
        shutil.rmtree(directory)
        (tmp_path / "zombie").rename(directory)
        publisher, push = cluster.publisher(), cluster.push()
        assert eventually(lambda: "was retired" in publisher.shipping_note, PATIENCE_S)
        publisher.publish(b"late")
        with pytest.raises(FlushTimeout, match="was retired"):
            publisher.flush(Level.MERGED, 0.1)
        pull = cluster.pull()
        assert pull.wait_caught_up(PATIENCE_S)
        events, count = events_of(tmp_path / "sub", stream=STREAM)
        changes = [each.change for each in events]
        assert changes[0] is SessionChange.OPENED
        assert changes.count(SessionChange.RESET) == 1
        assert SessionChange.RESUMED in changes[changes.index(SessionChange.RESET) :]
        assert count == 14
        for name in list(cluster.nodes):  # each repeats the instruction from its journal
            cluster.stop(name)
            cluster.start(name)
        other = cluster.publisher("lga")
        other.publish(b"x")
        other.flush(Level.MERGED, PATIENCE_S)
        assert eventually(lambda: are_equal(cluster), PATIENCE_S)


def test_a_forgotten_session_leaves_no_copy_on_any_node_and_its_name_is_free(tmp_path):
    """Nodes kept every session there ever was."""
    with ArchiveCluster(tmp_path, nodes=3) as cluster:
        merged(cluster, [b"old"])
        decided(cluster, "forget", "jfk")
        gone = copies(cluster)
        assert eventually(lambda: not any(each.exists() for each in gone), PATIENCE_S)
        assert not decided(cluster, "list")
        assert all("jfk" not in cluster.ledger(name).sessions for name in cluster.nodes)
        shutil.rmtree(tmp_path / "pub" / STREAM / "jfk")
        merged(cluster, [b"another"])
        assert eventually(lambda: are_equal(cluster), PATIENCE_S)
        assert cluster.ledger("n1").number == 2


def test_a_session_that_is_being_pushed_is_neither_reset_nor_forgotten(tmp_path):
    """A live owner is never displaced."""
    with ArchiveCluster(tmp_path) as cluster:
        publisher, _ = cluster.publisher(), cluster.push()
        publisher.publish(b"one")
        publisher.flush(Level.MERGED, PATIENCE_S)
        config = ["--config", os.path.join(cluster.root, "clients.toml")]
        for act in ("reset", "forget"):
            refused = run("session", act, "jfk", *config)
            assert refused.exit_code == 3
            assert "is being pushed by 'publisher'; stop it first" in refused.output
            unknown = run("session", act, "ewr", *config)
            assert (unknown.exit_code, "no session 'ewr' is known" in unknown.output) == (2, True)


def test_the_ledger_after_a_reset_is_the_same_from_a_snapshot(tmp_path):
    """A node that receives the state instead of the instruction must drop its copy as well."""
    publish(tmp_path)
    bench = Bench(tmp_path)
    bench.merge_all()
    digest = bench.ledger.digest
    bench.order(Life(9, SessionChange.RESET, "a", bench.ledger.merged_to("a"), log=LOG))
    ledger = bench.ledger
    assert ledger.merged_to("a") == START
    assert (ledger.watermark("a"), "a" in ledger.tails) == (0, False)
    assert ledger.begun["a"] == (ledger.index, LOG)
    assert ledger.digest != digest
    assert decode_ledger(ledger.encode()) == ledger
    assert ledger.dropped_after(ledger.index - 1) == ["a"]
    assert ledger.dropped_after(ledger.index) == []


def test_a_log_that_was_retired_stays_so_when_its_session_ends_again(tmp_path):
    """What it holds is merged: pushed again after a second reset, it would be merged twice."""
    publish(tmp_path)
    bench = Bench(tmp_path)
    bench.merge_all()
    bench.order(Life(9, SessionChange.RESET, "a", bench.ledger.merged_to("a"), log=LOG))
    end = bench.ledger.end
    bench.order(Life(9, SessionChange.RESET, "a", START, log=LOG))
    assert bench.ledger.end == end, "ordered twice, it is made once"
    others = [f"{number:032x}" for number in range(8)]
    bench.order(Life(9, SessionChange.FORGOTTEN, "a", START, log=others[0]))
    bench.order(Life(9, SessionChange.FORGOTTEN, "a", START))
    ledger = decode_ledger(bench.ledger.encode())
    assert ledger == bench.ledger
    noted(tmp_path / "in", a=SessionEpoch(*ledger.begun["a"]))
    session = remembered(tmp_path / "in", "a")
    for log in (LOG, others[0]):
        with pytest.raises(Refused, match="was retired"):
            session.demand_log(log)
    session.demand_log(others[1])
    for log in others[1:]:
        bench.order(Life(9, SessionChange.RESET, "a", START, log=log))
    assert bench.ledger.begun["a"][1].split() == others[::-1], "the oldest is forgotten"


def test_copies_that_differed_before_a_reset_do_not_keep_the_next_one_from_being_merged(tmp_path):
    """A node would wait for the output of the others, and they for its, if all had differed."""
    publish(tmp_path)
    bench = Bench(tmp_path)
    held = {"b": end_of(LogDirectory(str(bench.top / "b")))}
    bench.executor.held = held
    merge = Planner(bench.logs).plan(bench.ledger, held, 1)
    other = Merge(1, (replace(merge.slices[0], digest=bytes(16)),))
    for _ in range(2):
        with pytest.raises(SessionDiverged):
            bench.executor.execute(1, 1, other)
    assert bench.executor.lacking(merge) == merge.slices[0]
    copies = Copies(bench.executor, Holdings("n1", ["n1"]))
    bench.logs.records.set_aside("b")
    assert bench.executor.lacking(merge) == merge.slices[0]
    copies.drop("b")
    assert bench.executor.lacking(merge) is None


def test_what_a_node_held_before_it_executed_a_reset_counts_for_nothing():
    """The leader would call a majority durable what one node alone has."""
    leader, other = Holdings("a", "abc"), Holdings("b", "abc")
    other.record_durable("jfk", Position(800))
    leader.record_durable("jfk", Position(800))
    [report] = other.whole()
    leader.take_report("b", report)
    assert leader.agreed("jfk") == 800
    leader.drop("jfk")
    leader.record_durable("jfk", Position(64))
    leader.take_report("b", report, ["jfk"])
    assert leader.agreed("jfk") == 0


def test_forgotten_sessions_are_not_reported_for_ever():
    """Every node would repeat to every other, several times a second, each that there ever was."""
    leader, other = Holdings("a", "abc"), Holdings("b", "abc")
    for holdings in (leader, other):
        holdings.record_durable("jfk", Position(800))
    leader.take_report("b", other.whole()[0])
    other.drop("jfk")
    other.record_durable("lga", Position(64))
    [report] = other.whole()
    assert b"jfk" not in report
    assert leader.take_report("b", report) == ["lga"]
    assert leader.of("b") == {"lga": 64}


def test_a_copy_that_was_begun_after_an_instruction_survives_its_repetition(tmp_path):
    """After a crash a node executes again what it had executed, and the new copy has new bytes."""
    assert remembered(tmp_path, "jfk").is_blank
    noted(tmp_path, jfk=SessionEpoch(10, LOG))
    again = remembered(tmp_path, "jfk")
    assert again.begun == SessionEpoch(10, LOG)
    again.demand_log("f" * 32)
    with pytest.raises(Refused, match="was retired"):
        again.demand_log(LOG)


def test_what_was_confirmed_of_a_log_says_nothing_of_the_one_made_in_its_place(tmp_path):
    """`merged` would be confirmed for messages that no node has seen, and files archived."""
    far, near = (
        Ack(0, *[Position(end)] * 4, Position(1)) for end in (800, 64)
    )  # fmt: skip
    progress = SessionProgress(str(tmp_path))
    assert progress.record("n1", far, "old")
    progress.save()
    os.unlink(tmp_path / "confirmed")
    assert progress.record("n1", near, "new")
    progress.save()
    assert ConfirmationsFile(str(tmp_path)).read().merged == 64
    assert not progress.record("n2", far, "old"), "it is late"
    assert progress.released == 64


def test_a_copy_of_another_log_than_was_agreed_on_is_not_vouched_for(tmp_path):
    """Without a last frame to compare, a node that lags took the next log for the last one."""
    publish(tmp_path)
    bench = Bench(tmp_path)
    bench.merge_all("b")
    ledger, holdings = bench.ledger, Holdings("n1", ["n1"])
    ledger.tails.pop("b")  # as after a slice of repeats
    ledger.opened["b"] = Ownership("alice", "f" * 32, 1)
    copies = Copies(bench.executor, holdings)
    bench.executor.held = holdings.own
    holdings.record_durable("b", ledger.merged_to("b"))
    bench.logs.records.grow("b")
    copies.check()
    assert "b" not in bench.logs.records.checked
    log = bench.executor.log_of("b").id
    ledger.opened["b"] = Ownership("alice", log, 1)
    copies.check()
    assert "b" in bench.logs.records.checked


def test_a_session_that_was_put_back_is_shown_with_its_cause_and_what_to_do(tmp_path):
    """The status was healthy, while nothing of what its publisher published was taken."""
    with ArchiveCluster(tmp_path) as cluster:
        merged(cluster, [b"one"])
        mine = tmp_path / "pub" / STREAM / "jfk"
        shutil.copytree(mine, tmp_path / "backup")
        merged(cluster, [b"two"])
        shutil.rmtree(mine)
        shutil.copytree(tmp_path / "backup", mine)
        push = cluster.push()
        node = next(iter(cluster.nodes.values()))
        assert eventually(lambda: node.status()["sessions"][0]["apart"], PATIENCE_S)
        config = ["--config", os.path.join(cluster.root, "clients.toml")]
        for command in ("status", "check"):
            shown = run(command, *config)
            assert "it was put back from an older copy" in shown.stdout
            assert "rt session reset jfk" in shown.stdout
        push.stop()
