"""The HTTP port of a process that serves several streams: all of them, each by its name."""

import http.client
import json
import logging
import socket
from dataclasses import replace

import pytest
from prometheus_client import CollectorRegistry, exposition

from rt.web.nodes.metrics import (
    SERIES_MAX,
    STREAMS_WITH_SERIES_MAX,
    StreamView,
    node_metrics,
    worst_first,
)
from rt.web.serving.collector import SiteCollector
from tests.integration.test_streams import NAMES
from tests.integration.test_web import many
from tests.replicator_host import eventually
from tests.web_site import ShownProcess, sampled, shown_streams


@pytest.fixture(scope="module")
def shown(tmp_path_factory):
    """Three streams of one process, with a message in each, and a port."""
    with shown_streams(tmp_path_factory.mktemp("streams")) as made:
        yield made


def test_every_metric_has_a_series_for_each_stream(shown):
    """The stream that no one looks at is the one that fails."""
    for name in NAMES:
        assert shown.metric("rt_merged_number", stream=name) == 1
        assert shown.metric("rt_has_leader", stream=name) == 1
        assert shown.metric("rt_stream_served", stream=name) == 1
        assert shown.metric("rt_disk_free_bytes", stream=name) > 0
        assert shown.metric("rt_session_lag_bytes", stream=name, session=f"{name}-1") == 0
    assert shown.metric("rt_sync_seconds_count", file="session") >= len(NAMES)
    assert shown.metric("rt_streams_without_series") == 0


def test_each_path_shows_all_streams_or_the_one_that_is_asked_for(shown):
    """One port, one probe, one script for the whole process."""
    assert {each["stream"] for each in shown.json("/status")} == set(NAMES)
    assert [each["stream"] for each in shown.json("/status?stream=ships")] == ["ships"]
    paths = {each["logPath"] for each in shown.json("/log-history")}
    assert len(paths) == len(NAMES)
    [row] = shown.json("/log-history?stream=trains")
    assert "/trains/" in row["logPath"]
    rows = shown.json("/rt-clients")["result"]["publishers"]["publisher"]
    assert {(each["stream"], each["session"]) for each in rows} == {
        (name, f"{name}-1") for name in NAMES
    }
    assert {each["stream"] for each in shown.json("/files")} == set(NAMES)
    found = shown.json("/sessions?search=trains")
    assert [each["stream"] for each in found["rows"]] == ["trains"]
    assert (found["total"], found["found"]) == (3, 1)
    one = shown.json("/overview?stream=trains")
    assert (one["kind"], one["stream"], one["sessions"]["total"]) == ("node", "trains", 1)


def test_the_overview_has_a_row_for_each_stream(shown):
    """State, leader, rate and lag are what an operator compares."""
    whole = shown.json("/overview")
    assert (whole["kind"], whole["name"]) == ("host", "n1")
    assert whole["verdict"] == {"level": "ok", "text": "All 3 streams are well."}
    assert [each["stream"] for each in whole["streams"]] == sorted(NAMES)
    for row in whole["streams"]:
        assert (row["leader"], row["role"], row["level"], row["sessions"]) == (
            "n1", "leader", "ok", 1,
        )  # fmt: skip
        assert {"bytes_per_s", "lag_bytes", "waiting_s"} <= set(row)


@pytest.mark.parametrize(
    "path", ["/status", "/overview", "/events", "/readyz", "/healthz", "/files", "/log-history"]
)
def test_a_stream_that_is_not_served_is_not_found(shown, path):
    """A probe with a mistyped name must not be told that all is well."""
    status, _, body = shown.ask(f"{path}?stream=planes")
    assert (status, json.loads(body)) == (404, {"error": "this node serves no stream 'planes'"})


def test_events_are_of_the_stream_that_is_asked_for(shown):
    """The page of one stream must not be sent the list of all."""
    for query, kind in (("", "host"), ("?stream=ships", "node")):
        connection = http.client.HTTPConnection(shown.address, timeout=20)
        connection.request("GET", f"/events{query}")
        line = connection.getresponse().readline()
        connection.close()
        assert json.loads(line.removeprefix(b"data: "))["kind"] == kind


def test_a_probe_names_the_stream_that_is_not_ready(shown):
    """`no-quorum` alone sends the operator to the wrong stream."""
    node = shown.nodes["trains"]
    real = node.periodic_sampler.sample
    changes = replace(real.changes, leaderless_s=60.0)
    with sampled(node, replace(real, changes=changes)):
        status, _, body = shown.ask("/readyz")
        assert (status, json.loads(body)["reasons"]) == (
            503, ["stream trains: no-quorum: no node leads"],
        )  # fmt: skip
        assert shown.ask("/readyz?stream=flights")[0] == 200
        assert shown.ask("/readyz?stream=trains")[0] == 503
        assert shown.ask("/healthz")[0] == 200
    old = replace(real, at_s=real.at_s - 60)
    with sampled(node, old):
        status, _, body = shown.ask("/healthz")
    [reason] = json.loads(body)["reasons"]
    assert (status, reason.startswith("stream trains: stuck: the loop")) == (503, True)


