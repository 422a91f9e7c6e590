"""What a pusher and a puller show over HTTP, and that a hop which stalls is named."""

import json
import logging
import os
import time

import pytest

from replicator.push import PushClient
from rt.cli.link import ServiceSettings
from rt.config.settings import load
from rt.net.certificates import certificate_files
from rt.node.http import HttpSettings
from rt.node.stalls import HopProgress
from rt.web.program import ShownProgram
from rt.web.pull_site import PullSite
from rt.web.push_site import SERIES_MAX, PushSite
from rt.web.recent import RecentEvents
from rt.web.server import WebServer
from rt.web.watch import SiteWatch
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
        site.start()
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


def test_a_pusher_shows_what_it_sent_and_what_waits(cluster, port):
    """The first question is whether the publisher's machine ships at all."""
    publisher, push = cluster.publisher(), cluster.push()
    publisher.publish_many([b"x" * 100] * 500)
    publisher.flush("merged", 20)
    site = PushSite(push, program(cluster, "push", "publisher"))
    seen = port(site)
    site._watch.look()
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
    site = PushSite(cluster.push(), program(cluster, "push", "publisher"))
    seen = port(site)
    assert eventually(lambda: "refused" in unready(site, seen))
    assert seen.ask("/readyz")[0] == 503
    assert seen.ask("/healthz")[0] == 200
    assert seen.metric("rt_push_connected") == 0
    assert seen.json("/overview")["verdict"]["level"] == "broken"


def unready(site, seen):
    """Why it is not ready."""
    site._watch.look()
    return str(json.loads(seen.ask("/readyz")[2])["reasons"])


def test_a_puller_shows_its_copy(cluster, port):
    """It is ready once it has caught up."""
    publisher, pull = cluster.publisher(), cluster.pull()
    cluster.push()
    publisher.publish_many([b"x" * 100] * 500)
    publisher.flush("merged", 20)
    end = cluster.nodes["n1"].pipeline.feeds.end
    assert eventually(lambda: pull.status().position == end and pull.wait_caught_up(0))
    seen = port(PullSite(pull, cluster.out("sub"), program(cluster, "pull", "subscriber")))
    assert seen.ask("/readyz")[0] == 200
    assert seen.metric("rt_pulled_messages_total") == 500
    assert seen.metric("rt_pull_caught_up") == seen.metric("rt_pull_connected") == 1
    assert len(seen.json("/log-history")) == len(cluster.rows("n1"))
    assert seen.json("/overview")["verdict"]["text"].startswith("The copy follows")
    cluster.stop("n1")
    assert eventually(lambda: seen.ask("/readyz")[0] == 503)


def test_a_pusher_of_many_sessions_has_few_series(tmp_path, cluster):
    """Publishers name sessions, and each could make a series."""
    site = PushSite(
        PushClient(str(tmp_path), STREAM, [("localhost", 1)], cluster.contexts("publisher")),
        program(cluster, "push", "publisher"),
    )
    from replicator.progress import SessionStatus
    from rt.position import Position

    one = Position(0)
    site._status = [
        SessionStatus(f"s{each}", "a:1", True, one, one, each, "") for each in range(1000)
    ]
    named = [
        each.labels["session"]
        for family in site.metrics()
        for each in family.samples
        if "session" in each.labels
    ]
    assert len(named) == 2 * SERIES_MAX
    assert "s999" in named


def test_a_hop_that_stalls_is_one_line_and_one_when_it_moves(caplog):
    """A line a second would bury the next event."""
    places = iter([8, 8, 8, 9])
    watch = SiteWatch(
        lambda: {"jfk to n1": HopProgress(next(places), waits=True)},
        lambda name: f"nothing is taken ({name})",
    )
    watch._stalls._stalled_s = 0.0
    with caplog.at_level(logging.INFO, "rt.client"):
        for _ in range(3):
            watch.look()
        watch._stalls._stalled_s = 10.0
        watch.look()
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
