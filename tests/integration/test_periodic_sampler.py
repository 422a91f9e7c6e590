"""What a node notices about itself (stalls, leaders, waits), and how it reports that."""

import logging
import os
import signal
import subprocess
import sys
import threading
from dataclasses import replace

import pytest

from replicator.serve.client_record import PULLS, ClientView, ServedClient, ServerRecord
from rt.errors import Misuse
from rt.latencies import BOUNDS_S, Latencies, RunningMean
from rt.node.agree.leadership import Leadership, RoleChange, RoleCommand
from rt.node.observe.periodic_sampler import PeriodicSampler
from rt.node.observe.stall_clock import HopProgress, Stalls, Waits
from rt.node.observe.stall_reasons import stall_words
from rt.position import Position
from rt.traffic import Traffic
from sequencer.raft.consensus import EngineRole, Status
from tests.archive_cluster import ArchiveCluster
from tests.replicator_host import eventually


def status(leader="", term=1, role=EngineRole.FOLLOWER, name="n1"):
    """The status of an engine."""
    return Status(name, role, term, leader, 0, 0, 0, (), "", {})


def test_work_that_moves_is_never_stalled_however_long_it_takes():
    """A backlog of a day is a backlog; only one that does not shrink needs an operator."""
    stalls = Stalls(stalled_s=10)
    for second in range(100):
        assert stalls.update(second, {"merge jfk": HopProgress(second // 9, waits=True)}) == {}


def test_a_hop_that_has_nothing_to_do_is_not_stalled():
    """A quiet night is not an alarm."""
    stalls = Stalls(stalled_s=10)
    idle = {"merge jfk": HopProgress(8, waits=False)}
    assert not any(stalls.update(second, idle) for second in range(60))


def test_a_stall_begins_when_work_comes_and_not_when_the_hop_last_moved():
    """The first message after a quiet night was called stalled at once."""
    stalls = Stalls(stalled_s=10)
    stalls.update(0, {"merge jfk": HopProgress(8, waits=False)})
    assert stalls.update(100, {"merge jfk": HopProgress(8, waits=True)}) == {}
    assert stalls.update(110, {"merge jfk": HopProgress(8, waits=True)}) == {"merge jfk": 10}


def test_the_wait_is_that_of_the_oldest_work():
    """New work must not make old work look young."""
    waits = Waits()
    look = [
        waits.update("jfk", reached=reached, end=end, now_s=now_s)
        for now_s, reached, end in ((0, 8, 8), (1, 8, 16), (5, 8, 64), (6, 16, 64), (7, 64, 64))
    ]
    assert look == [0, 0, 4, 0, 0]


def test_each_observation_is_in_the_first_bucket_that_holds_it():
    """A sync of 0.3 ms and one of 3 s must not look alike; a clock set back counts as 0."""
    latencies = Latencies()
    for seconds in (-1.0, 0.0001, 0.00011, 3.0, 99.0):
        latencies.observe(seconds)
    counts, _ = latencies.counted()
    assert (counts[0], counts[1], counts[-2], counts[-1]) == (2, 1, 1, 1)
    assert latencies.counted().total == 5
    assert len(counts) == len(BOUNDS_S) + 1


def test_a_new_leader_is_one_line_and_one_change(caplog):
    """Leader changes were never logged at all."""
    leadership = Leadership("n1", "flights")
    with caplog.at_level(logging.INFO, "rt.node"):
        for each in (status(), status("n2", 3), status("n2", 3), status("", 4), status("n1", 4)):
            leadership.saw(each)
    assert [each.getMessage() for each in caplog.records] == [
        "n2 leads, in term 3", "no leader in term 4: n2 is not heard any more",
        "n1 leads, in term 4",
    ]  # fmt: skip
    assert (leadership.changes, leadership.elections) == (3, 3)
    assert leadership.leaderless_s(1e9) == 0


def test_each_change_of_role_is_called_back_once_and_in_order():
    """A script that moves an address to the leader must not move it twice, or back."""
    seen = []
    leadership = Leadership("n1", "flights", seen.append)
    leadership.start()
    for each in (
        status(), status("n2"), status("n2"), status(term=2), status("n3", 2),
        status("n1", 3, EngineRole.LEADER), status("n2", 4),
    ):  # fmt: skip
        leadership.saw(each)
    leadership.stop()
    assert [(each.role, each.leader, each.term) for each in seen] == [
        ("follower", "n2", 1), ("leader", "n1", 3), ("follower", "n2", 4),
    ]  # fmt: skip


def test_a_command_learns_the_change_from_its_environment(tmp_path, caplog):
    """No shell is between, so no name can become a command."""
    path = tmp_path / "said"
    script = (
        f"import os; open({str(path)!r}, 'a').write(os.environ['RT_ROLE'] + os.environ['RT_TERM'])"
    )
    change = RoleChange("n1", "flights", "leader", 7, "n1")
    RoleCommand(f'{sys.executable} -c "{script}"')(change)
    assert path.read_text() == "leader7"
    RoleCommand("/no/such/command")(change)
    assert "the command of --on-role failed: /no/such/command: no such file" in caplog.text


@pytest.mark.parametrize("command", ["", "say 'it"])
def test_a_command_that_cannot_be_run_is_refused_at_the_start(command):
    """Otherwise it would fail at the first failover, in the middle of the night."""
    with pytest.raises(Misuse, match="on_role is"):
        RoleCommand(command)


def test_reasons_of_refusals_are_a_closed_set():
    """A peer invents codes, and each would be a series for ever."""
    record = ServerRecord(logging.getLogger("test"))
    for code in ("busy", "busy", "tls", "<script>", "x" * 1000):
        record.refuse(code)
    counted = record.refused()
    assert (counted["busy"], counted["tls"], counted["other"]) == (2, 1, 2)
    assert counted["diverged"] == 0  # there before it happens, or its first step is not seen


def test_what_was_sent_to_a_client_that_left_is_still_counted():
    """A counter that goes back looks like a restart."""
    record = ServerRecord(logging.getLogger("test"))
    client = ServedClient("sub", PULLS, "127.0.0.1:9", sent=Traffic(100, 10, 1))
    record.join(client)
    record.leave(client)
    record.leave(client)
    assert record.sent() == Traffic(100, 10, 1)
    [view] = record.clients()
    assert (view.peer, view.ended_ns is None) == ("sub", False)


@pytest.fixture
def cluster(tmp_path):
    """A node, and a stream through it."""
    made = ArchiveCluster(tmp_path, 1)
    yield made
    made.close()


def test_a_sample_shows_what_passed_each_hop(cluster):
    """The page, the metrics and rt status all show this."""
    cluster.push()
    cluster.pull()
    publisher, node = cluster.publisher(), cluster.nodes["n1"]
    publisher.publish_many([b"x" * 100] * 1000)
    publisher.flush("merged", 60)
    # the puller has it before the node knows, whose thread has yet to go on after it was sent
    assert eventually(lambda: puller(node).acked == node.pipeline.feeds.end, 60)
    node.periodic_sampler.take_sample()
    sample = node.periodic_sampler.sample
    flow = sample.flow
    assert flow.received.total.messages == flow.merged.total.messages == 1000
    assert flow.sent.total.messages == 1000
    assert flow.merged.total.bytes > flow.received.total.bytes > 100_000  # range frames come on top
    [session] = sample.sessions
    assert (session.pushed_by, session.unmerged, session.waiting_s) == ("publisher", 0, 0)
    assert {each.kind for each in sample.clients} == {"push", "pull"}
    assert sample.latencies["session"].total > 0
    assert sample.latencies["agreement"].total > 0
    shown = node.status()
    assert shown["sessions"][0]["messages"] == 1000
    assert {each["lag_bytes"] for each in shown["clients"]} == {None, 0}


def test_a_puller_that_writes_nothing_waits_though_its_connection_has_taken_everything(cluster):
    """A frozen puller was shown as having everything, for as long as its buffers had room."""
    cluster.push()
    publisher, node = cluster.publisher(), cluster.nodes["n1"]
    node.periodic_sampler.stop()
    command = [
        sys.executable, "-m", "rt", "pull", "--config", os.path.join(cluster.root, "clients.toml"),
        "--root", os.path.join(cluster.clients, "frozen"),
    ]  # fmt: skip
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
        try:
            publisher.publish(b"first")
            publisher.flush("merged", 60)
            assert eventually(lambda: puller(node).acked == node.pipeline.feeds.end, 60)
            assert puller(node).waiting_s == 0
            process.send_signal(signal.SIGSTOP)
            publisher.publish(b"it never writes this")
            publisher.flush("merged", 60)
            assert eventually(lambda: puller(node).waiting_s > 5, 60)
            assert puller(node).position < node.pipeline.feeds.end
        finally:
            process.kill()
    assert eventually(lambda: puller(node) and node.status()["left"], 60)
    [left] = node.status()["left"]
    assert (left["peer"], left["lag_bytes"] > 0) == ("subscriber", True)
    assert left["lag_bytes"] < 1000, "it had confirmed the first"


def puller(node):
    """The one client that pulls, as a new sample shows it."""
    node.periodic_sampler.take_sample()
    pulls = [each for each in node.periodic_sampler.sample.clients if each.kind == PULLS]
    return pulls[-1] if pulls else ClientView("", PULLS, "", 0, None, None, 0)


def test_a_stall_is_one_line_that_names_the_hop_and_one_when_it_ends(cluster, caplog):
    """An operator wants to hear of it once, and again when it is over."""
    node = cluster.nodes["n1"]
    node.periodic_sampler.stop()
    cluster.push()
    publisher = cluster.publisher()
    publisher.publish(b"x")
    publisher.flush("merged", 60)
    sampler = Scripted(
        node.periodic_sampler.sample, [{}, {"merge jfk": 11.0}, {"merge jfk": 12.0}, {}]
    )
    periodic_sampler = PeriodicSampler(sampler, loop=node.port.loop)
    with caplog.at_level(logging.INFO, "rt.node"):
        for _ in range(3):
            periodic_sampler.take_sample()
    said = [each.getMessage() for each in caplog.records if getattr(each, "hop", "") == "merge"]
    assert said[0].startswith("stalled for 11 s: what is synced is not merged (session jfk): ")
    assert said[1].startswith("it moves again: what is synced is not merged (session jfk)")
    assert len(said) == 2


class Scripted:
    """A sampler whose samples are stalled as the script says."""

    def __init__(self, sample, stalls):
        self.samples = iter([replace(sample, stalled=each) for each in stalls])

    def sample(self):
        return next(self.samples)


def test_a_stall_at_a_subscriber_names_it_and_its_address(cluster):
    """Which of a hundred subscribers is it?"""
    said = stall_words(
        "pull", ["spark at 10.0.0.7:5012"], cluster.nodes["n1"].periodic_sampler.sample
    )
    assert "not taken by spark at 10.0.0.7:5012" in said


def test_looking_at_a_node_while_it_works_disturbs_nothing(cluster):
    """The sampler reads what other threads change all the time."""
    cluster.push()
    publisher, node = cluster.publisher(), cluster.nodes["n1"]
    node.periodic_sampler.stop()
    stopping = threading.Event()
    failures = []

    def look():
        while not stopping.is_set():
            try:
                node.periodic_sampler.take_sample()
            except Exception as error:  # noqa: BLE001 - of another thread
                failures.append(error)

    thread = threading.Thread(target=look)
    thread.start()
    for _ in range(50):
        publisher.publish_many([b"x" * 100] * 100)
    publisher.flush("merged", 60)
    stopping.set()
    thread.join()
    assert not failures
    node.periodic_sampler.take_sample()
    assert node.periodic_sampler.sample.flow.merged.total.messages == 5000
    assert isinstance(node.periodic_sampler.sample.clients[0], ClientView)
    assert node.periodic_sampler.sample.view.end > Position(0)


def test_a_mean_of_durations_shows_what_takes_long_and_no_single_one():
    """What its description promises."""
    mean, needed = RunningMean(), {}
    mean.observe(7.0)
    assert mean.mean_s < 1.0, "one that took seven times as long"
    for times in (2.0, 10.0):
        mean, needed[times] = RunningMean(), 0
        while mean.mean_s <= 1.0:
            mean.observe(times)
            needed[times] += 1
    assert needed == {2.0: 6, 10.0: 1}
