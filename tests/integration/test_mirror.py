"""A copy serves others: one copy over the WAN feeds many, with the rights and digests of a node."""

import json
import os
import re
import signal
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing

import pytest
from archive_cluster import STREAM, ArchiveCluster
from commands import finish, run, start
from replicator_host import eventually, log_bytes, manifest_lines

import rt
from archiver.keep import parse_keep
from replicator.pull.client import PullClient
from replicator.pull.end_asks import HOPS_MAX, EndAsks, NoEnd
from replicator.pull.mirror import Mirror
from replicator.push.client import PushClient
from rt.format.manifest import Manifest
from rt.log.files.identity import read_log_identity
from rt.log.write.appender import Appender
from rt.net.admin import ask
from rt.net.authority.certificates import certificate_files, issue
from rt.net.authority.identity import CertificateRole
from rt.net.loop.event_loop import EventLoop
from rt.net.tls import Contexts, server_context
from rt.position import Position

PATIENCE_S = 60


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """A cluster of one node, with some merged files, and certificates for what the tests need."""
    with ArchiveCluster(tmp_path_factory.mktemp("cluster")) as running:
        certs = os.path.join(running.root, "certs")
        issue(certs, "edge", CertificateRole.MIRROR, streams=(STREAM,))
        issue(certs, "other", CertificateRole.SUBSCRIBER, streams=("trains",))
        merge(running, 20)
        yield running


def publish(cluster, count):
    """Publish to the directory that is pushed from: some 24 KiB each time."""
    with rt.Publisher(os.path.join(cluster.clients, "pub"), stream=STREAM, session="jfk") as pub:
        for _ in range(count):
            pub.publish_many([bytes(1000)] * 24)


def merge(cluster, count):
    """Publish, and wait until the node has merged all of it: drained means received."""
    push = cluster.push()
    publish(cluster, count)
    assert eventually(lambda: push.drained(merged=True), PATIENCE_S)
    push.stop()


class Edge:
    """A copy at the edge, and the mirror that serves it."""

    def __init__(self, cluster, root, nodes=None, port=0, **settings):
        files = certificate_files(os.path.join(cluster.root, "certs"), "edge")
        out = os.path.join(root, STREAM, "out")
        contexts = Contexts(files, server_context)
        self.mirror = Mirror(("localhost", port), contexts, STREAM, out)
        self.pull_contexts = cluster.contexts("edge")
        self.pull = PullClient(
            str(root), STREAM, nodes or cluster.addresses, self.pull_contexts,
            grown=self.mirror.grown, **settings,
        )  # fmt: skip
        self.mirror.ask_end = self.pull.ask_end

    def __enter__(self):
        self.pull.start()
        self.mirror.start()
        self.address = ("localhost", self.mirror.address[1])
        return self

    def __exit__(self, *_error):
        self.mirror.stop()
        self.pull.stop()


STARTED = []  # the pullers of the test that runs


@pytest.fixture(autouse=True)
def stop_pullers():
    """End the pullers of a test that failed: they would dial on during the tests after it."""
    yield
    while STARTED:
        STARTED.pop().stop()


def puller(cluster, root, address, who="subscriber", **settings):
    """A copy of the mirror's copy."""
    pull = PullClient(str(root), STREAM, [address], cluster.contexts(who), **settings)
    pull.start()
    STARTED.append(pull)
    return pull


def test_a_copy_of_a_copy_is_the_log_and_follows_it(cluster, tmp_path):
    """The second hop has the same bytes, history and digests, and is as live as the first."""
    with Edge(cluster, tmp_path / "edge") as edge:
        copies = [puller(cluster, tmp_path / name, edge.address) for name in ("a", "b")]
        assert all(copy.wait_caught_up(PATIENCE_S) for copy in copies)
        merge(cluster, 6)
        end = cluster.nodes["n1"].merged_end
        assert eventually(lambda: all(copy.status().position >= end for copy in copies))
        for name in ("a", "b"):
            out = tmp_path / name / STREAM / "out"

            def is_equal(out=out):  # that the publisher left may follow
                ours, theirs = [
                    (log_bytes(each), manifest_lines(each)) for each in (out, cluster.out("n1"))
                ]
                return ours == theirs

            assert eventually(is_equal), name
        for copy in copies:
            copy.stop()


