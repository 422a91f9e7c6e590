"""The HTTP port: what each path answers, who may ask, and that nothing can be changed by it."""

import http.client
import json
import logging
import re
import socket
import ssl
import threading
import time
from contextlib import contextmanager, suppress
from dataclasses import replace
from types import SimpleNamespace

import pytest
from openmetrics_text import families_of
from prometheus_client import CollectorRegistry, exposition

from replicator.serve.client_record import PULLS, ClientView
from rt.cli.cluster.node import RELOADED
from rt.cli.common.link import reload
from rt.errors import Misuse
from rt.net.authority.certificates import certificate_files
from rt.node.agree.fork_watch import FoundFork
from rt.node.notes.registered_cursor import CURSOR_NOTE, RegisteredCursor
from rt.node.observe.sample import SessionView
from rt.node.settings.http import HttpSettings
from rt.position import Position
from rt.text import parse_time
from rt.traffic import Traffic
from rt.web.nodes.cursor_rows import CursorRow
from rt.web.nodes.files import planned
from rt.web.nodes.metrics import SERIES_MAX, StreamView, node_metrics
from rt.web.nodes.node_overview import overview
from rt.web.nodes.node_site import NodeSite
from rt.web.nodes.verdict import NodeRow, verdict_of
from rt.web.serving.collector import SiteCollector
from rt.web.serving.disclosure import encoded
from rt.web.serving.server import WebServer, demand_installed
from sequencer.raft.consensus import Seat
from tests.replicator_host import eventually
from tests.web_site import port_of, sampled, shown


@pytest.fixture(scope="module")
def node(tmp_path_factory):
    """A node with a stream through it, and its port."""
    with shown(tmp_path_factory.mktemp("web")) as made:
        made.cluster.push()
        made.cluster.pull()
        made.publish(1000)
        yield made


def test_the_metrics_say_what_the_node_did(node):
    """What is on the dashboard at three in the morning has to be true."""
    pulled = eventually(
        lambda: node.node.periodic_sampler.take_sample() or node.metric("rt_sent_messages_total")
    )
    assert pulled
    assert node.metric("rt_received_messages_total") == 1000
    assert node.metric("rt_merged_messages_total") == node.metric("rt_merged_number") == 1000
    assert node.metric("rt_has_leader") == node.metric("rt_member_role", role="leader") == 1
    assert node.metric("rt_session_lag_bytes", session="jfk") == 0
    assert node.metric("rt_sync_seconds_count", file="session") > 0
    assert node.metric("rt_agreement_seconds_count") > 0
    assert node.metric("rt_clients", kind="push") == node.metric("rt_clients", kind="pull") == 1
    days = (node.metric("rt_certificate_expiry_timestamp_seconds", use="own") - time.time()) / 86400
    assert 1 < days < 91
    assert node.metric("rt_takes_data") == 1
    assert node.metric("rt_log_bytes") > 100_000
    assert node.metric("rt_refused_total", reason="diverged") == 0  # counters exist from the start
    assert node.metric("process_open_fds") > 0


def test_openmetrics_is_served_to_those_who_ask_for_it(node):
    """Prometheus asks for it, and a strict parser reads it."""
    accept = "application/openmetrics-text; version=1.0.0"
    status, headers, body = node.ask("/metrics", Accept=accept)
    assert (status, headers["content-type"].split(";")[0]) == (200, "application/openmetrics-text")
    assert body.endswith("# EOF\n")
    assert {"rt_received_bytes", "rt_sync_seconds", "rt_stalled"} <= families_of(body)


def test_a_node_that_does_what_it_promises_is_alive_and_ready(node):
    """Both answers say how old the sample is that they come from."""
    for path in ("/healthz", "/readyz", "/readiness"):
        status, _, body = node.ask(path)
        assert (status, json.loads(body)["ok"]) == (200, True), path


