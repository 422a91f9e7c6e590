"""Bridges between clusters: each message once, in each session's order, and nothing circles."""

import json
import os
import re
import shutil
import signal
from contextlib import ExitStack
from itertools import permutations
from types import SimpleNamespace

import pytest

import rt
from rt.bridge.bridge_site import BridgeSite
from rt.bridge.bridge_watch import BridgeWatch
from rt.bridge.forwarded import PATH_MAX, headers_of, is_forwarded, path_of
from rt.format.message import Message, Origin
from rt.node.founding.cluster_files import init_local_cluster
from rt.position import START
from rt.web.serving.recent import RecentEvents
from tests.archive_cluster import STREAM, ArchiveCluster
from tests.commands import run, start
from tests.replicator_host import eventually
from tests.web_site import Port


@pytest.fixture
def zones(tmp_path):
    """Give a function that starts a cluster of one node, of a name."""
    with ExitStack() as undo:
        yield lambda name: undo.enter_context(ArchiveCluster(tmp_path / name))


def config(zone):
    """Return the path of a cluster's configuration for clients."""
    return os.path.join(zone.root, "clients.toml")


def forward(source, target, root, *options, session="bridge", code=0):
    """Forward what is there, by the command; return what it printed as JSON."""
    done = run(
        "bridge", "--from", config(source), "--to", config(target), "--root", root, "--once",
        "--json", "--session", session, *options,
    )  # fmt: skip
    assert done.exit_code == code, done.output
    return json.loads(done.stdout) if not code else done.stderr


def published(zone, session, *payloads):
    """Publish in a session of a cluster, and wait until it is merged."""
    root = os.path.join(zone.root, "clients")
    with rt.connect(config(zone), root=root) as client, client.publisher(session) as publisher:
        publisher.publish_many([*payloads], keys=[each[:2] for each in payloads])
        publisher.flush("merged", timeout_s=60)


def messages(zone, tmp_path):
    """Return what a cluster has merged."""
    root = str(tmp_path / f"read {os.path.basename(zone.root)}")
    with (
        rt.connect(config(zone), root=root) as client,
        client.subscriber(follow=False, timeout_s=60) as reader,
    ):
        return [*reader]


def test_every_site_reads_everything_once_and_nothing_circles(zones, tmp_path):
    """Three clusters, a bridge between every two, each run twice."""
    sites = {name: zones(name) for name in ("ams", "fra", "lhr")}
    for name, site in sites.items():
        published(site, name, *(b"%s %d" % (name.encode(), each) for each in range(20)))
    for _ in range(2):
        for (one, source), (other, target) in permutations(sites.items(), 2):
            forward(source, target, str(tmp_path / f"{one} {other}"), session=f"from-{one}")
    for name, site in sites.items():
        found = messages(site, tmp_path)
        assert len(found) == 60
        for origin in sites:
            texts = [each.payload for each in found if each.payload.startswith(origin.encode())]
            assert texts == [b"%s %d" % (origin.encode(), each) for each in range(20)]
        for each in found:
            said = json.loads(each.headers.get("rt-origin", b"{}"))
            is_own = each.payload.startswith(name.encode())
            assert bool(said) is not is_own
            if said:
                assert (said["stream"], said["session"]) == (STREAM, each.payload[:3].decode())
                assert said["sequence"] == int(each.payload[4:])
                assert each.key == each.payload[:2]


def test_a_chain_of_sites_forwards_what_came_by_a_bridge_and_never_back(zones, tmp_path):
    """Without --chain it would end at the second; the path keeps it from circling."""
    first, second, third = zones("first"), zones("second"), zones("third")
    published(first, "jfk", b"a", b"b")
    forward(first, second, str(tmp_path / "12"))
    unchained = forward(second, third, str(tmp_path / "23"))
    assert (unchained["forwarded"], unchained["passed_over"]) == (0, 2)
    assert forward(second, third, str(tmp_path / "23c"), "--chain", session="c")["forwarded"] == 2
    assert forward(second, first, str(tmp_path / "21"), "--chain", session="d")["forwarded"] == 0
    assert forward(third, first, str(tmp_path / "31"), "--chain", session="e")["forwarded"] == 0
    [one, _] = messages(third, tmp_path)
    assert json.loads(one.headers["rt-origin"])["session"] == "jfk"
    assert len(path_of(one.headers)) == 2


def test_two_bridges_of_a_group_deliver_once_and_one_goes_on_alone(zones, tmp_path):
    """The second is for when the first one's machine is lost, with all that it knew."""
    source, target = zones("source"), zones("target")
    roots = [str(tmp_path / each) for each in ("one", "two")]
    published(source, "jfk", *(b"%d" % each for each in range(50)))
    for root in roots:
        forward(source, target, root, "--group", "pair", session=os.path.basename(root))
    shutil.rmtree(roots[0])
    published(source, "lga", *(b"%d" % each for each in range(50, 80)))
    forward(source, target, roots[1], "--group", "pair", session="two")
    assert [each.payload for each in messages(target, tmp_path)] == [b"%d" % n for n in range(80)]