def test_a_mirror_that_starts_without_its_nodes_serves_what_it_has(cluster, tmp_path):
    """A site that is cut off from the nodes still gets the copy."""
    with Edge(cluster, tmp_path / "edge") as edge:
        assert edge.pull.wait_caught_up(PATIENCE_S)
    end = edge.pull.status().position  # as it was left: until then the log may have grown
    away = [("localhost", 1)]
    with Edge(cluster, tmp_path / "edge", away) as edge:
        copy = puller(cluster, tmp_path / "copy", edge.address)
        assert eventually(lambda: copy.status().position == end)
        copy.stop()


def test_a_mirror_calls_no_copy_complete_while_its_own_is_not(cluster, tmp_path):
    """`rt pull --once` ended with exit 0, and whatever the mirror had until then."""
    with Edge(cluster, tmp_path / "edge") as edge:
        assert edge.pull.wait_caught_up(PATIENCE_S)
    end = edge.pull.status().position  # as it was left: until then the log may have grown
    with Edge(cluster, tmp_path / "edge", [("localhost", 1)]) as edge:
        copy = puller(cluster, tmp_path / "copy", edge.address)
        assert eventually(lambda: copy.status().position == end)
        with closing(copy.ask_end()) as asked:
            assert not asked.wait(0.5)
            words = "this mirror cannot say where the stream ends: no node says where"
            assert eventually(lambda: words in asked.why_not(), PATIENCE_S)
        assert not copy.status().has_all, "an older puller goes by what it is sent"
        copy.stop()


def test_a_mirror_asks_its_nodes_when_it_is_asked_and_others_wait_for_its_copy(cluster, tmp_path):
    """A copy from a mirror that lagged was called complete: it had all that the mirror had."""
    loop = EventLoop()
    with ExitStack() as undo, Edge(cluster, tmp_path / "edge", loop=loop) as edge:
        undo.callback(loop.stop)
        copy = puller(cluster, tmp_path / "copy", edge.address)
        assert copy.wait_caught_up(PATIENCE_S)
        edge.pull.stop()  # the mirror goes on to serve what it has
        merge(cluster, 2)
        end = cluster.nodes["n1"].merged_end
        with closing(copy.ask_end()) as asked:
            assert asked.wait_answered(PATIENCE_S) >= end  # that the publisher left may follow
            assert not asked.wait(0.5)
            assert eventually(
                lambda: f"the copy has come to {copy.status().position}" in asked.why_not()
            )
        copy.stop()


class SlowEnd:
    """A question to the nodes that is answered when the test says so."""

    def __init__(self):
        self.asked_s, self.end, self.is_over = time.monotonic(), None, False
        self.answered, self.waiting = Future(), []

    def wait_answered(self, timeout_s):
        self.waiting.append(True)
        self.end = self.answered.result(timeout_s)
        return self.end

    def close(self):
        self.is_over = True


def test_requests_that_come_while_a_mirror_asks_share_the_next_question(cluster, tmp_path):
    """A question for each reader would ask the nodes a thousand times when they come back."""
    with Edge(cluster, tmp_path / "edge") as edge, ThreadPoolExecutor(9) as readers:
        assert edge.pull.wait_caught_up(PATIENCE_S)
        asked = []
        edge.mirror.ask_end = lambda _hops: asked.append(SlowEnd()) or asked[-1]
        contexts, request = cluster.contexts("subscriber"), {"do": "end", "latest": True, "hops": 3}

        def end():
            roles = (CertificateRole.MIRROR,)
            return ask(edge.address, contexts, request, roles=roles)["end"]

        first = readers.submit(end)
        assert eventually(lambda: asked)
        later = [readers.submit(end) for _ in range(8)]
        assert eventually(lambda: len(asked[0].waiting) == 9)
        asked[0].answered.set_result(Position(8))
        assert first.result(PATIENCE_S) == str(Position(8))
        assert eventually(lambda: len(asked) == 2)
        asked[1].answered.set_result(Position(16))
        assert {each.result(PATIENCE_S) for each in later} == {str(Position(16))}
        assert len(asked) == 2