def test_what_makes_a_node_unready_leaves_it_alive(node):
    """A restart frees no disk, brings no leader, and loses what memory held."""
    real = node.node.periodic_sampler.sample
    troubled = replace(
        real, disk=replace(real.disk, takes_data=False),
        changes=replace(real.changes, leaderless_s=60.0),
    )  # fmt: skip
    with sampled(node.node, troubled):
        status, _, body = node.ask("/readyz")
        assert status == 503
        reasons = json.loads(body)["reasons"]
        assert [each.partition(":")[0] for each in reasons] == ["no-quorum", "reserve"]
        assert node.ask("/healthz")[0] == 200
    old = replace(real, at_s=real.at_s - 60)
    with sampled(node.node, old):
        status, _, body = node.ask("/healthz")
    assert (status, "stuck" in json.loads(body)["reasons"][0]) == (503, True)


def test_a_forked_node_is_named_by_page_probe_and_metric(node):
    """It serves nothing, so no service may send clients there, and only an operator can mend it."""
    real = node.node.periodic_sampler.sample
    fork = FoundFork(0.0, Position(2048), "entry 9 is another")
    waiting = replace(real.view.waiting, fork=fork)
    forked = replace(real, view=real.view._replace(waiting=waiting))
    with sampled(node.node, forked):
        status, _, body = node.ask("/readyz")
        assert (status, json.loads(body)["reasons"][0].split(":")[0]) == (503, "forked")
        assert node.ask("/healthz")[0] == 200
        shown = node.json("/overview")
        assert (shown["nodes"][0]["role"], shown["verdict"]["level"]) == ("forked", "degraded")
        assert "its log differs from 0.0.2048 on" in shown["verdict"]["text"]
        assert node.metric("rt_forked") == 1
    answers = {"n2": {"forked": {"position": "0.0.7"}, "role": "follower"}}
    two = replace(real.view.engine, members={**real.view.engine.members, "n2": Seat(1)})
    sample = replace(real, view=real.view._replace(engine=two))
    other = overview(sample, node.node.settings, answers, "")["nodes"][1]
    assert (other["role"], "differs from 0.0.7 on" in other["trouble"]) == ("forked", True)


def test_status_is_what_rt_status_prints(node):
    """One word for one thing: a script reads either."""
    [answer] = node.json("/status")
    assert (answer["node"], answer["messages"], answer["address"].split(":")[0]) == (
        "n1", 1000, "127.0.0.1",
    )  # fmt: skip
    assert answer["sessions"][0]["messages"] == 1000
    assert set(node.node.status()) == set(answer) - {"address"}


def test_log_history_has_the_fields_of_the_system_we_follow(node):
    """Its users have scripts that read them."""
    rows = node.json("/log-history")
    assert len(rows) == len(node.cluster.rows("n1"))
    headers = {name.lower(): value for name, value in node.ask("/log-history")[1].items()}
    assert parse_time(headers["rt-as-of"]) > 0, "and says as of when that is"
    first = rows[0]
    assert first["logPath"] == f":{node.cluster.out('n1')}/log.0.0"
    assert (first["logPos"], first["truncationTime"], rows[-1]["logAge"]) == (0, "", -1)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT[\d:]{8}\.\d{9}", first["logTime"])


def test_rt_clients_has_the_fields_of_the_system_we_follow(node):
    """Which publisher is connected, how far it is replicated, how fast it sends."""
    end = node.node.pipeline.feeds.end
    assert eventually(lambda: node.node.periodic_sampler.take_sample() or sent_to(node) == end)
    result = node.json("/rt-clients")["result"]
    assert result["node"] == "n1"
    [row] = result["publishers"]["publisher"]
    theirs = {
        "active", "connect_time", "last_message", "replicated_pos", "total_bytes", "transfer_rate",
        "target_directory",
    }  # fmt: skip
    assert theirs <= set(row)
    assert row["active"]
    assert row["total_bytes"] > 100_000
    assert row["replicated_pos"] == row["merged_pos"] > 0
    [subscriber] = result["subscribers"]["subscriber"]
    assert (subscriber["active"], subscriber["lag_bytes"]) == (True, 0)


def sent_to(node):
    """Up to where the merged log was sent to the subscriber, as of the last sample."""
    return next((each.position for each in node.node.periodic_sampler.sample.here(PULLS)), None)


def test_sessions_are_found_by_a_part_of_their_name(node):
    """A thousand do not fit on a page."""
    assert [each["session"] for each in node.json("/sessions?search=JF")["rows"]] == ["jfk"]
    assert node.json("/sessions?search=nothing")["rows"] == []
    assert node.json("/sessions?limit=-1")["found"] == 1
    assert node.json("/sessions?limit=99999999999999999999")["found"] == 1
    assert node.json(f"/sessions?limit={'9' * 5000}")["found"] == 1


