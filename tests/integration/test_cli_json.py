"""`--json`: every command whose outcome a script may read prints it as one JSON value."""

import json
from types import SimpleNamespace

import pytest

from replicator.pull.client import PullStatus
from replicator.push.progress import SessionStatus
from rt.cli.common import exits, link
from rt.cli.data import pull as cli_pull
from rt.cli.data import push as cli_push
from rt.client.readers.settings import ConnectionSettings
from rt.position import START
from tests.commands import publish, run
from tests.logs import MergedLog

POLICY = {"policy": {"time": 5}, "archived_to": "0.1.0", "is_default": True, "disks": [],
          "leases": []}  # fmt: skip


@pytest.fixture
def here(tmp_path, monkeypatch):
    """Work in a directory with a merged log and a session, and with a node that answers."""
    monkeypatch.chdir(tmp_path)
    with MergedLog("rt-data/stream/out") as log:
        log.merge("jfk", [b"AA1"])
        log.roll()
    publish("rt-data", [b"AA1"], "ewr")
    (tmp_path / "file").write_bytes(b"AA1\nAA2\n")
    answers = {"roll": {"rolled": "log.0.4"}, "policy": POLICY, "set-policy": POLICY,
               "lease": {"holder": "spark", "there_from": "0.0.0", "until_ns": 1},
               "release": {"released": "spark"}, "offloaded": {}}  # fmt: skip
    monkeypatch.setattr(ConnectionSettings, "ask", lambda _self, request: answers[request["do"]])
    return tmp_path


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["publish", "--session", "jfk", "file"], {"messages": 2, "level": "synced", "bytes": 8}),
        (["publish", "--session", "jfk", "/dev/null"], {"messages": 0, "merged_at": None}),
        (["archive", "roll"], {"rolled": "log.0.4"}),
        (["archive", "policy", "show"], POLICY),
        (["archive", "policy", "set", "--time", "5"], POLICY),
        (["archive", "lease"], {"holder": "spark", "until_ns": 1}),
        (["archive", "lease", "--release"], {"released": "spark"}),
        (["archive", "offload", "to", "--dir", "rt-data/stream/out"], {"copied": 1, "missing": []}),
        (["archive", "offload", "--stop"], {"offloaded": None}),
        (["index", "check", "rt-data/stream/out"],
         {"files": [{"file": "log.0.0", "index": "good"}]}),
        (["index", "rebuild", "rt-data/stream/out"], {"files": 1, "entries": 1}),
        (["cluster", "init", "new", "--nodes", "1"], {"stream": "stream", "certs": "new/certs"}),
        (["verify", "rt-data/stream/out"], {"comparisons": []}),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)  # fmt: skip
def test_the_outcome_is_one_json_object_on_stdout(here, arguments, expected):
    """A script that has to cut sentences breaks when one is reworded."""
    done = run(*arguments, "--json")
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert {name: found[name] for name in expected} == expected


def test_a_restore_prints_its_directory_as_json(here):
    """The next command of the script needs it."""
    assert run("archive", "offload", "to", "--dir", "rt-data/stream/out").exit_code == 0
    found = json.loads(run("restore", "to", "--root", "old", "--json").stdout)
    assert found == {"directory": "old/stream/out", "files": 1}


class Puller:
    """A client that has everything, or nothing."""

    running = True
    node = "n1:7420"
    is_served_nowhere = False

    def __init__(self, *_given, has_all=True, **_named):
        self.has_all = has_all

    def start(self):
        """Nothing is to be started."""

    def stop(self, *_given, **_named):
        """Return what an orderly stop returns."""
        return self.has_all

    def ask_end(self):
        """The copy is at the stream's end, or never gets there."""
        return SimpleNamespace(
            is_over=self.has_all, is_reached=self.has_all, why_not=lambda: "no node says it"
        )

    def status(self):
        """Return the puller's status."""
        error = "" if self.has_all else "no answer"
        return PullStatus(self.node, START, START, START, self.has_all, False, error)


class Pusher(Puller):
    """A client that ships everything, or nothing."""

    def drained(self, **_named):
        """Whether everything is merged."""
        return self.has_all

    def blocked(self):
        """Return no blocked session."""
        return []

    refused = blocked

    def is_shipped_elsewhere(self):
        """Return that no other program ships it."""
        return False

    def status(self):
        """Return the status of one session and one node."""
        error = "" if self.has_all else "no answer"
        return [SessionStatus("jfk", "n1:7420", self.has_all, START, START, 7, error)]