def test_a_chain_of_mirrors_answers_for_the_stream(cluster, tmp_path):
    """A mirror of a mirror asks it, and that one asks the nodes."""
    with (
        Edge(cluster, tmp_path / "first") as first,
        Edge(cluster, tmp_path / "second", [first.address]) as second,
    ):
        merge(cluster, 2)
        end = cluster.nodes["n1"].merged_end  # that the publisher left may follow
        copy = puller(cluster, tmp_path / "copy", second.address)
        assert copy.wait_caught_up(PATIENCE_S)
        assert copy.status().complete_to >= end
        copy.stop()


def test_mirrors_in_a_circle_say_so_instead_of_answering(cluster, tmp_path):
    """Each has all that the other has, and neither knows anything of the nodes."""
    with Edge(cluster, tmp_path / "edge") as edge:
        assert EndAsks(edge.pull_contexts).latest(edge.address, 1) == NoEnd(
            f"localhost:{edge.address[1]}: more than {HOPS_MAX} mirrors copy one from another",
            for_good=True,
        )  # fmt: skip


def test_a_served_copy_is_opened_once_however_long_that_takes(cluster, tmp_path, monkeypatch):
    """A connection that came meanwhile would open it too, and both would write its files."""
    with Edge(cluster, tmp_path / "edge") as edge:
        assert edge.pull.wait_caught_up(PATIENCE_S)
    opened, twice, recover = [], threading.Event(), Appender.recover

    def slowly(appender):
        opened.append(appender)
        if len(opened) == 2:
            twice.set()
        twice.wait(0.5)
        return recover(appender)

    monkeypatch.setattr(Appender, "recover", slowly)
    with Edge(cluster, tmp_path / "edge") as edge:
        assert edge.pull.wait_caught_up(PATIENCE_S)
    assert len(opened) == 1


def test_a_copy_of_a_copy_may_start_anywhere(cluster, tmp_path):
    """A mirror finds the start as a node does."""
    with Edge(cluster, tmp_path / "edge") as edge:
        assert edge.pull.wait_caught_up(PATIENCE_S)
        copy = puller(cluster, tmp_path / "copy", edge.address, start="latest")
        assert copy.wait_caught_up(PATIENCE_S)
        assert eventually(lambda: copy.status().position == edge.pull.status().position)
        copy.stop()
    names = [name for name, data in log_bytes(tmp_path / "copy" / STREAM / "out").items() if data]
    assert len(names) == 1


@pytest.mark.parametrize(
    ("who", "words"),
    [
        ("other", "does not grant subscriber other the stream 'flights'"),
        ("n1", "is not a node of this cluster"),
        ("publisher", "only a subscriber may pull"),
    ],
)
def test_a_mirror_serves_those_that_a_node_would_serve(cluster, tmp_path, who, words):
    """A copy must not be a way around the certificates."""
    with Edge(cluster, tmp_path / "edge") as edge:
        copy = puller(cluster, tmp_path / "copy", edge.address, who)
        assert eventually(lambda: words in copy.status().error), copy.status().error
        copy.stop()


def test_a_node_may_ask_a_mirror_which_log_it_has(cluster, tmp_path):
    """Before it starts while no node leads: its cluster may have been given up."""
    with Edge(cluster, tmp_path / "edge") as edge:
        assert eventually(lambda: edge.pull.status().durable_place)
        answer = ask(
            edge.address, cluster.contexts("n1"), {"do": "end"}, roles=(CertificateRole.MIRROR,)
        )
    assert answer["log"] == read_log_identity(os.path.join(tmp_path, "edge", STREAM, "out")).id


def test_a_publisher_does_not_push_to_a_mirror(cluster, tmp_path):
    """Its messages would never be merged."""
    with Edge(cluster, tmp_path / "edge") as edge:
        push = PushClient(
            os.path.join(cluster.clients, "pub"), STREAM, [edge.address],
            cluster.contexts("publisher"),
        )  # fmt: skip
        push.start()
        wanted = "it is a mirror's; a node is wanted here"
        assert eventually(lambda: any(wanted in each.error for each in push.status()))
        push.stop()


