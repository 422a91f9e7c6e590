"""What a shell offers at a tabulator: names that there are, not only options."""

import os

import pytest
from click.shell_completion import ShellComplete

from rt.cli.program import COMPLETE_VARIABLE, PROGRAM, rt
from rt.client.readers.cursor import LocalCursor
from rt.position import START
from rt.publisher import Publisher
from tests.archive_cluster import STREAM, ArchiveCluster
from tests.replicator_host import eventually


def offered(*words):
    """What is offered for the last word."""
    completion = ShellComplete(rt, {}, PROGRAM, COMPLETE_VARIABLE)
    return [each.value for each in completion.get_completions(list(words[:-1]), words[-1])]


@pytest.fixture
def root(tmp_path, monkeypatch):
    """A directory with two streams; the first has two sessions and a cursor."""
    monkeypatch.chdir(tmp_path)
    for stream, session in (("flights", "jfk"), ("flights", "lga"), ("trains", "x")):
        Publisher(tmp_path / "data", stream=stream, session=session).close()
    cursor = LocalCursor(str(tmp_path / "data"), "flights", "etl")
    cursor.move_to(START)
    cursor.close()
    return str(tmp_path / "data")


def test_streams_sessions_and_cursors_of_this_machine_are_offered(root, monkeypatch):
    """As the command would find them: from what is typed, the environment, or a file."""
    assert offered("publish", "--root", root, "--stream", "") == ["flights", "trains"]
    assert offered("publish", "--root", root, "--stream", "flights", "--session", "j") == ["jfk"]
    monkeypatch.setenv("RT_ROOT", root)
    assert offered("subscribe", "--stream", "flights", "--own-session", "") == ["jfk", "lga"]
    with open("file.toml", "w") as file:
        file.write('[subscribe]\nstream = "flights"\n')
    assert offered("cursor", "show", "--config", "file.toml", "") == ["etl"]
    assert offered("publish", "--root", os.devnull, "--stream", "") == [], "no traceback in a shell"


def test_sessions_and_groups_to_read_or_publish_are_offered(root, tmp_path):
    """Also where the option is a glob, or where a bridge keeps them below its own directory."""
    Publisher(root, stream="flights", session="twin-1", group="twin").close()
    there = ["--root", root, "--stream", "flights"]
    assert offered("subscribe", *there, "--session", "") == ["jfk", "lga", "twin-1"]
    assert offered("query", "select 1", *there, "--session", "tw") == ["twin-1"]
    assert offered("publish", *there, "--group", "") == ["twin"]
    for name, group in (("from-ams", "ams"), ("gates", "")):
        Publisher(tmp_path / "bridge" / "to", stream="fra", session=name, group=group).close()
    bridge = ["bridge", "--root", str(tmp_path / "bridge")]
    assert offered(*bridge, "--session", "") == ["from-ams", "gates"]
    assert offered(*bridge, "--group", "") == ["ams"]
    assert offered("bridge", "--session", "") == [], "none has run here"


def test_what_a_configuration_names_is_offered(tmp_path, monkeypatch):
    """A node's file lists its streams, a client's the addresses of the nodes."""
    client, node = str(tmp_path / "clients.toml"), str(tmp_path / "n1.toml")
    with open(client, "w") as file:
        file.write('[pull]\nnodes = ["a:7420", "b:7420"]\n')
    with open(node, "w") as file:
        file.write('[node]\nstream = "flights"\nstreams = ["trains", "ships"]\n')
    assert offered("log-history", "--config", client, "--node", "") == ["a:7420", "b:7420"]
    assert offered("stream", "drop", "--config", node, "") == ["ships", "trains"]
    monkeypatch.setenv("RT_CONFIG", node)
    assert offered("stream", "drop", "t") == ["trains"], "its own stream cannot be dropped"
    monkeypatch.setenv("RT_CONFIG", str(tmp_path / "none.toml"))
    assert offered("stream", "drop", "") == offered("log-history", "--node", "") == []


def test_help_completes_the_names_of_commands():
    """`rt help ar<TAB>` is how a person finds out what there is."""
    assert offered("help", "sub") == ["subscribe"]
    assert offered("help", "archive", "policy", "s") == ["set", "show"]
    assert offered("help", "publish", "") == [], "it has no subcommands"
    assert offered("help", "nothing", "") == []


def test_what_only_the_nodes_know_is_asked_of_them(tmp_path):
    """Sessions and members are named in commands that are typed while something is wrong."""
    with ArchiveCluster(tmp_path) as cluster:
        cluster.push()
        publisher = cluster.publisher()
        publisher.publish(b"one")
        publisher.flush("merged", timeout_s=60)
        host, port = cluster.addresses[0]
        reached = ["--nodes", f"{host}:{port}", "--stream", STREAM, "--identity", "subscriber"]
        reached += ["--certs", os.path.join(cluster.root, "certs")]
        # a shell does not wait for a busy node: then nothing is offered, until it asks again
        assert eventually(lambda: offered("session", "show", *reached, "") == ["jfk"])
        assert eventually(lambda: offered("cluster", "remove", *reached, "n") == ["n1"])
        assert offered("group", "show", *reached, "") == []
        assert eventually(lambda: offered("check", *reached, "--may-stop", "") == ["n1"])
        source = str(tmp_path / "clients.toml")
        with open(source, "w") as file:
            file.write(f'[pull]\nnodes = ["{host}:{port}"]\nstream = "{STREAM}"\n')
            file.write(f'identity = "subscriber"\ncerts = "{cluster.root}/certs"\n')
        assert eventually(lambda: offered("bridge", "--from", source, "--sessions", "") == ["jfk"])
    assert offered("session", "show", *reached, "") == [], "nothing answers"
