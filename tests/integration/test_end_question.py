"""The end of the stream as of a question, and nodes that lag: what decides, without a network."""

from concurrent.futures import ThreadPoolExecutor
from threading import Event

import pytest
from logs import MergedLog
from replicator_host import Certificates, DiskHost, HostEnd, Merge, eventually, frames

from replicator.pull.client import PullClient
from replicator.pull.end_question import NODES_MAX, EndQuestion, covers
from replicator.pull.lag_watch import AVOID_S, LagWatch
from replicator.serve.server import Server
from replicator.wire.rotation import Rotation
from rt.format.frame import FrameKind
from rt.position import START, Position
from tests.replicator_host import only

AT = [Position(8 * number) for number in range(9)]
STREAM = "flights"


@pytest.fixture
def certs(tmp_path):
    """Return an authority with the certificates of nodes and readers."""
    return Certificates(str(tmp_path / "certs"))


def test_a_copy_is_complete_at_a_place_and_not_when_its_node_has_no_more():
    """A flag that was true once was taken for true now: readers ended before what was confirmed."""
    question = EndQuestion(["n1"])
    assert not question.is_reached(AT[8])
    question.answered(AT[5])
    assert [question.is_reached(place) for place in AT[4:7]] == [False, True, True]
    assert question.why_not(AT[4]) == "the copy has come to 0.0.32, and the stream to 0.0.40"


def test_nodes_are_asked_in_turn_and_those_they_name_too():
    """Only the leader answers, and a reader may have been given another node alone."""
    question = EndQuestion(["n1", "n2", "n1"])
    question.failed("n1: n3 leads", ["n3", "n2"])
    assert question.node == "n2"
    question.failed("n2: no answer")
    assert (question.node, question.is_round_over) == ("n3", False)
    question.failed("n3: no majority")
    assert question.is_round_over
    assert question.why_not(START) == (
        "no node says where the stream ends: n1: n3 leads; n2: no answer; n3: no majority"
    )
    question.failed("n1: n3 leads")
    assert not question.is_round_over


def test_a_question_that_no_node_will_ever_answer_is_given_up():
    """Nodes of an older version say so at once, and waiting would not help."""
    question = EndQuestion(["n1", "n2"])
    question.failed("n1: too old", for_good=True)
    assert not question.is_hopeless
    question.failed("n2: too old", for_good=True)
    assert question.is_hopeless


def test_what_a_node_names_is_bounded():
    """An answer is a peer's word."""
    question = EndQuestion(["n1"])
    question.failed("no", [f"x{number}" for number in range(1000)])
    asked = set()
    while not question.is_round_over:
        asked.add(question.node)
        question.failed("no")
    assert len(asked) == NODES_MAX - 1


def test_an_answer_counts_for_those_who_asked_before_it_was_asked_for():
    """A mirror shares answers among its readers, but none that may be older than a question."""
    assert covers(2.0, 1.0)
    assert covers(2.0, 2.0)
    assert not covers(2.0, 2.1)


def test_nodes_to_be_avoided_are_dialled_if_the_others_give_nothing():
    """A node that lags is better than none."""
    rotation = Rotation(["a", "b", "c"])
    assert [rotation.next("b".__eq__) for _ in range(5)] == ["a", "c", "b", None, "a"]
    rotation.progressed()
    assert [rotation.next("b".__eq__) for _ in range(3)] == ["c", None, "a"]


def watch(*heard, place=START):
    """A watch of three nodes, connected to n1 at 0 s, that has heard this."""
    made = LagWatch(["n1", "n2", "n3"], look_s=1.0, lag_s=5.0)
    made.connected("n1", 0.0)
    made.grown(place, 0.0)
    for each in heard:
        made.heard(*each)
    return made


def test_a_node_that_lacks_for_long_what_another_had_is_left_and_avoided_until_it_has_it():
    """One below its reserve merged nothing more, and its reader waited without a word."""
    lags = watch(("n2", AT[4], 1.0))
    assert lags.why_leave(5.9) == ""
    assert lags.due(6.0) == "n1"
    lags.heard("n1", AT[2], 6.0)
    assert lags.why_leave(6.0) == (
        "it has merged up to 0.0.16, and n2 had 0.0.32 5 s ago; another node is asked instead"
    )
    lags.connected("n2", 6.1)
    assert [lags.avoids(each, 7.0) for each in ("n1", "n2", "n3")] == [True, False, False]
    assert not lags.avoids("n1", 6.0 + AVOID_S)
    lags.heard("n1", AT[4], 9.0)
    assert not lags.avoids("n1", 9.0)


def lagging(*near):
    """A watch that has left n1 because it lags."""
    made = LagWatch(["n1", "n2", "n3"], near=near, look_s=1.0, lag_s=5.0)
    made.connected("n1", 0.0)
    made.heard("n2", AT[4], 1.0)
    made.heard("n1", AT[2], 6.0)
    assert made.why_leave(6.0)
    return made


@pytest.mark.parametrize(
    ("near", "put_off"),
    [
        ([], {"n1"}),
        (["n3"], {"n1", "n2"}),
        (["n1"], {"n1"}),  # it lags, so no near node is preferred to the others
        (["n1", "n3"], {"n1", "n2"}),
    ],
)
def test_a_node_that_lags_is_dialled_last_and_a_near_one_that_does_not_first(near, put_off):
    """Without near mirrors all nodes were put off alike, so one that lagged came first again."""
    lags = lagging(*near)
    assert {each for each in ("n1", "n2", "n3") if lags.puts_off(each, 7.0)} == put_off
    rotation, rounds = Rotation(["n1", "n2", "n3"]), []
    for _ in range(3):
        rounds.append(rotation.next(lambda each: lags.puts_off(each, 7.0)))
        rotation.progressed()
    assert set(rounds) == {"n1", "n2", "n3", None} - put_off