def test_events_are_whole_overviews(node):
    """A page that was away has nothing to catch up with."""
    connection = http.client.HTTPConnection(node.address, timeout=20)
    connection.request("GET", "/events")
    answer = connection.getresponse()
    assert answer.getheader("content-type").startswith("text/event-stream")
    line = answer.readline()
    assert line.startswith(b"data: ")
    data = json.loads(line[6:])
    assert (data["kind"], data["verdict"]["level"]) == ("node", "ok")
    assert data["sessions"]["rows"][0]["session"] == "jfk"
    answer.close()
    connection.close()


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH"])
def test_nothing_can_be_changed_over_http(node, method):
    """The system we follow deletes data when it is sent a GET."""
    for path in ("/", "/status", "/metrics", "/events", "/log-history"):
        assert node.ask(path, method)[0] == 405


def test_a_page_of_another_site_cannot_read_through_a_name_of_its_own(node):
    """It resolves its name to 127.0.0.1, and the browser then takes us for it."""
    assert node.ask("/status", Host="evil.example")[0] == 400
    assert node.ask("/status", Host="localhost:1234")[0] == 200


def test_every_answer_forbids_the_browser_what_the_page_does_not_need(node):
    """A session may be called <img onerror>; the page also never makes markup of a name."""
    for path in ("/", "/page.js", "/overview", "/metrics", "/healthz"):
        policy = node.ask(path)[1]["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy


def test_a_path_that_is_not_there_is_not_found(node):
    """No directory is served, so no path leads out of one."""
    for path in ("/nothing", "/../../etc/passwd", "/page.css/..", "/%2e%2e/%2e%2e/etc/passwd"):
        assert node.ask(path)[0] == 404


def test_fifty_readers_that_read_nothing_do_not_delay_a_message(node):
    """A page that hangs must not be felt by publishers."""
    host, port = node.address.split(":")
    slow = [socket.create_connection((host, int(port))) for _ in range(50)]
    try:
        for each in slow:
            each.sendall(b"GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n")
        node.publish(1, session="lone")  # waits until it is merged
    finally:
        for each in slow:
            each.close()


def test_requests_that_never_end_give_their_places_back(node):
    """They took every place, and a probe that found none had a node restarted that was well."""
    with port_of(node.site, request_s=0.2) as quick:
        demand_places(quick)


def demand_places(node):
    """Fail unless unfinished requests make room, and an open page stays."""
    host, port = node.address.split(":")
    pages = []

    def is_open():
        with suppress(ConnectionError):  # a request of ours may be one that did not end in time
            pages.append(socket.create_connection((host, int(port))))
            pages[-1].sendall(b"GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n")
            return pages[-1].recv(4096).startswith(b"HTTP/1.1 200")

    def is_well():
        with suppress(ConnectionError):
            return node.ask("/healthz")[0] == 200

    assert eventually(is_open)
    page = pages[-1]
    stuck = [socket.create_connection((host, int(port))) for _ in range(100)]
    try:
        for each in stuck:
            each.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n")
        assert eventually(is_well)
        page.settimeout(0.5)
        with suppress(TimeoutError):  # an open page is no unfinished request
            assert page.recv(4096)
    finally:
        for each in [*stuck, *pages]:
            each.close()


def test_without_the_extra_one_line_says_what_to_install(monkeypatch):
    """A traceback would not say that it is one command."""
    monkeypatch.setitem(__import__("sys").modules, "uvicorn", None)
    with pytest.raises(Misuse, match=r"pip install '\.\[http\]'"):
        demand_installed()


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"http": "0.0.0.0:9420"}, "which other machines can reach; give http_cert"),
        ({"http": ":9420"}, "http is not an address"),
        ({"http": "localhost:99999"}, "http is not an address"),
        ({"http": "localhost:1", "http_cert": "x"}, "go together"),
        ({"http": "localhost:1", "http_ca": "x"}, "http_ca goes with http_cert"),
        ({"http_cert": "x"}, "go with http"),
    ],
)
def test_settings_that_would_show_the_port_to_strangers_are_refused(fields, words):
    """What it shows has no login."""
    with pytest.raises(Misuse, match=words):
        HttpSettings(**fields)