def test_a_bridge_forwards_what_it_is_told(zones, tmp_path):
    """By session and by the beginning of a key."""
    source, target = zones("source"), zones("target")
    published(source, "eu-1", b"AA1", b"BB1")
    published(source, "us-1", b"AA2")
    done = forward(source, target, str(tmp_path / "b"), "--sessions", "eu-*", "--keys", "AA")
    assert done == {"forwarded": 1, "passed_over": 0, "next": 1}
    assert [each.payload for each in messages(target, tmp_path)] == [b"AA1"]


def test_a_killed_bridge_goes_on_where_it_was(zones, tmp_path):
    """At any moment, many times, while messages come."""
    source, target = zones("source"), zones("target")
    rounds, each_round, found = 5, 600, []
    words = (
        "bridge", "--from", config(source), "--to", config(target), "--root", tmp_path / "b",
        "--session", "bridge",
    )  # fmt: skip
    with (
        rt.connect(config(source), root=str(tmp_path / "p")) as client,
        client.publisher("jfk") as publisher,
        rt.connect(config(target), root=str(tmp_path / "r")) as reading,
        reading.subscriber(timeout_s=60) as reader,
    ):
        for number in range(rounds):
            first = number * each_round
            with start(*words) as process:
                publisher.publish_many([b"%d" % n for n in range(first, first + each_round)])
                while len(found) < first + 100:
                    found += [each.payload for each in reader.messages(0.1)]
                process.send_signal(signal.SIGKILL)
        publisher.flush("merged", timeout_s=60)
        forward(source, target, str(tmp_path / "b"))
        count = rounds * each_round
        while len(found) < count:
            found += [each.payload for each in reader.messages(0.1)]
    assert found == [b"%d" % each for each in range(count)]
    assert len(messages(target, tmp_path)) == count


@pytest.mark.process
def test_a_source_that_is_killed_and_started_again_loses_and_doubles_nothing(zones, tmp_path):
    """The whole site, many times, in the middle of what it merges and sends."""
    target, rounds, each_round, found = zones("target"), 4, 1500, []
    [place] = init_local_cluster(str(tmp_path / "source"), STREAM, 1)
    source = os.path.join(tmp_path, "source", "clients.toml")
    words = (
        "bridge", "--from", source, "--to", config(target), "--root", tmp_path / "b",
        "--session", "bridge", "--json",
    )  # fmt: skip
    with ExitStack() as undo:
        nodes = [undo.enter_context(start("node", "--config", place.config))]
        process = undo.enter_context(start(*words))
        client = undo.enter_context(rt.connect(source, root=str(tmp_path / "p")))
        publisher = undo.enter_context(client.publisher("jfk"))
        reading = undo.enter_context(rt.connect(config(target), root=str(tmp_path / "r")))
        reader = undo.enter_context(reading.subscriber(timeout_s=60))
        for number in range(rounds):
            first = number * each_round
            for part in range(first, first + each_round, 100):
                publisher.publish_many([b"%d" % n for n in range(part, part + 100)])
            while len(found) < first + 100:
                found += [each.payload for each in reader.messages(0.02)]
            nodes[-1].kill()
            nodes[-1].wait()
            nodes.append(undo.enter_context(start("node", "--config", place.config)))
        publisher.flush("merged", timeout_s=60)
        count = rounds * each_round
        while len(found) < count:
            found += [each.payload for each in reader.messages(0.1)]
        process.send_signal(signal.SIGTERM)
        said, _ = process.communicate(timeout=60)
        nodes[-1].terminate()
    assert found == [b"%d" % each for each in range(count)]
    assert len(messages(target, tmp_path)) == count
    assert (process.returncode, json.loads(said)["next"]) == (0, count)


@pytest.mark.process
def test_a_bridge_shows_over_http_how_far_it_is_behind(zones, tmp_path):
    """It is the only one that knows both sites."""
    source, target = zones("source"), zones("target")
    published(source, "jfk", b"a", b"b")
    words = (
        "bridge", "--from", config(source), "--to", config(target), "--root", tmp_path / "b",
        "--session", "bridge", "--http", "127.0.0.1:0",
    )  # fmt: skip
    with start(*words) as process:
        line = process.stderr.readline().decode()
        assert line.startswith("rt: metrics, health and a page at http://127.0.0.1:")
        seen = Port(line.split()[-1])

        def value(name):
            found = re.search(rf'^rt_bridge_{name}{{stream="flights"}} (.+)$',
                              seen.ask("/metrics")[2], re.MULTILINE)  # fmt: skip
            return float(found[1])

        assert eventually(lambda: value("behind_seconds") < 30, 60)
        assert value("forwarded_messages_total") == 2
        assert (value("passed_over_messages_total"), value("behind_messages")) == (0, 0)
        assert seen.ask("/readyz")[0] == 200
        target.stop("n1")
        published(source, "lga", b"c", b"d", b"e")
        assert eventually(lambda: value("behind_messages") == 3, 60)
        target.start("n1")
        assert eventually(lambda: value("behind_messages") == 0, 60)
        assert value("forwarded_messages_total") == 5
        [shown], page = seen.json("/status"), seen.json("/overview")
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
    assert process.returncode == 0
    assert (shown["next"], shown["behind_messages"], shown["error"]) == (5, 0, "")
    assert (page["kind"], page["verdict"]["text"]) == ("bridge", "It forwards to flights.")


