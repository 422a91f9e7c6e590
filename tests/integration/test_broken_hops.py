"""Each hop broken in turn: status, page and alerts name the one that is broken, and no other."""

import math
import re
import shutil
import subprocess
import time
from contextlib import contextmanager
from dataclasses import replace

import pytest
import yaml

from replicator.pull.client import PullClient
from rt.client.push_watch import PushWatch
from rt.net.authority.certificates import certificate_files
from rt.node.agree.fork_watch import FoundFork
from rt.node.settings.http import HttpSettings
from rt.position import Position
from rt.web.programs.program import ShownProgram
from rt.web.programs.pull_site import PullSite
from rt.web.programs.pull_watch import PullWatch
from rt.web.programs.push_site import PushSite
from rt.web.serving.recent import RecentEvents
from rt.web.serving.server import WebServer
from tests.archive_cluster import STREAM
from tests.commands import run
from tests.layout import ROOT
from tests.replicator_host import eventually
from tests.web_site import Port, sampled, shown

PROMTOOL = shutil.which("promtool")
pytestmark = pytest.mark.skipif(
    PROMTOOL is None, reason="promtool is not installed (apt install prometheus)"
)
RULES = ROOT / "deploy/prometheus/rt-rules.yml"


@pytest.fixture
def stream(tmp_path):
    """Three nodes, of which the first has an HTTP port, and that call a hop stalled at once."""
    with shown(tmp_path, 3) as made:
        for node in made.cluster.nodes.values():
            node.periodic_sampler.sampler.stalls.stalled_s = 0.0
        assert eventually(lambda: is_whole(made.node))
        yield made


def is_whole(node):
    """Whether a node knows a leader and reaches all others, by a new sample."""
    node.periodic_sampler.take_sample()
    sample = node.periodic_sampler.sample
    return sample.view.engine.leader and not sample.unreachable


@contextmanager
def port(site):
    """Show a site over HTTP for the length of a block."""
    web = WebServer(HttpSettings("127.0.0.1:0"), site)
    web.start()
    try:
        yield Port(web.url)
    finally:
        web.stop()


def program(cluster, kind, who):
    """Return what a pusher's or puller's page shows about its program."""
    files = certificate_files(f"{cluster.root}/certs", who)
    return ShownProgram(kind, STREAM, files, RecentEvents(), time.time_ns())


def pushing(cluster, push):
    """Return the site of a pusher, which calls a hop stalled at once, and its watch."""
    watch = PushWatch(push, 1.0, stalled_s=0.0)
    return PushSite(push, program(cluster, "push", "publisher"), watch), watch


def pulling(cluster, pull):
    """Return the site of a puller, and its watch, as `pushing`."""
    watch = PullWatch(pull, 1.0, stalled_s=0.0)
    who = program(cluster, "pull", "subscriber")
    return PullSite(pull, cluster.out("sub"), who, watch), watch


def alerts(tmp_path, samples, down=()):
    """Return the alerts that fire when these samples stay for ten minutes, each with its hop.

    Args:
        tmp_path: for a file.
        samples: by instance.
        down: instances that do not answer.
    """
    lines = [(f'up{{job="rt",instance="{each}"}}', float(each in samples))
             for each in (*samples, *down)]  # fmt: skip
    for instance, found in samples.items():
        for (name, *labels), value in found.items():
            pairs = [*labels, ("instance", instance), ("job", "rt")]
            text = ",".join(f'{label}="{each}"' for label, each in pairs)
            if name.startswith("rt_") and not math.isnan(value):
                lines.append((f"{name}{{{text}}}", value))
    firing = 'group by (alertname, hop) (ALERTS{alertstate="firing"})'
    test = {
        "rule_files": [str(RULES)],
        "evaluation_interval": "15s",
        "tests": [{
            "interval": "15s",
            "input_series": [{"series": each, "values": f"{value:g}x60"} for each, value in lines],
            "promql_expr_test": [{"expr": firing, "eval_time": "11m", "exp_samples": [
                {"labels": '{alertname="none"}', "value": 0}
            ]}],
        }],
    }  # fmt: skip
    path = tmp_path / "test.yml"
    path.write_text(yaml.safe_dump(test))
    done = subprocess.run(
        [PROMTOOL, "test", "rules", path], capture_output=True, text=True, check=False
    )
    said = done.stdout + done.stderr
    assert "exp:" in said, said
    return fired(said.partition("got:")[2])


def fired(text):
    """Return what promtool found instead of what was expected."""
    names = set()
    for labels in re.findall(r"\{([^}]*alertname[^}]*)\}", text):
        pairs = dict(re.findall(r'(\w+)="([^"]*)"', labels))
        names.add(" ".join(filter(None, (pairs["alertname"], pairs.get("hop", "")))))
    return names


def status(cluster):
    """Return exit code and text of `rt status`."""
    done = run("status", "--config", f"{cluster.root}/clients.toml")
    return done.exit_code, done.stdout


def test_a_stream_that_is_well_has_no_alert(stream, tmp_path):
    """An alert that always fires hides the one that matters."""
    push, pull = stream.cluster.push(), stream.cluster.pull()
    (site, watch), (copy, looks) = pushing(stream.cluster, push), pulling(stream.cluster, pull)
    stream.publish(100)
    assert pull.wait_caught_up(60)
    with port(site) as pusher, port(copy) as puller:
        assert eventually(
            lambda: watch.check() or looks.check() or not (watch.stalled or looks.stalled)
        )
        periodic_sampler = stream.node.periodic_sampler
        assert eventually(
            lambda: periodic_sampler.take_sample() or not periodic_sampler.sample.stalled
        )
        samples = {"n1": stream.samples(), "p": pusher.samples(), "s": puller.samples()}
        samples["n2"] = samples["n3"] = samples["n1"]
        assert alerts(tmp_path, samples) == set()
        assert stream.json("/overview")["verdict"]["level"] == "ok"
    assert status(stream.cluster)[0] == 0


