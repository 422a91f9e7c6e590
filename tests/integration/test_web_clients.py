"""The HTTP pages of a pusher and a puller, which name a stalled hop."""

import errno
import json
import logging
import os
import re
import signal
import subprocess
import time
from types import SimpleNamespace

import pytest

from replicator.push.client import PushClient
from replicator.push.progress import SessionStatus
from rt.cli.common.link import ServiceSettings
from rt.client.push_watch import PushWatch
from rt.client.site_watch import SiteWatch
from rt.config.settings import load
from rt.net.authority.certificates import certificate_files
from rt.node.observe.stall_clock import HopProgress
from rt.node.settings.http import HttpSettings
from rt.position import Position
from rt.web.programs.program import ShownProgram
from rt.web.programs.pull_site import PullSite
from rt.web.programs.pull_watch import PullWatch
from rt.web.programs.push_site import SERIES_MAX, PushSite
from rt.web.serving.recent import RecentEvents
from rt.web.serving.server import WebServer
from tests.archive_cluster import STREAM, ArchiveCluster
from tests.commands import finish, start
from tests.replicator_host import eventually
from tests.web_site import Port


@pytest.fixture
def cluster(tmp_path):
    """A node."""
    made = ArchiveCluster(tmp_path, 1)
    yield made
    made.undo.close()
    for name in list(made.nodes):
        made.stop(name)


@pytest.fixture
def port():
    """Return a function that shows a site; it ends with the test."""
    shown = []

    def begin(site):
        web = WebServer(HttpSettings("127.0.0.1:0"), site)
        web.start()
        shown.append((web, site))
        return Port(web.url)

    yield begin
    for web, site in shown:
        web.stop()
        site.stop()


def program(cluster, kind, who):
    """The program whose certificate is this."""
    files = certificate_files(os.path.join(cluster.root, "certs"), who)
    return ShownProgram(kind, STREAM, files, RecentEvents(), time.time_ns())


def pushing(client, cluster, **options):
    """Return the site of a pusher, and its watch."""
    watch = PushWatch(client, 1.0, **options)
    return PushSite(client, program(cluster, "push", "publisher"), watch), watch


def pulling(client, cluster):
    """Return the site of a puller."""
    who = program(cluster, "pull", "subscriber")
    return PullSite(client, cluster.out("sub"), who, PullWatch(client, 1.0))


def test_a_pusher_shows_what_it_sent_and_what_waits(cluster, port):
    """The first question is whether the publisher's machine ships at all."""
    publisher, push = cluster.publisher(), cluster.push()
    publisher.publish_many([b"x" * 100] * 500)
    publisher.flush("merged", 60)
    site, watch = pushing(push, cluster)
    seen = port(site)
    watch.check()
    assert seen.metric("rt_sent_messages_total") == 500
    assert seen.metric("rt_push_connected") == 1
    assert seen.metric("rt_push_lag_bytes") == seen.metric("rt_push_lag_seconds") == 0
    assert seen.metric("rt_session_lag_seconds", session="jfk") == 0
    assert seen.ask("/readyz")[0] == 200
    assert seen.json("/overview")["verdict"]["level"] == "ok"
    assert [each["session"] for each in seen.json("/sessions?search=jf")["rows"]] == ["jfk"]
    assert seen.json("/status")[0]["connected"]


def test_a_pusher_without_a_node_is_alive_unready_and_says_why(cluster, port, tmp_path):
    """A restart would not bring the node back."""
    publisher = cluster.publisher()
    publisher.publish(b"x")
    [name] = cluster.nodes
    cluster.stop(name)
    site, watch = pushing(cluster.push(), cluster)
    seen = port(site)
    assert eventually(lambda: "refused" in unready(watch, seen))
    assert seen.ask("/readyz")[0] == 503
    assert seen.ask("/healthz")[0] == 200
    assert seen.metric("rt_push_connected") == 0
    assert seen.json("/overview")["verdict"]["level"] == "broken"


def unready(watch, seen):
    """Why it is not ready."""
    watch.check()
    return str(json.loads(seen.ask("/readyz")[2])["reasons"])


