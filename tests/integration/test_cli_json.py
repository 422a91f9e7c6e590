"""`--json`: every command whose outcome a script may read prints it as one JSON value."""

import json
from contextlib import closing
from types import SimpleNamespace

import pytest

from rt.cli.common import exits
from rt.cli.data.push import waiting_for
from rt.position import START, Position
from tests.archive_cluster import ArchiveCluster
from tests.commands import publish, run
from tests.fake_node import FakeNode, closed_place, nodes_certificates
from tests.logs import MergedLog
from tests.replicator_host import eventually

POLICY = {"policy": {"time": 5}, "archived_to": "0.1.0", "is_default": True, "disks": [],
          "leases": []}  # fmt: skip


@pytest.fixture(scope="module")
def node(client_certificates, tmp_path_factory):
    """A node that gives the answers of a test."""
    certs = nodes_certificates(tmp_path_factory.mktemp("node"), client_certificates)
    with closing(FakeNode(certs)) as made:
        yield made


@pytest.fixture
def here(tmp_path, monkeypatch, node, certified):
    """Work in a directory with a merged log and a session, and with a node that answers."""
    monkeypatch.chdir(tmp_path)
    with MergedLog("rt-data/stream/out") as log:
        log.merge("jfk", [b"AA1"])
        log.roll()
    publish("rt-data", [b"AA1"], "ewr")
    (tmp_path / "file").write_bytes(b"AA1\nAA2\n")
    monkeypatch.setenv("RT_NODES", node.place)
    node.answers = {
        "roll": {"rolled": "log.0.4"}, "policy": POLICY, "set-policy": POLICY,
        "lease": {"holder": "spark", "there_from": "0.0.0", "until_ns": 1},
        "release": {"released": "spark"}, "offloaded": {},
    }  # fmt: skip
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


def shipped(command, *arguments):
    """Run a push that ends by itself, or a pull, and return its result."""
    ends = {"push": ["--drain", "--identity", "publisher"], "pull": ["--once"]}
    return run(command, *ends[command], *arguments)


def reports(done):
    """Return the lines that a command itself has written to stderr."""
    return [line for line in done.stderr.splitlines() if line.startswith("rt: ")]


def saying_first(words, command, *arguments):
    """Run a command until its first report, of what it knows after a second, is this."""
    tried = []

    def does():
        tried.append(shipped(command, *arguments))
        return reports(tried[-1])[0] == words

    assert eventually(does), tried[-1].stderr
    return tried[-1]


def test_push_and_pull_print_that_they_are_done_as_json(tmp_path):
    """A script goes on only then."""
    with ArchiveCluster(tmp_path, 1) as cluster:
        publisher = cluster.publisher()
        publisher.publish(b"a")
        publisher.flush("synced")
        link = ("--config", tmp_path / "clients.toml", "--json")
        pushed = shipped("push", *link, "--root", f"{cluster.clients}/pub")
        pulled = shipped("pull", *link, "--root", tmp_path / "copy")
    assert [pushed.exit_code, pulled.exit_code] == [0, 0], pushed.output + pulled.output
    assert json.loads(pushed.stdout) == {"level": "merged", "reached": True, "reasons": []}
    found = json.loads(pulled.stdout)
    assert (found["complete"], found["error"]) == (True, "")
    assert Position.parse(found["position"]) > START


@pytest.mark.usefixtures("certified")
def test_push_and_pull_that_are_not_done_say_what_they_wait_for_and_why(tmp_path, monkeypatch):
    """They hung without a line; the exit code says that it failed, and the object why."""
    monkeypatch.chdir(tmp_path)
    publish("rt-data", [b"a"])
    place = closed_place()
    link = ("--nodes", place, "--timeout", "1.5", "--json")
    error = f"no answer from {place} (connection refused)"
    for command, waits, fields in (
        ("push", f"still shipping: jfk: {error}",
         {"level": "merged", "reached": False, "reasons": [error]}),
        ("pull", f"no node is connected: {error}",
         {"position": "0.0.0", "complete": False, "error": error}),
    ):  # fmt: skip
        done = saying_first(f"rt: {waits}", command, *link)
        assert done.exit_code == 1
        assert len(reports(done)) == 2  # once, and the outcome
        assert json.loads(done.stdout) == fields