def test_a_refusal_before_the_stream_is_known_counts_once(shown):
    """It counted for each stream, so a process with 100 streams was refused 100 times."""
    before = shown.metric("rt_refused_total", reason="tls")
    with socket.create_connection(shown.process.host.address, timeout=20) as client:
        client.sendall(b"GET / HTTP/1.1\r\n\r\n")
        client.recv(100)

    def now():
        shown.look()
        return shown.metric("rt_refused_total", reason="tls")

    assert eventually(lambda: now() > before)
    assert now() == before + 1


def test_a_stream_that_fails_is_named_and_the_page_of_one_that_is_left_is_whole(tmp_path, caplog):
    """The others go on, so nothing but this says that it is gone."""
    made = ShownProcess(tmp_path)
    try:
        with caplog.at_level(logging.CRITICAL, "rt.node"):
            made.process.host.reload(made.process.settings("n1", ("trains",)))
            with open(f"{made.process.root}/n1/ships/out/manifest", "ab") as file:
                file.write(b'{"not": "ours"}\n' * 3)
            made.process.host.reload(made.process.settings("n1", NAMES[1:]))
        status, _, body = made.ask("/readyz")
        assert status == 503
        reasons = json.loads(body)["reasons"]
        assert any(each.startswith("stream ships: not served: ") for each in reasons), reasons
        assert made.metric("rt_stream_served", stream="ships") == 0
        whole = made.json("/overview")
        assert whole["verdict"]["level"] == "broken"
        assert "Stream ships: Not served" in whole["verdict"]["text"]
        assert [each["stream"] for each in whole["streams"]] == ["ships", "flights", "trains"]
        assert made.ask("/overview?stream=ships")[0] == 404
        made.process.host.reload(made.process.settings("n1", ()))
        assert made.json("/overview")["kind"] == "node"  # a single stream has the page to itself
        assert made.json("/overview")["stream"] == "flights"
        assert made.ask("/overview?stream=trains")[0] == 404
    finally:
        made.stop()


def views(shown, count, sessions=0):
    """Views of so many streams, each with sessions that wait."""
    sample = shown.nodes["flights"].periodic_sampler.sample
    sample = many(sample, sessions) if sessions else sample
    return [StreamView(f"s{number:03}", sample, list) for number in range(count)]


def test_streams_in_trouble_have_series_when_there_are_too_many(shown):
    """256 streams would be 15,000 series; those that need a look must not be left out."""
    many_streams = views(shown, 120)
    sample = many_streams[0].sample
    full = replace(sample, disk=replace(sample.disk, takes_data=False))
    many_streams[77] = StreamView("s077", full, list)
    late = many(sample, 1)
    many_streams[99] = StreamView("s099", late, list)
    assert [each.stream for each in worst_first(many_streams)][:3] == ["s077", "s099", "s000"]
    families = list(node_metrics(many_streams, shown.process.host.settings, {}))
    named = {
        sample.labels["stream"]
        for family in families if family.name == "rt_takes_data" for sample in family.samples
    }  # fmt: skip
    assert len(named) == STREAMS_WITH_SERIES_MAX
    assert {"s077", "s099"} <= named
    served = next(each for each in families if each.name == "rt_stream_served")
    assert len(served.samples) == 120
    [left] = next(each for each in families if each.name == "rt_streams_without_series").samples
    assert left.value == 120 - STREAMS_WITH_SERIES_MAX


def test_the_series_of_a_process_are_bounded_whatever_clients_do(shown):
    """Sessions have twenty series of their own in a process, not in each of its streams."""
    families = list(node_metrics(views(shown, 60, 100), shown.process.host.settings, {}))
    series = [each for family in families for each in family.samples]
    assert sum("session" in each.labels for each in series) == 2 * SERIES_MAX
    assert sum("client" in each.labels for each in series) == 2 * SERIES_MAX
    assert len(series) < 110 + 65 * STREAMS_WITH_SERIES_MAX + 4 * SERIES_MAX


def test_no_family_is_given_twice(shown):
    """Prometheus refuses the whole scrape then."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(SiteCollector(shown.site))
    lines = exposition.generate_latest(registry).decode().splitlines()
    named = [line for line in lines if line.startswith("# TYPE")]
    assert len(named) == len(set(named))
    series = [line.rpartition(" ")[0] for line in lines if not line.startswith("#")]
    assert len(series) == len(set(series))