def test_with_a_certificate_it_is_served_over_tls(node, tmp_path):
    """The port may then be reached from elsewhere, by those whom its authority knows."""
    certs = node.cluster.root + "/certs"
    own, other = certificate_files(certs, "n1"), certificate_files(certs, "subscriber")
    settings = HttpSettings("127.0.0.1:0", own.cert, own.key, own.ca)
    web = WebServer(settings, node.site)
    web.start()
    try:
        address = web.url.removeprefix("https://")
        context = ssl.create_default_context(cafile=own.ca)
        with pytest.raises((ssl.SSLError, ConnectionError, http.client.RemoteDisconnected)):
            asked(address, context)
        context.load_cert_chain(other.cert, other.key)
        assert asked(address, context) == 200
        web.reload()
        assert asked(address, context) == 200
    finally:
        web.stop()


def test_a_hangup_says_what_is_in_use_and_what_waits_for_a_restart(node, caplog):
    """A line that only says "settings were loaded" let an operator believe that all were."""

    def refuse():
        raise Misuse("no such key")

    running, settings = node.node, node.node.settings
    now = replace(
        settings,
        listen="127.0.0.1:1",
        web=replace(settings.web, http="127.0.0.1:2"),
        storage=replace(settings.storage, reserve=12345),
        limits=replace(settings.limits, connections=77),
    )
    with caplog.at_level(logging.INFO, "rt.cli"):
        reload(lambda: now, None, running.reload, RELOADED)
    loaded, left = caplog.messages
    assert loaded == "certificates, reserve and limits were loaded again"
    assert left == "changed and not in use until the program is started again: http, listen"
    assert running.directory.guard.reserve == 12345
    reload(lambda: settings, SimpleNamespace(reload=refuse), running.reload, RELOADED)
    assert caplog.messages[-1] == "nothing was loaded again: no such key"
    assert running.directory.guard.reserve == 12345
    reload(lambda: settings, None, running.reload, RELOADED)
    assert running.directory.guard.reserve == settings.storage.reserve


def asked(address, context):
    """The status of an answer over TLS."""
    connection = http.client.HTTPSConnection(address, timeout=10, context=context)
    try:
        connection.request("GET", "/healthz")
        return connection.getresponse().status
    finally:
        connection.close()


def test_a_certificate_that_cannot_be_used_is_refused_at_the_start(node, tmp_path):
    """Not at the first visit."""
    bad = tmp_path / "bad.pem"
    bad.write_text("nothing")
    bad.chmod(0o600)
    with pytest.raises(Misuse, match="cannot be used"):
        WebServer(HttpSettings("127.0.0.1:0", str(bad), str(bad)), node.site)


def many(sample, count):
    """A sample of a node with many sessions and subscribers, all of them waiting."""
    session = SessionView("s", "p", Position(9), Position(9), Position(8), Traffic(1, 1, 1),
                          1.0, 1, 1, 1.0)  # fmt: skip
    client = ClientView("c", PULLS, "", 1, None, Position(0), 1)
    return replace(
        sample,
        sessions=tuple(session._replace(session=f"s{each}") for each in range(count)),
        clients=tuple(replace(client, peer=f"c{each}") for each in range(count)),
    )


@contextmanager
def with_cursors(node, *cursors):
    """Give the stream these registered cursors; yield a port that shows them."""
    real = node.node.periodic_sampler.sample
    notes = {CURSOR_NOTE + each.name: each.text() for each in cursors}
    view = real.view._replace(notes={**real.view.notes, **notes})
    site = NodeSite(node.node, node.events)
    with sampled(node.node, replace(real, view=view)), port_of(site) as port:
        yield port