def test_a_pusher_that_reaches_no_node_is_named(stream, tmp_path):
    """The nodes are well and know nothing of what waits; only the pusher does."""
    cluster = stream.cluster
    publisher, push = cluster.publisher(), cluster.push(nodes=[("localhost", 1)])
    publisher.publish(b"x")
    publisher.flush("synced")
    site, watch = pushing(cluster, push)
    assert eventually(lambda: watch.check() or (watch.stalled and "refused" in watch.words("jfk")))
    with port(site) as pusher:
        samples = {"n1": stream.samples(), "p": pusher.samples()}
        assert alerts(tmp_path, samples | {"n2": samples["n1"], "n3": samples["n1"]}) == {
            "RtStalled push"
        }
        verdict = pusher.json("/overview")["verdict"]
    assert verdict["level"] == "broken"
    assert verdict["text"].startswith("Stalled: published messages are not accepted (session jfk)")
    code, text = status(cluster)
    assert (code, "publisher" in text) == (0, False)  # no pusher is connected
    root = f"{cluster.root}/pub"
    trace = run("trace", "jfk:0", "--config", f"{cluster.root}/clients.toml", "--root", root)
    assert "it waits at push: no node holds it" in trace.stdout


def test_a_node_that_is_down_is_named_and_so_is_a_lost_majority(stream, tmp_path):
    """One is a warning; two stop the merge, and the merge is what is named."""
    cluster = stream.cluster
    cluster.push()
    stream.publish(10)
    cluster.stop("n3")
    periodic_sampler = stream.node.periodic_sampler
    assert eventually(  # another node leads a moment later, if n3 did
        lambda: (
            periodic_sampler.take_sample()
            or (
                "n3" in periodic_sampler.sample.unreachable
                and periodic_sampler.sample.view.engine.leader in {"n1", "n2"}
            )
        )
    )
    samples = {"n1": stream.samples(), "n2": stream.samples()}
    assert alerts(tmp_path, samples, ["n3"]) == {"RtNodeDown", "RtNoSpareNode"}
    verdict = stream.json("/overview")["verdict"]
    assert (verdict["level"], "goes on without n3" in verdict["text"]) == ("degraded", True)
    code, text = status(cluster)
    assert (code, "degraded: n3 at localhost" in text) == (1, True)

    cluster.stop("n2")
    publisher = cluster.publisher("lga")
    publisher.publish(b"x" * 100)
    publisher.flush("received", 60)

    def is_seen():
        stream.node.periodic_sampler.take_sample()
        sample = stream.node.periodic_sampler.sample
        return not sample.view.engine.leader and "merge lga" in sample.stalled

    assert eventually(is_seen)
    found = alerts(tmp_path, {"n1": stream.samples()}, ["n2", "n3"])
    assert found == {"RtNodeDown", "RtNoSpareNode", "RtQuorumLost", "RtStalled merge"}
    verdict = stream.json("/overview")["verdict"]
    assert (verdict["level"], "no node leads" in verdict["text"]) == ("broken", True)
    code, text = status(cluster)
    assert (code, "quorum NO" in text, "session lga" in text) == (3, True, True)


def test_a_puller_that_reaches_no_node_is_named(stream, tmp_path):
    """The stream is well; its copy is not."""
    cluster = stream.cluster
    pull = PullClient(f"{cluster.root}/sub", STREAM, [("localhost", 1)],
                      cluster.contexts("subscriber"))  # fmt: skip
    pull.start()
    cluster.undo.callback(pull.stop)
    site, watch = pulling(cluster, pull)
    assert eventually(lambda: watch.check() or (watch.stalled and "refused" in watch.words()))
    with port(site) as puller:
        samples = {"n1": stream.samples(), "s": puller.samples()}
        found = alerts(tmp_path, samples | {"n2": samples["n1"], "n3": samples["n1"]})
        assert found == {"RtPullDisconnected", "RtStalled pull"}
        verdict = puller.json("/overview")["verdict"]
    assert (verdict["level"], "Nothing is copied" in verdict["text"]) == ("broken", True)
    code, text = status(cluster)
    assert (code, "subscriber" in text.partition("session")[0]) == (0, False)


def test_a_disk_that_is_full_and_a_fork_are_named(stream, tmp_path):
    """Two troubles of a node that runs and answers."""
    real = stream.node.periodic_sampler.sample
    full = replace(real, disk=replace(real.disk, takes_data=False))
    with sampled(stream.node, full):
        found = alerts(tmp_path, {"n1": stream.samples()})
        assert "RtRefusesData" in found
        assert "nearly full" in stream.json("/overview")["verdict"]["text"]
    fork = FoundFork(0.0, Position(8), "another entry")
    waiting = replace(real.view.waiting, fork=fork)
    forked = replace(real, view=real.view._replace(waiting=waiting))
    with sampled(stream.node, forked):
        assert "RtForked" in alerts(tmp_path, {"n1": stream.samples()})
        assert "n1 is FORKED" in stream.json("/overview")["verdict"]["text"]