def test_a_drain_says_how_much_is_left_or_that_the_nodes_have_it():
    """Without an error there is still something that is waited for."""
    left = SimpleNamespace(session="jfk", error="", lag_bytes=7)
    assert waiting_for([left]) == "still shipping: jfk: 7 B to send"
    sent = SimpleNamespace(session="jfk", error="", lag_bytes=0)
    assert "rt status shows what they wait for" in waiting_for([sent])


@pytest.mark.parametrize(
    "answer",
    [{}, {"policy": 5}, {"policy": {}, "files": [{"x": 1}]}, {"policy": {}, "files": [5]},
     {**POLICY, "disks": [{"node": "n1"}]}, {**POLICY, "leases": 7},
     {"holder": 1, "there_from": 2, "until_ns": 10**400}],
    ids=str,
)  # fmt: skip
def test_an_unreadable_answer_is_reported_as_the_nodes_fault(here, node, answer):
    """It was called an internal error, which sends the operator to the wrong place."""
    node.answers = dict.fromkeys(node.answers | {"plan": {}}, answer)
    commands = ["policy show", "policy set --time 5", "plan", "roll", "lease", "lease --release"]
    done = {each: run("archive", *each.split()) for each in commands}
    for command, result in done.items():
        assert result.exit_code in (0, exits.REFUSED), (command, result.output)
        if result.exit_code:
            assert "rt: a node's answer cannot be read" in result.stderr
    assert done["roll"].exit_code == exits.REFUSED


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("publish --session jfk file", "published 2 messages (8 B) in "),
        ("publish --session jfk /dev/null", "nothing was published to stream/jfk"),
        ("log-history rt-data/stream/out", "\n1 file, 1 message\n"),
        ("index rebuild rt-data/stream/out", "the index of 1 file rebuilt, 1 entries"),
        ("session list", "the nodes have no sessions"),
        ("session reset jfk", "no node has a copy to recognize the old log by"),
        ("session forget jfk", "no node has a copy to recognize the old log by"),
        ("cursor list", "no cursors in rt-data/stream"),
        ("cursor registered list", "keep no cursors"),
    ],
)  # fmt: skip
def test_all_of_an_answer_is_on_stdout(here, node, words, said):
    """A pipe or a file got the first line of an answer, and the terminal the rest."""
    changed = {"session": "jfk", "change": "reset", "before": "0.0.0", "after": "0.0.0"}
    node.answers |= {
        "sessions": {"sessions": []}, "cursors": {"cursors": []},
        "reset-session": changed | {"retired": 0}, "forget-session": changed | {"retired": 0},
    }  # fmt: skip
    done = run(*words.split())
    assert done.exit_code == 0, done.output
    assert said in done.stdout
    assert done.stderr == ""


def test_a_lease_is_for_a_time_and_its_earlier_option_still_works(here, node):
    """Scripts of the first version say `--seconds 7200`, which the help does not list any more."""
    for words in (["--for", "2h"], ["--seconds", "7200"]):
        assert run("archive", "lease", *words).exit_code == 0
        assert node.requests[-1]["seconds"] == 7200
    assert "--seconds" not in run("archive", "lease", "--help").stdout


def test_a_policy_has_the_minutes_of_a_time(here, node):
    """A part of a minute is a whole one: zero would turn the rule off."""
    for text, minutes in (("7d", 10080), ("5", 5), ("1s", 1), ("0", 0)):
        assert run("archive", "policy", "set", "--time", text).exit_code == 0
        assert node.requests[-1]["policy"]["time"] == minutes


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