def test_each_registered_cursor_has_its_lag(node):
    """A reader that stopped is seen before retention overtakes it."""
    end = node.node.pipeline.feeds.end
    total = node.node.periodic_sampler.sample.view.number
    with with_cursors(
        node,
        RegisteredCursor("etl", "spark", holder="spark-1", stored_ns=5),
        RegisteredCursor("done", "spark", position=end),
    ) as port:
        assert port.metric("rt_cursor_lag_messages", cursor="etl") == total
        assert port.metric("rt_cursor_lag_bytes", cursor="etl") > 100 * total
        assert port.metric("rt_cursor_lag_seconds", cursor="etl") >= 0
        assert port.metric("rt_cursor_lag_bytes", cursor="done") == 0
        done, etl = port.json("/overview")["cursors"]
    assert (etl["cursor"], etl["holder"], etl["position"], etl["lag_messages"]) == (
        "etl", "spark-1", "0.0.0", total,
    )  # fmt: skip
    assert (done["cursor"], done["lag_bytes"], done["position"]) == ("done", 0, str(end))


def test_only_the_cursors_that_are_furthest_behind_have_series(node):
    """A stream may have 48 cursors, and a process many streams."""
    settings, sample = node.node.settings, node.node.periodic_sampler.sample
    rows = [CursorRow(f"c{lag}", "", "", "0.0.0", 0, 0, lag, lag, 0.0) for lag in range(48)]
    view = StreamView("flights", sample, list, lambda: rows)
    families = {each.name: each.samples for each in node_metrics([view], settings, {})}
    named = [each.labels["cursor"] for each in families["rt_cursor_lag_bytes"]]
    assert sorted(named) == sorted(f"c{lag}" for lag in range(48 - SERIES_MAX, 48))


def test_no_publisher_can_make_the_metrics_grow_without_bound(node):
    """A series for each session crashed the servers of others; the worst are enough."""
    settings, sample = node.node.settings, node.node.periodic_sampler.sample
    samples = [
        each
        for family in node_metrics([StreamView("flights", many(sample, 1000), list)], settings, {})
        for each in family.samples
    ]
    assert len(samples) < 115 + 50 + 4 * SERIES_MAX
    named = {each.labels["session"] for each in samples if "session" in each.labels}
    assert len(named) == SERIES_MAX
    [left] = [each.value for each in samples if each.name == "rt_sessions_without_series"]
    assert left == 1000 - SERIES_MAX


