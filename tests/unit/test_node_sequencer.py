"""NodeSequencer: what a node is to do is done by one thread at a time, to the end."""

import threading
import time
from types import SimpleNamespace

import pytest
from archive_cluster import ArchiveCluster
from replicator_host import Certificates, eventually

from replicator import pull
from rt.errors import DiskFailed
from rt.node import sequencer as node_sequencer
from rt.node.catch_up import CatchUp
from rt.node.relay import NodeRelay
from rt.node.sequencer import NodeSequencer
from rt.node.snapshots import NodeSnapshots
from rt.position import Position
from sequencer.member import SnapshotPlan

PATIENCE_S = 10


class HandedOver:
    """A lock that `run`, when it has let go of it, hands to another thread, and sleeps."""

    def __init__(self):
        self.lock, self.free, self.go_on = threading.Lock(), threading.Event(), threading.Event()
        self.acquire, self.release = self.lock.acquire, self.lock.release

    def __enter__(self):
        self.lock.acquire()

    def __exit__(self, *_error):
        self.lock.release()
        self.free.set()
        assert self.go_on.wait(PATIENCE_S)


def test_the_last_snapshot_waits_for_a_turn_that_began_before_the_stop():
    """It reads the state, and writes the journal, that the turn is changing."""
    did, reached, opened, ended = [], threading.Event(), threading.Event(), threading.Event()

    def advance():
        if threading.current_thread().name == "connection":
            reached.set()
            assert opened.wait(PATIENCE_S)
            did.append("turn")
        return []

    def end():
        did.append("end")
        ended.set()

    nothing = SimpleNamespace(
        member_names=["n1"], tick_s=1000, tick=lambda: None, hold=lambda *_: None, run=advance,
        turn=lambda *_: None, get=lambda _session: None, end=end, missing=None,
        executor=SimpleNamespace(ledger=None),
    )  # fmt: skip
    sequencer = NodeSequencer(
        nothing, nothing, nothing, nothing, nothing, relay=nothing, guard=nothing
    )
    sequencer._busy = busy = HandedOver()
    threads = [threading.Thread(target=sequencer.run, daemon=True)]
    threads[0].start()
    assert busy.free.wait(PATIENCE_S)
    sequencer.hold(8, "jfk")
    threads.append(threading.Thread(target=sequencer.turn, name="connection", daemon=True))
    threads[1].start()
    assert reached.wait(PATIENCE_S)
    sequencer.stop()
    busy.go_on.set()
    ended.wait(0.2)  # which it must not, so that no event can be waited for
    opened.set()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert did == ["turn", "end"]


def test_the_merged_log_is_taken_up_again_only_when_nobody_copies_into_it():
    """A copy that is told to end may be at the disk still, or dial a machine that is not there."""
    did, answers = [], iter([False, False, True])
    done = iter([True])  # asked once: what is over stays so

    def stop(_wait_s):
        did.append("stop")
        return next(answers)

    executor = SimpleNamespace(
        ledger=SimpleNamespace(end=8), lacks_log=True, appender=SimpleNamespace(end=8),
        reopen=lambda: did.append("reopen"),
    )  # fmt: skip
    fake = SimpleNamespace(member_names=["n1", "n2"], tick_s=0.02, missing=None, executor=executor)
    sequencer = NodeSequencer(fake, fake, fake, fake, fake, relay=fake, guard=fake)
    sequencer.catch_up = SimpleNamespace(is_done=lambda _end: next(done), stop=stop)
    for _ in range(3):
        assert sequencer.catch_up is not None
        sequencer._keep_up(0.0)
    assert did == ["stop", "stop", "stop", "reopen"]
    assert (sequencer.catch_up, fake.suspended) == (None, False)


def test_a_node_that_stops_leaves_the_merged_log_to_the_copy_that_has_not_ended():
    """To open it is to cut what the copy is just writing."""
    did = []
    executor = SimpleNamespace(reopen=lambda: did.append("reopen"))
    fake = SimpleNamespace(
        member_names=["n1", "n2"], tick_s=0.02, executor=executor, end=lambda: did.append("end")
    )
    sequencer = NodeSequencer(fake, fake, fake, fake, fake, relay=fake, guard=fake)
    sequencer.catch_up = SimpleNamespace(stop=lambda: did.append("stop"))
    sequencer.stop()
    sequencer.run()
    assert did == ["stop", "end"]


