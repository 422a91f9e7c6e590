"""Container, compose file and manifests against the commands and paths that exist."""

import json
import re
import tomllib

import click
import pytest
import yaml

from rt.cli.cluster.node import node as node_command
from rt.cli.common.environment import KNOWN
from rt.cli.program import rt
from tests.commands import run
from tests.layout import ROOT

CONTAINER = (ROOT / "deploy/container/Containerfile").read_text()
COMPOSE = yaml.safe_load((ROOT / "deploy/container/compose.yaml").read_text())
FOUND = list(yaml.safe_load_all((ROOT / "deploy/kubernetes/found.yaml").read_text()))
RUNS = list(yaml.safe_load_all((ROOT / "deploy/kubernetes/rt.yaml").read_text()))


def one(kind):
    """Return the only object of a kind that runs."""
    [found] = [each for each in RUNS if each["kind"] == kind]
    return found


def pod(workload):
    """Return the pod and its only container."""
    spec = workload["spec"]["template"]["spec"]
    [container] = spec["containers"]
    return spec, container


def parsed(arguments):
    """Parse what follows `rt` as the command does; return the command and its options."""
    name, *rest = arguments
    assert name == "node"
    command = node_command
    if rest[0] == "found":
        command, rest = node_command.commands["found"], rest[1:]
    context = click.Context(command, info_name=name, **rt.context_settings)
    options, extra, _ = command.make_parser(context).parse_args(args=list(rest))
    assert extra == []
    return command, options


def settings(container):
    """Check a container's variables; return them."""
    found = {each["name"]: each.get("value") for each in container.get("env", [])}
    assert {name for name in found if name.startswith("RT_")} <= KNOWN
    return found


def test_the_pods_run_a_command_that_exists_with_ports_that_match():
    """A flag that was renamed would be found at the first crash loop."""
    spec, container = pod(one("StatefulSet"))
    _, options = parsed(container["args"])
    ports = {each["name"]: each["containerPort"] for each in container["ports"]}
    assert options["http"] == f"0.0.0.0:{ports['http']}"
    assert settings(container)["RT_LISTEN"] == f"0.0.0.0:{ports['rt']}"
    served = {each["name"]: each["port"] for each in one("Service")["spec"]["ports"]}
    assert served == ports
    assert "found" not in options
    assert spec["terminationGracePeriodSeconds"] >= 60
    mounts = {each["mountPath"]: each for each in container["volumeMounts"]}
    for option in ("config", "http_cert", "http_key"):
        folder = options[option].rpartition("/")[0]
        assert mounts[folder]["readOnly"]
        assert "subPath" not in mounts[folder]  # it would never be replaced


def test_probes_ask_paths_that_are_served_and_only_readiness_asks_for_a_quorum():
    """A liveness probe that needs a leader restarts what waits for one."""
    _, container = pod(one("StatefulSet"))
    routes = (ROOT / "rt/web/serving/app.py").read_text()
    for probe, path in (
        ("startup", "/healthz"),
        ("liveness", "/healthz"),
        ("readiness", "/readyz"),
    ):
        asked = container[f"{probe}Probe"]["httpGet"]
        assert (asked["path"], asked["port"], asked["scheme"]) == (path, "http", "HTTPS")
        assert f'"{path}": ' in routes
    liveness = container["livenessProbe"]
    assert liveness["periodSeconds"] * liveness["failureThreshold"] > 30  # `stuck` comes first


def test_a_cluster_of_pods_starts_keeps_its_data_and_is_not_scaled_by_accident():
    """What each of these is for is in the comments of the manifest."""
    spec = one("StatefulSet")["spec"]
    assert (spec["podManagementPolicy"], spec["updateStrategy"]["type"]) == ("Parallel", "OnDelete")
    assert spec["persistentVolumeClaimRetentionPolicy"] == {
        "whenDeleted": "Retain", "whenScaled": "Retain",
    }  # fmt: skip
    assert one("Service")["spec"]["publishNotReadyAddresses"]
    assert one("PodDisruptionBudget")["spec"]["minAvailable"] == spec["replicas"] // 2 + 1
    labels = spec["template"]["metadata"]["labels"]
    assert spec["selector"]["matchLabels"] == labels == one("Service")["spec"]["selector"]