def test_a_bridge_that_cannot_ask_its_source_is_not_ready(tmp_path):
    """A page that shows the last answer as if it were of now is worse than none."""
    bridge = SimpleNamespace(next_number=7, forwarded=0, passed_over=0, arrived=lambda: START)
    answers = [{"end": str(START), "number": 9}]

    def ask(_request):
        if not answers:
            raise OSError("no route to host")
        return answers.pop()

    watch = BridgeWatch(bridge, ask)
    site = BridgeSite(watch, ("here", "there"), [], RecentEvents())
    assert site.health().unready == ("behind: It is not known how far it is",)
    watch.turn()
    assert (watch.lag.behind, watch.lag.error) == (0, "")
    assert site.health().unready == ()
    watch.turn()
    assert "no route to host" in watch.lag.error
    assert watch.lag.behind_s(watch.lag.complete_as_of_ns + 61 * 10**9) == 61


def test_a_bridge_ends_by_a_signal_and_says_how_far_it_was(zones, tmp_path):
    """A service is stopped by SIGTERM, with exit code 0."""
    source, target = zones("source"), zones("target")
    published(source, "jfk", b"a")
    words = (
        "bridge", "--from", config(source), "--to", config(target), "--root", tmp_path / "b",
        "--session", "bridge",
    )  # fmt: skip
    with start(*words, "--json") as process:
        assert eventually(lambda: bool(target.ledger("n1").number), 60)
        process.send_signal(signal.SIGTERM)
        said, _ = process.communicate(timeout=60)
    assert (process.returncode, json.loads(said)["next"]) == (0, 1)


def test_a_bridge_that_began_at_the_latest_goes_on_there(zones, tmp_path):
    """Nothing was forwarded yet, so its session is empty; what came since was passed over."""
    source, target = zones("source"), zones("target")
    published(source, "jfk", b"before")
    options = (source, target, str(tmp_path / "b"), "--start", "latest")
    assert forward(*options)["forwarded"] == 0
    published(source, "jfk", b"between")
    assert forward(*options)["forwarded"] == 1
    assert [each.payload for each in messages(target, tmp_path)] == [b"between"]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 1), (signal.SIGINT, 130)])
def test_a_bridge_that_is_stopped_before_it_has_everything_says_so(zones, tmp_path, number, code):
    """A script that goes on after --once would go on without the rest."""
    source, target = zones("source"), zones("target")
    published(source, "jfk", b"a")
    source.stop("n1")
    words = (
        "bridge", "--from", config(source), "--to", config(target), "--root", tmp_path / "b",
        "--session", "bridge", "--once", "--timeout", "60",
    )  # fmt: skip
    with start(*words) as process:
        assert b"forwarding to flights" in process.stderr.readline()
        process.send_signal(number)
        _, said = process.communicate(timeout=60)
    assert process.returncode == code, said
    assert b"stopped before everything was forwarded" in said


def test_one_log_is_not_bridged_with_itself(zones, tmp_path):
    """It would never end."""
    source = zones("source")
    published(source, "jfk", b"a")
    said = forward(source, source, str(tmp_path / "b"), code=2)
    assert "the source and the target of a bridge are one log" in said


def test_the_path_of_a_message_is_bounded():
    """Headers of a peer are hostile: a path may be anything."""
    assert path_of({}) == []
    assert path_of({"rt-path": b"\xff,a"})[1] == "a"
    assert not is_forwarded(["a"] * PATH_MAX, "b", chained=True)
    message = Message(b"x", b"k", 5, 6, 7, 8, Origin("jfk", 1, {"a": b"1"}))
    headers = headers_of(message, "flights", "ab")
    assert headers["rt-path"] == b"ab"
    assert headers["a"] == b"1"
    forged = headers_of(message._replace(origin=Origin("jfk", 1, {"rt-origin": b"x"})), "s", "ab")
    assert json.loads(forged["rt-origin"])["session"] == "jfk"
    again = headers_of(message._replace(origin=Origin("b", 1, headers)), "other", "cd")
    assert again["rt-path"] == b"ab,cd"
    assert again["rt-origin"] == headers["rt-origin"]