def test_a_thousand_sessions_are_scraped_in_50_ms_of_processor_time(node):
    """A scrape takes the interpreter's lock from the threads that merge; usually for 4 ms."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(SiteCollector(node.site))
    taken = []
    with sampled(node.node, many(node.node.periodic_sampler.sample, 1000)):
        for _ in range(5):
            began_s = time.thread_time()
            body = exposition.generate_latest(registry)
            taken.append(time.thread_time() - began_s)
    assert min(taken) < 0.05
    assert f'rt_sessions_without_series{{stream="flights"}} {1000 - SERIES_MAX}.0'.encode() in body


def test_an_event_of_the_page_stays_small_with_a_thousand_sessions(node):
    """It is sent to every open page each second."""
    sample = replace(many(node.node.periodic_sampler.sample, 1000), clients=())
    with sampled(node.node, sample):
        assert len(encoded(node.site.overview())) < 50_000


def test_what_another_node_answers_cannot_break_the_page(node):
    """It is a peer: its answer is shown as text, or not at all."""
    sample, settings = node.node.periodic_sampler.sample, node.node.settings
    members = {name: Seat(1) for name in ("n1", "n2", "n3")}
    engine = replace(sample.view.engine, members=members)
    sample = replace(sample, view=sample.view._replace(engine=engine))
    answers = {
        "n2": {"role": 7, "messages": "many", "clients": [3, {"kind": "pull", "peer": []}]},
        "n3": {"role": "<b>", "messages": -1, "disk_free": 1 << 90, "clients": "x"},
    }
    shown_page = overview(sample, settings, answers, "")
    assert [each["name"] for each in shown_page["nodes"]] == ["n1", "n2", "n3"]
    assert shown_page["nodes"][2]["messages"] is None


def test_a_puller_that_left_stays_listed_as_away_by_its_name(node):
    """One that froze was gone from the page after 25 seconds, and everything was well."""
    sample, settings = node.node.periodic_sampler.sample, node.node.settings
    hour_ns, now_ns = 3600 * 10**9, sample.at_ns
    here = ClientView("spark", PULLS, "a:1", 1, None, Position(0), 1)
    left = (
        replace(here, peer="old", ended_ns=now_ns - 7 * hour_ns),
        replace(here, peer="etl", address="a:2", ended_ns=now_ns - 2 * hour_ns),
        replace(here, peer="etl", address="a:3", ended_ns=now_ns - hour_ns),
        replace(here, address="a:4", ended_ns=now_ns - hour_ns),
    )
    node_left = replace(here, peer=settings.name, ended_ns=now_ns)  # it copied, and has a row above
    gone = (*left, node_left)
    rows = overview(replace(sample, clients=(*gone, here)), settings, {}, "")["clients"]
    shown = [(each["peer"], each["address"], each["is_away"]) for each in rows]
    assert shown == [("spark", "a:1", False), ("etl", "a:3", True)]
    assert rows[1]["since_ns"] == now_ns - hour_ns
    answers = {"n2": {"clients": [{"kind": PULLS, "peer": "etl", "address": "b:1"}]}}
    rows = overview(replace(sample, clients=left), settings, answers, "")["clients"]
    assert ("etl", False) in [(each["peer"], each["is_away"]) for each in rows]
    assert ("spark", True) in [(each["peer"], each["is_away"]) for each in rows]


def test_the_verdict_names_the_node_that_is_missing_and_what_to_do():
    """Health said fine while one more loss would have stopped everything."""
    nodes = [NodeRow(name, "follower", "", is_away=name == "n3") for name in ("n1", "n2", "n3")]
    level, sentence = verdict_of("n1", nodes, [])
    assert (level, sentence[-18:]) == ("degraded", "it: bring n3 back.")
    assert verdict_of("", nodes, [])[0] == "broken"
    well = [replace(each, is_away=False) for each in nodes]
    assert verdict_of("n1", well, []) == ("ok", "All 3 nodes are well, and n1 leads.")
    assert verdict_of("n1", well, ["what is synced is not merged"])[0] == "broken"


def test_a_node_that_is_behind_since_its_disk_is_full_does_not_call_the_stream_broken(node):
    """Its page said that merging is stalled, and first of all that a log is copied."""
    sample, settings = node.node.periodic_sampler.sample, node.node.settings
    members = {name: Seat(1) for name in ("n1", "n2", "n3")}
    full = replace(sample.disk, available=2 << 20, reserve=1 << 20, takes_data=False)
    for leader, level in (("n2", "degraded"), ("n1", "broken")):
        engine = replace(sample.view.engine, members=members, leader=leader)
        view = sample.view._replace(engine=engine)
        shown_page = overview(
            replace(sample, view=view, disk=full, stalled=("merge jfk",)), settings, {}, ""
        )
        assert shown_page["verdict"]["level"] == level
        assert "n1 refuses new data, as its disk is nearly full" in shown_page["verdict"]["text"]
        assert [each["disk_state"] for each in shown_page["nodes"]] == ["full", "", ""]
    assert shown_page["verdict"]["text"].startswith("Stalled: what is synced is not merged")


def test_the_page_shows_what_the_archiver_takes_next(node):
    """An operator asks before a reader meets a gap."""
    node.cluster.set_policy(time=60)
    rows, notes = node.cluster.rows("n1"), node.node.pipeline.sequencer.view.notes
    shown_files = planned(rows, notes, time.time_ns(), nodes=1)
    rolled = [row.file for row in rows if row.state == "rolled"]
    assert [each["file"] for each in shown_files if each["is_next"]] == rolled[:1]
    assert not any(each["goes"] for each in shown_files)
    later = planned(rows, notes, time.time_ns() + 2 * 3600 * 10**9, nodes=1)
    assert [each["goes"] for each in later] == [each["state"] == "rolled" for each in later]


def test_a_stop_ends_open_streams_at_once(tmp_path):
    """A page that is open for days must not keep a node from stopping."""
    with shown(tmp_path) as made:
        connection = http.client.HTTPConnection(made.address, timeout=20)
        connection.request("GET", "/events")
        answer = connection.getresponse()
        assert answer.readline()
        stopping = threading.Thread(target=made.web.stop)
        stopping.start()
        stopping.join(60)
        assert not stopping.is_alive(), "it waits for the stream, which never ends"
        answer.close()
        connection.close()