def test_jobs_found_the_volumes_that_the_pods_look_for_once():
    """A job that is tried again, or a pod that founds, could found a node that lost its disk."""
    stateful = one("StatefulSet")
    [claim] = stateful["spec"]["volumeClaimTemplates"]
    wanted = {f"{claim['metadata']['name']}-rt-{each}" for each in range(3)}
    assert {e["metadata"]["name"] for e in FOUND if e["kind"] == "PersistentVolumeClaim"} == wanted
    jobs = [each for each in FOUND if each["kind"] == "Job"]
    running = {each["mountPath"]: each["name"] for each in pod(stateful)[1]["volumeMounts"]}
    for number, job in enumerate(jobs):
        spec, container = pod(job)
        command, options = parsed(container["args"])
        assert command.name == "found"
        assert options["config"] == f"/etc/rt/config/rt-{number}.toml"
        [volume] = [each for each in spec["volumes"] if each["name"] == "data"]
        assert volume["persistentVolumeClaim"]["claimName"] == f"data-rt-{number}"
        assert (spec["restartPolicy"], job["spec"]["backoffLimit"]) == ("Never", 0)
        assert {
            e["mountPath"]: e["name"] for e in container["volumeMounts"]
        }.items() <= running.items()
    assert len(jobs) == 3


@pytest.mark.parametrize(
    "workload", [one("StatefulSet"), *(e for e in FOUND if e["kind"] == "Job")]
)
def test_no_pod_is_root_or_may_become_it(workload):
    """Its image names the same user."""
    spec, container = pod(workload)
    user = re.search(r"USER (\d+):(\d+)", CONTAINER)
    assert spec["securityContext"]["runAsUser"] == int(user[1])
    assert spec["securityContext"]["runAsNonRoot"]
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }  # fmt: skip


def test_the_compose_file_runs_three_nodes_that_do_not_wait_for_each_other():
    """Each waits for a majority of the others by itself."""
    services = COMPOSE["services"]
    assert set(services) == set(COMPOSE["volumes"]) == {"n1", "n2", "n3"}
    for name, each in services.items():
        _, options = parsed(each["command"])
        assert (options["config"], options["http"]) == ("/etc/rt/node.toml", "127.0.0.1:9420")
        assert each["environment"] == {"RT_LISTEN": "0.0.0.0:7420"}
        assert "depends_on" not in each
        assert each["volumes"] == [f"{name}:/var/lib/rt"]
        assert each["configs"] == [{"source": name, "target": "/etc/rt/node.toml"}]
        assert each["secrets"] == ["ca.pem", "grants.toml", f"{name}.pem", f"{name}.key"]
        assert set(each["secrets"]) <= set(COMPOSE["secrets"])
        assert f"http://{options['http']}/healthz" in each["healthcheck"]["test"][-1]
        assert each["stop_grace_period"] == "60s"
    assert "ca.key" not in json.dumps(COMPOSE)


def test_the_image_runs_the_command_itself():
    """A shell in front would swallow the signal, and the node would be killed after ten seconds."""
    assert 'ENTRYPOINT ["/opt/rt/bin/rt"]' in CONTAINER
    ports = re.search(r"EXPOSE (\d+) (\d+)", CONTAINER).groups()
    assert list(map(int, ports)) == [e["port"] for e in one("Service")["spec"]["ports"]]
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    assert re.search(r"\[(\w+)\]", CONTAINER)[1] in extras


def commands_of(path):
    """Return the `rt cluster init` command in a file's comments."""
    text = (ROOT / path).read_text()
    text = re.sub(r"\\\n# +", "", text)
    [line] = re.findall(r"# +rt (cluster init .*)", text)
    return line.split()


@pytest.mark.parametrize("path", ["deploy/container/compose.yaml", "deploy/kubernetes/rt.yaml"])
def test_the_command_in_the_comments_makes_the_files_that_are_mounted(path, tmp_path, monkeypatch):
    """A newcomer copies it first."""
    monkeypatch.chdir(tmp_path)
    done = run(*commands_of(path))
    assert done.exit_code == 0, done.output
    made = {each.name for each in (tmp_path / "cluster").rglob("*")}
    if path.endswith("compose.yaml"):
        files = [each["file"] for each in (COMPOSE["configs"] | COMPOSE["secrets"]).values()]
        assert {each.rpartition("/")[2] for each in files} <= made
        place = "/run/secrets"
    else:
        text = (ROOT / path).read_text()
        assert set(re.findall(r"--from-file=(?:cluster/)?(\S+)", text)) <= made
        place = "/etc/rt/certs"
    configs = [each for each in made if re.fullmatch(r"(n|rt-)\d\.toml", each)]
    for each in configs:
        node = tomllib.loads((tmp_path / "cluster" / each).read_text())["node"]
        assert (node["root"], node["certs"], node["name"]) == (
            "/var/lib/rt", place, each.removesuffix(".toml"),
        )  # fmt: skip
    assert len(configs) == 3