@pytest.mark.parametrize("has_all", [True, False])
@pytest.mark.usefixtures("certified")
def test_push_and_pull_print_whether_they_are_done_as_json(monkeypatch, has_all):
    """The exit code says that it failed, and the object why."""
    for module, name, client in (
        (cli_pull, "PullClient", Puller),
        (cli_push, "PushClient", Pusher),
    ):
        monkeypatch.setattr(
            module, name,
            lambda *given, client=client, **named: client(*given, **named, has_all=has_all),
        )  # fmt: skip
    pulled = run("pull", "--once", "--timeout", "0", "--json")
    pushed = run("push", "--identity", "publisher", "--drain", "--timeout", "0", "--json")
    assert [pulled.exit_code, pushed.exit_code] == [int(not has_all)] * 2
    error = "" if has_all else "no answer"
    assert json.loads(pulled.stdout) == {"position": "0.0.0", "complete": has_all, "error": error}
    reasons = [] if has_all else ["no answer"]
    assert json.loads(pushed.stdout) == {"level": "merged", "reached": has_all, "reasons": reasons}


@pytest.mark.usefixtures("certified")
def test_a_drain_that_takes_long_says_what_it_waits_for(monkeypatch):
    """It hung without a line, and its operator did not know whether anything happened."""
    monkeypatch.setattr(link, "REPORT_S", 0.0)
    monkeypatch.setattr(link, "FIRST_S", 0.0)
    monkeypatch.setattr(cli_push, "PushClient", lambda *_, **__: Pusher(has_all=False))
    said = run("push", "--identity", "publisher", "--drain", "--timeout", "0.2").stderr.splitlines()
    assert said[0] == "rt: still shipping: jfk: no answer"
    assert len(said) == 2  # once, and the outcome
    silent = Pusher()
    assert cli_push.waiting_for(silent.status()) == "still shipping: jfk: 7 bytes to send"
    sent = [SimpleNamespace(session="jfk", error="", lag_bytes=0)]
    assert "rt status shows what they wait for" in cli_push.waiting_for(sent)


@pytest.mark.usefixtures("certified")
def test_a_copy_that_takes_long_says_what_it_waits_for(monkeypatch):
    """A node that lacks something itself does not say that this is all, for as long as it takes."""
    monkeypatch.setattr(link, "REPORT_S", 0.0)
    monkeypatch.setattr(link, "FIRST_S", 0.0)
    for node, left in (
        ("n1", "no node says it; n1 is connected"),
        ("", "no node is connected: no answer"),
    ):
        puller = Puller(has_all=False)
        puller.node = node
        monkeypatch.setattr(cli_pull, "PullClient", lambda *_, puller=puller, **__: puller)
        said = run("pull", "--once", "--timeout", "0.2").stderr.splitlines()
        assert said[0] == f"rt: {left}"
        assert len(said) == 2  # once, and the outcome


@pytest.mark.parametrize(
    "answer",
    [{}, {"policy": 5}, {"policy": {}, "files": [{"x": 1}]}, {"policy": {}, "files": [5]},
     {**POLICY, "disks": [{"node": "n1"}]}, {**POLICY, "leases": 7},
     {"holder": 1, "there_from": 2, "until_ns": 10**400}],
    ids=str,
)  # fmt: skip
def test_an_unreadable_answer_is_reported_as_the_nodes_fault(monkeypatch, answer):
    """It was called an internal error, which sends the operator to the wrong place."""
    monkeypatch.setattr(ConnectionSettings, "ask", lambda *_: answer)
    commands = ["policy show", "policy set --time 5", "plan", "roll", "lease", "lease --release"]
    done = {each: run("archive", *each.split()) for each in commands}
    for command, result in done.items():
        assert result.exit_code in (0, exits.REFUSED), (command, result.output)
        if result.exit_code:
            assert "rt: a node's answer cannot be read" in result.stderr
    assert done["roll"].exit_code == exits.REFUSED


def test_an_export_prints_what_it_added_as_json(here):
    """The second run adds nothing, and says so."""
    pytest.importorskip("pyarrow")
    words = "export", "parquet", "rt-data/stream/out", "dataset", "--json"
    first, second = (json.loads(run(*words).stdout) for _ in range(2))
    assert (first["files"], first["messages"], first["gaps"]) == (1, 1, [])
    assert (second["files"], second["added_before"]) == (0, 1)
    assert run(*words, "--from", "x").exit_code == exits.BAD_USE


@pytest.mark.parametrize(
    "command",
    [
        "archive offload", "archive plan", "archive policy set", "archive policy show",
        "archive roll", "certs issue", "certs show", "cluster init", "export parquet",
        "index check", "index rebuild", "publish", "pull", "push", "restore", "status",
        "stream create", "stream drop", "stream list",
    ],
)  # fmt: skip
def test_every_command_with_an_outcome_prints_it_as_json(command):
    """Scripts should not have to read sentences."""
    assert "--json" in run(*command.split(), "--help").stdout