def test_a_nearer_node_is_gone_back_to_once_it_has_enough_and_does_not_lag():
    """A mirror that has less than the copy would send nothing."""
    lags = lagging("n1", "n3")
    lags.connected("n2", 6.1)
    assert lags.is_nearer("n3", AT[4], AT[4], 7.0)
    assert not lags.is_nearer("n3", AT[2], AT[4], 7.0)
    assert not lags.is_nearer("n3", None, START, 7.0)
    assert not lags.is_nearer("n1", AT[4], AT[4], 7.0)  # until it has what it lacked
    lags.connected("n3", 8.0)
    lags.heard("n1", AT[4], 9.0)
    assert lags.is_nearer("n1", AT[4], AT[4], 9.0)
    assert not lags.is_nearer("n2", AT[4], AT[4], 9.0)


@pytest.mark.parametrize(
    "heard",
    [
        [("n2", AT[4], 1.0), ("n1", AT[4], 6.0)],  # the copy is behind, and not the node
        [("n2", AT[4], 1.0), ("n1", AT[2], 5.9)],  # it was asked too early
        [("n1", AT[2], 6.0)],  # none is known to have more
        [("n2", AT[4], 1.0), ("n2", None, 2.0), ("n1", AT[2], 6.0)],  # who had more is gone
        [("n2", AT[4], 1.0), ("n1", None, 6.0), ("n2", AT[4], 6.5)],  # it says nothing now
    ],
)
def test_a_node_is_not_left_without_evidence(heard):
    """Each change of node costs a handshake, and a reader that flaps reads nothing."""
    assert watch(*heard).why_leave(6.5) == ""


def test_a_node_that_says_nothing_is_left_once_it_has_sent_nothing_for_long():
    """An older version does not know the question; one that hangs answers none."""
    silent = watch(("n2", AT[4], 1.0), ("n1", None, 6.0))
    assert silent.why_leave(6.0).startswith("it has sent nothing after 0.0.0, and n2 had 0.0.32")
    busy = watch(("n2", AT[4], 1.0))
    busy.grown(AT[1], 4.0)
    busy.heard("n1", None, 6.0)
    assert busy.why_leave(6.0) == ""


def test_a_puller_leaves_a_node_that_has_stopped_merging(tmp_path, certs):
    """The other two went on, and nothing said that this one had not."""
    hosts = [DiskHost(str(tmp_path / name)) for name in ("n1", "n2")]
    servers = [Server(("localhost", 0), certs.server(), only(host)) for host in hosts]
    addresses = [("localhost", server.address[1]) for server in servers]
    by_address = dict(zip(addresses, hosts, strict=True))
    logs = [Merge(host.out) for host in hosts]

    class Asks(HostEnd):
        """Asks each host."""

        def __init__(self):
            super().__init__(hosts[1])

        def served(self, node):
            return by_address[node].merged_end()

    for server, log in zip(servers, logs, strict=True):
        server.start()
        log.appender.begin_file(START)
    names = [f"{host}:{port}" for host, port in by_address]
    client = PullClient(
        str(tmp_path / "sub"), STREAM, list(by_address), certs.subscriber(), asks=Asks(),
        watch=LagWatch(names, look_s=0.02, lag_s=0.1),
    )  # fmt: skip
    client.start()
    try:
        first = f"localhost:{servers[0].address[1]}"
        assert eventually(lambda: client.status().node == first)
        with MergedLog(str(tmp_path / "source")) as source:
            source.merge("jfk", [b"a"])
        data = (tmp_path / "source" / "log.0.0").read_bytes()
        for header, raw in frames(data):
            if header.kind == FrameKind.MESSAGES:
                logs[1].add("jfk", raw)
        assert client.wait_caught_up(60)
        assert client.status().node == f"localhost:{servers[1].address[1]}"
        assert client.status().complete_to == hosts[1].merged_end()
    finally:
        client.stop()
        for server, host in zip(servers, hosts, strict=True):
            server.stop()
            host.stop()
        for log in logs:
            log.appender.close()


def test_a_puller_that_stops_does_not_wait_for_a_node_that_does_not_answer(tmp_path, certs):
    """A client that closed waited for the node's answer, however short its own limit was."""
    host, asked, gate = DiskHost(str(tmp_path / "n1")), Event(), Event()
    server = Server(("localhost", 0), certs.server(), only(host))
    server.start()
    address, silent = ("localhost", server.address[1]), ("localhost", 1)

    class Asks(HostEnd):
        """A node that is silent until the test ends."""

        def served(self, _node):
            asked.set()
            gate.wait(60)

    names = [f"{host}:{port}" for host, port in (address, silent)]
    client = PullClient(
        str(tmp_path / "sub"), STREAM, [address, silent], certs.subscriber(), asks=Asks(host),
        watch=LagWatch(names, look_s=0.02),
    )  # fmt: skip
    client.start()
    try:
        assert asked.wait(60)
        with ThreadPoolExecutor(1) as threads:
            stopping = threads.submit(client.stop, 20)
            try:
                assert stopping.result(40)
            finally:
                gate.set()
    finally:
        server.stop()
        host.stop()