def test_a_puller_shows_its_copy(cluster, port):
    """It is ready once it has caught up."""
    publisher, pull = cluster.publisher(), cluster.pull()
    cluster.push()
    publisher.publish_many([b"x" * 100] * 500)
    publisher.flush("merged", 60)
    end = cluster.nodes["n1"].pipeline.feeds.end
    assert pull.wait_caught_up(60)
    assert pull.status().position == pull.status().complete_to == end
    assert eventually(lambda: pull.status().caught_up)
    seen = port(pulling(pull, cluster))
    assert seen.ask("/readyz")[0] == 200
    assert seen.metric("rt_pulled_messages_total") == 500
    assert seen.metric("rt_pull_caught_up") == seen.metric("rt_pull_connected") == 1
    assert len(seen.json("/log-history")) == len(cluster.rows("n1"))
    assert seen.json("/overview")["verdict"]["text"].startswith("The copy follows")
    cluster.stop("n1")
    assert eventually(lambda: seen.ask("/readyz")[0] == 503)


def test_a_pusher_of_many_sessions_has_few_series(tmp_path, cluster):
    """Publishers name sessions, and each could make a series."""
    client = PushClient(str(tmp_path), STREAM, [("localhost", 1)], cluster.contexts("publisher"))
    site, watch = pushing(client, cluster)
    zero = Position(0)
    watch.status = [
        SessionStatus(f"s{each}", "a:1", True, zero, zero, each, "") for each in range(1000)
    ]
    named = [
        each.labels["session"]
        for family in site.metrics()
        for each in family.samples
        if "session" in each.labels
    ]
    assert len(named) == 2 * SERIES_MAX
    assert "s999" in named


def test_a_pusher_that_reaches_no_node_says_how_much_waits(cluster, port):
    """Its lag was 0 as long as it was not connected, and no alert fired."""
    publisher, push = cluster.publisher(), cluster.push()
    publisher.publish(b"x" * 1000)
    publisher.flush("merged", 60)
    site, watch = pushing(push, cluster, stalled_s=0.0)
    cluster.stop("n1")
    assert eventually(lambda: not push.status()[0].connected)
    assert push.status()[0].lag_bytes == 0  # what was received before does not wait
    publisher.publish(b"y" * 1000)
    publisher.flush("synced")
    seen = port(site)
    assert eventually(lambda: watch.check() or "refused" in watch.words("jfk"))
    watch.check()
    assert 1000 < seen.metric("rt_push_lag_bytes") < 2000
    assert seen.metric("rt_push_lag_seconds") > 0
    assert seen.metric("rt_stalled", hop="push") == 1
    sentence = seen.json("/overview")["verdict"]["text"]
    assert sentence.startswith("Stalled: published messages are not")


def one(node, end, *, durable=0, replicated=0, error="", connected=True):
    """The status of a session with a node."""
    return SessionStatus("jfk", node, connected, Position(end), Position(durable), 0, error,
                         Position(replicated))  # fmt: skip


@pytest.mark.parametrize(
    ("status", "stalled"),
    [
        ([one("a", 800, durable=800, replicated=800), one("b", 800, error="refused")], False),
        ([one("a", 800, durable=800, replicated=0), one("b", 800, error="refused")], True),
        ([one("a", 0, connected=False, error="refused")], False),
        ([one("a", Position(1 << 44), durable=800, replicated=800)], False),
    ],
    ids=["one node is down", "no majority", "nothing to ship", "a file without a frame"],
)
def test_a_session_stalls_where_no_majority_gets_it(status, stalled, caplog):
    """One node of three that is down woke people, though everything was merged."""
    client = SimpleNamespace(status=lambda: status)
    watch = PushWatch(client, 1.0, stalled_s=0.0)
    with caplog.at_level(logging.WARNING, "rt.client"):
        watch.check()
        watch.check()
    assert bool(watch.stalled) == stalled
    said = [each.getMessage() for each in caplog.records]
    words = "stalled for 0 s: published messages are not accepted (session jfk): b: refused"
    assert said == [words] * stalled


def test_a_copy_that_reaches_no_node_or_does_not_move_stalls():
    """One line names the hop; a copy that has everything has no work."""
    status = {"node": "", "position": Position(8), "caught_up": False, "error": "refused"}
    watch = PullWatch(SimpleNamespace(status=lambda: SimpleNamespace(**status)), 1.0, 0.0)
    watch.check()
    assert watch.stalled
    assert watch.words() == "merged messages are not copied: refused"
    status |= {"node": "n1:7420"}
    watch.check()
    assert watch.stalled
    assert watch.words() == "n1:7420 is connected, and the copy stays at 0.0.8"
    status |= {"caught_up": True}
    watch.check()
    assert not watch.stalled


