"""Alert rules and dashboard against the metrics that exist, so that a rename mutes nothing."""

import json
import re
import shutil
import subprocess
import time
from types import SimpleNamespace

import pytest
import yaml

from replicator.serve.client_record import REASONS
from rt.bridge.bridge_site import BridgeSite
from rt.bridge.bridge_watch import BridgeWatch
from rt.client.push_watch import PushWatch
from rt.client.standby import StateCarrier
from rt.net.authority.certificates import certificate_files
from rt.tables.export import ExportSettings, parquet_opener
from rt.tables.follow import TableFollower
from rt.web.nodes.metrics import StreamView, node_metrics
from rt.web.programs.program import ShownProgram
from rt.web.programs.pull_site import PullSite
from rt.web.programs.pull_watch import PullWatch
from rt.web.programs.push_site import PushSite
from rt.web.programs.table_site import TableSite
from rt.web.serving.recent import RecentEvents
from tests.archive_cluster import STREAM, ArchiveCluster
from tests.layout import ROOT

RULES = ROOT / "deploy/prometheus/rt-rules.yml"
RULES_TEST = ROOT / "deploy/prometheus/rt-rules-test.yml"
DASHBOARD = ROOT / "deploy/grafana/rt-dashboard.json"
NAME = re.compile(r"\b(?:rt|process)_[a-z_]+\b|\bup\b")
MATCHER = re.compile(r"([a-z_]+)\s*\{([^}]*)\}")
PROMTOOL = shutil.which("promtool")
# of prometheus-client's own collector, and of Prometheus itself
OTHERS = {"process_cpu_seconds_total", "process_resident_memory_bytes", "up"}


@pytest.fixture(scope="module")
def exposed(tmp_path_factory):
    """The name and labels of every series of a node, a pusher, a puller or a follower."""
    cluster = ArchiveCluster(tmp_path_factory.mktemp("alerts"), 1)
    try:
        pull, node = cluster.pull(), cluster.nodes["n1"]
        publisher, push = cluster.publisher(), cluster.push()
        publisher.publish(b"x")
        publisher.flush("merged", 60)
        assert pull.wait_caught_up(60), "some series are of pullers that are connected"
        node.periodic_sampler.take_sample()
        files = certificate_files(f"{cluster.root}/certs", "publisher")
        program = ShownProgram("push", STREAM, files, RecentEvents(), time.time_ns())
        watch = PushWatch(push, 1.0)
        watch.check()
        pushing = PushSite(push, program, watch)
        rows = cluster.rows("n1")
        out, settings = f"{cluster.root}/table", ExportSettings(include_active=True)
        opener = parquet_opener(out, settings)
        following = TableFollower(cluster.out("n1"), opener, settings, 1.0)
        following.turn()
        following.close()
        carrier = StateCarrier(cluster.root, STREAM, cluster.ask, lambda: pull.status().position)
        bridge = SimpleNamespace(next_number=0, forwarded=0, passed_over=0)
        watch_of_bridge = BridgeWatch(bridge, cluster.ask)
        view = StreamView(STREAM, node.periodic_sampler.sample, lambda: rows)
        families = [
            *node_metrics([view], node.settings, {"own": 1.0, "ca": 2.0}),
            *pushing.metrics(),
            *PullSite(
                pull, cluster.out("sub"), program, PullWatch(pull, 1.0), carrier=carrier
            ).metrics(),
            *BridgeSite(watch_of_bridge, (STREAM, STREAM), [files], RecentEvents()).metrics(),
            *TableSite(following, "table", RecentEvents()).metrics(),
        ]  # fmt: skip
    finally:
        cluster.close()
    found = {}
    for family in families:
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    return found


def rules():
    """Every rule."""
    return [
        each for group in yaml.safe_load(RULES.read_text())["groups"] for each in group["rules"]
    ]


def expressions():
    """Every expression of the rules and the dashboard."""
    panels = json.loads(DASHBOARD.read_text())["panels"]
    shown = [target["expr"] for panel in panels for target in panel.get("targets", [])]
    return [*(rule["expr"] for rule in rules()), *shown]


@pytest.mark.parametrize("expression", expressions())
def test_every_metric_that_is_asked_for_exists_with_the_labels_that_are_named(expression, exposed):
    """Renames have emptied dashboards and muted alerts elsewhere, and nothing said so."""
    names = set(NAME.findall(expression)) - OTHERS
    assert names <= set(exposed), names - set(exposed)
    for name, matchers in MATCHER.findall(expression):
        labels = set(re.findall(r"([a-z]+)\s*[=!]", matchers)) - {"job"}
        assert name in OTHERS or labels <= exposed[name], (name, labels)


def test_reasons_that_alerts_name_are_reasons_that_are_counted():
    """A misspelt reason never fires."""
    named = {
        reason
        for rule in rules()
        for pattern in re.findall(r'reason=~"([^"]+)"', rule["expr"])
        for reason in pattern.split("|")
    }
    assert named <= set(REASONS)


def test_every_alert_says_what_it_means_and_where_to_read_what_to_do():
    """It is read by someone who was asleep a minute ago."""
    headings = re.findall(r"^#+ (.+)$", (ROOT / "docs/OPERATIONS.md").read_text(), re.MULTILINE)
    anchors = {re.sub(r"[^a-z0-9 -]", "", each.lower()).replace(" ", "-") for each in headings}
    for rule in rules():
        assert rule["labels"]["severity"] in {"warning", "page"}, rule["alert"]
        assert {"summary", "description", "runbook_url"} == set(rule["annotations"])
        path, _, anchor = rule["annotations"]["runbook_url"].partition("#")
        assert (path, anchor) == ("docs/OPERATIONS.md", rule["alert"].lower())
        assert anchor in anchors, anchor


def test_every_metric_is_in_the_table_of_the_document(exposed):
    """Users can rely only on documented metrics."""
    text = (ROOT / "docs/OPERATIONS.md").read_text()
    stems = {re.sub(r"_(bucket|count|sum)$", "", name) for name in exposed}
    assert not {each for each in stems if f"`{each}`" not in text}


@pytest.mark.skipif(PROMTOOL is None, reason="promtool is not installed (apt install prometheus)")
def test_the_rules_fire_when_they_should_and_only_then():
    """An alert elsewhere used `rate` for `increase`, and had never fired."""
    for command in (["check", "rules", RULES], ["test", "rules", RULES_TEST]):
        done = subprocess.run([PROMTOOL, *command], capture_output=True, check=False)
        assert done.returncode == 0, done.stdout.decode() + done.stderr.decode()


def test_every_rule_is_fired_by_the_rules_test():
    """A rule that never fired may never fire; a test of a rule that is gone passes for ever."""
    text = RULES_TEST.read_text()
    fired = set(re.findall(r"alertname: (\w+)\n *exp_alerts:\n", text))
    fired |= set(re.findall(r'\{labels: .\{alertname="(\w+)"', text))
    assert fired == {rule["alert"] for rule in rules()}