def test_a_node_ends_where_the_copy_it_waits_for_has_ended(tmp_path, monkeypatch):
    """It would wait for good, merge nothing, and have said so in one line of its log."""

    def fail():
        raise DiskFailed(5, "Input/output error")

    place = Position(8)
    copied = SimpleNamespace(
        sync=fail, durable=place, appender=SimpleNamespace(end=place, next_place=place)
    )
    monkeypatch.setattr(pull, "_SYNC_S", 0.01)
    nobody = SimpleNamespace(current=lambda: None)
    client = pull.PullClient(str(tmp_path), "flights", [("localhost", 1)], nobody)
    client._copy.log = copied
    client.start()
    assert eventually(lambda: not client.running)
    executor = SimpleNamespace(ledger=SimpleNamespace(end=place), lacks_log=True)
    fake = SimpleNamespace(member_names=["n1", "n2"], tick_s=0.02, missing=None, executor=executor)
    sequencer = NodeSequencer(fake, fake, fake, fake, fake, relay=fake, guard=fake)
    sequencer.catch_up = CatchUp.__new__(CatchUp)
    sequencer.catch_up._pull, sequencer.catch_up._begin = client, place
    with pytest.raises(DiskFailed, match=r"out: input/output error; this copy has ended"):
        sequencer._keep_up(0.0)
    client._copy.log = None
    assert client.stop()


def test_a_node_copies_though_its_certificate_cannot_be_loaded_just_then(tmp_path):
    """It is renewed in two steps, key and certificate: whoever is connected lives through that."""
    certs = Certificates(str(tmp_path / "ca"))
    did, place = [], Position(8)
    executor = SimpleNamespace(
        lacks_log=True, lacks_lines=0, appender=SimpleNamespace(next_place=place),
        close=lambda: did.append("close"),
    )  # fmt: skip
    fake = SimpleNamespace(
        name="node-1", member_names=["n2", "node-1"], certs=certs.directory, missing_s=1,
        addresses={"n2": ("localhost", 1)}, tick_s=0.02, handlers={}, executor=executor,
        missing=None, root=str(tmp_path), stream="flights", await_sync=lambda: None,
    )  # fmt: skip
    relay = NodeRelay(fake, fake, fake)
    (tmp_path / "ca" / "node-1.key").chmod(0o644)
    sequencer = NodeSequencer(fake, fake, fake, fake, fake, relay=relay, guard=fake)
    sequencer._keep_up(0.0)
    assert did == ["close"]
    assert eventually(lambda: sequencer.catch_up.stop(1))


def test_a_log_is_not_closed_before_the_sync_that_a_snapshot_waits_for(monkeypatch):
    """A closed log has nothing to sync, and would say that all is durable."""
    did, told, begun = [], [], threading.Event()

    def sync():
        begun.set()
        time.sleep(0.2)  # so much time has a close to come in between
        did.append("sync")
        return Position(8)

    executor = SimpleNamespace(
        ledger=SimpleNamespace(end=Position(8)), lacks_log=True, lacks_lines=False, sync=sync,
        appender=SimpleNamespace(next_place=Position(8)), close=lambda: did.append("close"),
    )  # fmt: skip
    fake = SimpleNamespace(
        member_names=["n1", "n2"], tick_s=0.02, missing=None, executor=executor, settled_index=0,
        plan_snapshot=lambda: SnapshotPlan(1, b"", Position(8)), has_durable=told.append, size=0,
        contexts=None,
    )  # fmt: skip
    monkeypatch.setattr(node_sequencer, "CatchUp", lambda *_: did.append("copy"))
    snapshots = NodeSnapshots(fake, fake, fake, fake, pause_s=5)
    sequencer = NodeSequencer(fake, fake, fake, fake, snapshots, relay=fake, guard=fake)
    snapshots.turn(0.0)
    assert begun.wait(PATIENCE_S)
    sequencer._keep_up(0.0)
    assert did == ["sync", "close", "copy"]
    snapshots.turn(1.0)
    assert told == [1]
    snapshots.close()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_node_ends_by_a_fault_that_nobody_foresaw(tmp_path, caplog):
    """A node without the thread that merges takes data, votes, and delivers nothing for ever."""
    with ArchiveCluster(tmp_path) as cluster:
        node = cluster.nodes["n1"]
        node._member.tick = lambda: {}["nobody foresaw"]
        assert node.wait(PATIENCE_S)
        assert isinstance(node.failure, KeyError)
    assert "this node stops: internal error: KeyError: 'nobody foresaw'" in caplog.text