@pytest.mark.process
@pytest.mark.parametrize("command", ["push", "pull"])
def test_a_hangup_loads_settings_again_and_ends_nothing(cluster, tmp_path, command):
    """A service manager reloads by it; it used to end the program."""
    config = tmp_path / "clients.toml"
    with open(os.path.join(cluster.root, "clients.toml")) as file:
        text = file.read()
    config.write_text(re.sub(r"nodes = \[.*?\]", 'nodes = ["localhost:1"]', text, flags=re.DOTALL))
    process = start(
        "-v", command, "--config", config, "--root", tmp_path / "x", "--http", "127.0.0.1:0",
        stdin=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        line_with(process, "localhost:1: no answer")
        config.write_text(text.replace('identity = "', 'identity = "x'))
        process.send_signal(signal.SIGHUP)
        told = "until the program is started again: identity\n"
        lines_with(process, "certificates and nodes were loaded again", told, ": connected")
        config.write_text("[push]\nnodes = 5\n[pull]\nnodes = 5\n")
        process.send_signal(signal.SIGHUP)
        assert "nodes" in line_with(process, "nothing was loaded again")
        assert process.poll() is None
    finally:
        process.terminate()
        assert finish(process)[0] == 0


def line_with(process, words):
    """Return the next line of a program's log that has these words."""
    while words not in (line := process.stderr.readline().decode()):
        assert line, "the program ended"
    return line


def lines_with(process, *words):
    """Read a program's log until each of these was in a line, in any order."""
    left = set(words)
    while left:
        line = process.stderr.readline().decode()
        assert line, f"the program ended without a line with {left}"
        left -= {each for each in left if each in line}


class OneHop(SiteWatch):
    """Watches one hop, whose progress is what a function returns."""

    def __init__(self, look, **options):
        super().__init__(0.01, **options)
        self.one = look

    def progress(self):
        return {"jfk to n1": self.one()}

    def words(self, hop):
        return f"nothing is taken ({hop})"


def test_a_watch_survives_what_it_cannot_look_at(caplog):
    """Its thread died of one error, and the service manager restarted the pusher for it."""
    looks = []

    def look():
        looks.append(len(looks))
        if looks[-1] in (1, 2):
            raise PermissionError(errno.EACCES, "Permission denied", "data")
        return HopProgress(len(looks), waits=True)

    watch = OneHop(look)
    with caplog.at_level(logging.WARNING, "rt.client"):
        watch.start()
        assert eventually(lambda: len(looks) > 4, 60)
        watch.stop()
    assert not watch.stuck()
    [said] = [each.getMessage() for each in caplog.records]
    assert said.startswith("progress cannot be checked: data: permission denied")


def test_a_hop_that_stalls_is_one_line_and_one_when_it_moves(caplog):
    """A line a second would bury the next event."""
    hops = iter([*(HopProgress(8, waits=True),) * 3, HopProgress(9, waits=False)])
    watch = OneHop(lambda: next(hops), stalled_s=0.0)
    with caplog.at_level(logging.INFO, "rt.client"):
        for _ in range(4):
            watch.check()
    said = [each.getMessage() for each in caplog.records]
    assert said == ["stalled for 0 s: nothing is taken (jfk to n1)", "it moves again"]


def test_the_port_is_a_setting_like_any_other(tmp_path):
    """In a file, the environment, or an option."""
    config = tmp_path / "clients.toml"
    config.write_text('[push]\nhttp = "127.0.0.1:9421"\n')
    settings = load(ServiceSettings, str(config), "push", {})
    assert settings.web.address == ("127.0.0.1", 9421)


@pytest.mark.process
def test_the_command_says_where_its_page_is_and_answers_there(cluster, tmp_path):
    """As an operator starts it."""
    config = os.path.join(cluster.root, "clients.toml")
    process = start("pull", "--config", config, "--root", tmp_path / "x", "--http", "127.0.0.1:0")
    try:
        line = process.stderr.readline().decode()
        assert line.startswith("rt: metrics, health and a page at http://127.0.0.1:")
        seen = Port(line.split()[-1])
        assert seen.ask("/healthz")[0] == 200
        assert "rt_pull_connected" in seen.ask("/metrics")[2]
    finally:
        process.terminate()
        assert finish(process)[0] == 0