def test_the_command_serves_its_copy_and_stops(cluster, tmp_path):
    """As its help says, with one certificate for both directions."""
    clients = os.path.join(cluster.root, "clients.toml")
    arguments = ("pull", "--config", clients, "--root", tmp_path / "edge", "--serve", "localhost:0")
    wrong = finish(start(*arguments, "--identity", "subscriber"))
    assert wrong[0] == 2
    assert "it is a subscriber's; a mirror's is wanted" in wrong[2]
    serving = start(*arguments, "--identity", "edge")
    try:
        line = serving.stdout.readline().decode()
        port = re.fullmatch(r"mirror edge serves stream flights at \S+:(\d+)\n", line)[1]
        copy = puller(cluster, tmp_path / "copy", ("localhost", int(port)))
        assert copy.wait_caught_up(PATIENCE_S)
        assert eventually(lambda: copy.status().position == cluster.nodes["n1"].merged_end)
        copy.stop()
    finally:
        serving.send_signal(signal.SIGTERM)
        code, out, _ = finish(serving)
    assert code == 0
    assert b"the copy ends at" in out


def test_a_copy_of_a_late_mirror_says_what_it_lacks(cluster, tmp_path):
    """A user who asked for everything must not take the tail for it."""
    clients = os.path.join(cluster.root, "clients.toml")
    with Edge(cluster, tmp_path / "edge", start="latest") as edge:
        assert edge.pull.wait_caught_up(PATIENCE_S)
        address = f"localhost:{edge.address[1]}"
        options = ("--root", tmp_path / "copy", "--nodes", address, "--config", clients)
        for asked in (("--json",), ()):
            pulled = run("pull", "--once", "--timeout", PATIENCE_S, *options, *asked)
            assert pulled.exit_code == 1
            assert "lacks the messages from 0.0.0 to 0." in pulled.output, pulled.output
        gap = pytest.raises(rt.GapError, match="its source lacks it")
        with rt.connect(clients, root=tmp_path / "copy", nodes=[address]) as client, gap:
            next(iter(client.subscriber()))
    gaps = []
    reader = rt.Subscriber(
        tmp_path / "copy", stream=STREAM, follow=False, on_gap="notify", on_event=gaps.append
    )
    assert list(reader)
    assert [each.begin for each in gaps if isinstance(each, rt.Gap)] == [0]
    refused = run("subscribe", "--root", tmp_path / "copy", "--stream", STREAM, "--no-follow")
    assert refused.exit_code == 1
    assert "was not copied: its source lacks it (log.0.0" in refused.output


def test_a_mirror_that_keeps_less_makes_no_copy_give_up_more(cluster, tmp_path):
    """Its own rule is about its own disk; what the nodes still have stays in every copy."""
    keep = parse_keep("1")
    with Edge(cluster, tmp_path / "edge", keep=keep.keeps) as edge:
        assert edge.pull.wait_caught_up(PATIENCE_S)
        early = puller(cluster, tmp_path / "early", edge.address)
        assert early.wait_caught_up(PATIENCE_S)
        before = log_bytes(tmp_path / "early" / STREAM / "out")
        assert keep.sweep(edge.pull.log)
        merge(cluster, 1)
        end = cluster.nodes["n1"].merged_end
        assert eventually(lambda: early.status().position >= end)
        after = log_bytes(tmp_path / "early" / STREAM / "out")
        assert all(after[name].startswith(data) for name, data in before.items())
        late = puller(cluster, tmp_path / "late", edge.address)
        assert late.wait_caught_up(PATIENCE_S)
        for copy in (early, late):
            copy.stop()
    known = Manifest()
    known.feed(manifest_lines(tmp_path / "late" / STREAM / "out"))
    assert {line.reason for line in known.archived.values()} == {"not copied: its source lacks it"}


def test_the_json_of_a_mirror_is_json(cluster, tmp_path):
    """A script parses everything that is on stdout."""
    clients = os.path.join(cluster.root, "clients.toml")
    serving = start(
        "pull", "--config", clients, "--root", tmp_path / "edge", "--identity", "edge",
        "--serve", "localhost:0", "--json",
    )  # fmt: skip
    said = serving.stderr.readline().decode()
    serving.send_signal(signal.SIGTERM)
    code, out, _ = finish(serving)
    assert (code, list(json.loads(out))) == (0, ["position", "error"])
    assert "mirror edge serves stream flights at " in said
