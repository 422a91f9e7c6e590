"""Commands that ask nodes: an unknown name, or what no node takes, is an answer with a code."""

import os

import pytest
from archive_cluster import STREAM, ArchiveCluster
from commands import run
from replicator_host import eventually

from replicator.push.client import PushClient
from rt.publisher import Publisher

PATIENCE_S = 60


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """Give a cluster of one node whose session jfk has a message."""
    with ArchiveCluster(tmp_path_factory.mktemp("cluster"), 1) as made:
        with made.publisher() as publisher:
            push = made.push()
            publisher.publish(b"m")
            publisher.flush("merged", PATIENCE_S)
        push.stop()
        yield made


def asked(cluster, *arguments):
    """Run a command with RT_CONFIG set to the file for clients."""
    return run(*arguments, env={"RT_CONFIG": os.path.join(cluster.root, "clients.toml")})


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["session", "show", "jfkk"], "no session 'jfkk' is known here"),
        (["session", "forget", "jfkk"], "jfkk"),
        (["cursor", "registered", "show", "etl"], "no cursor 'etl' is registered"),
        (["cursor", "registered", "forget", "etl"], "no cursor 'etl' is registered"),
        (["cursor", "show", "etl"], "has no cursor 'etl' here"),
        (["group", "show", "etl"], "there is no group 'etl'"),
        (["group", "reset", "etl", "--to", "earliest"], "there is no group 'etl'"),
        (["trace", "jfkk:0"], "did you mean 'jfk'?"),
        (["pull", "--once", "--stream", "nosuch"], "no node serves stream 'nosuch'"),
        (["subscribe", "--no-follow", "--stream", "nosuch"], "holds no log"),
        (["cursor", "list", "--stream", "nosuch"], "holds no log"),
        (["certs", "show", "nosuch"], "no such certificate"),
    ],
)
def test_an_unknown_name_ends_with_2(cluster, tmp_path, monkeypatch, arguments, words):
    """It was 3 in one place, 2 in others, 0 in some; and one waited for ever."""
    monkeypatch.chdir(tmp_path)
    done = asked(cluster, *arguments)
    assert done.exit_code == 2, done.output
    assert words in done.stderr


def test_rt_config_says_where_certificates_are_for_every_command(cluster, tmp_path, monkeypatch):
    """`rt log-history --node` advised an option that it did not have."""
    monkeypatch.chdir(tmp_path)
    [(host, port)] = cluster.addresses
    shown = asked(cluster, "log-history", "--node", f"{host}:{port}", "--identity", "n1")
    assert shown.exit_code == 0, shown.output
    assert "all that was merged by then" in shown.stdout
    named = asked(
        cluster, "log-history", "--node", f"{host}:{port}", "--identity", "n1", "--stream", STREAM
    )
    assert named.exit_code == 0, named.output
    assert asked(cluster, "certs", "grants").exit_code == 0
    issued = asked(cluster, "certs", "issue", "more", "--role", "subscriber")
    assert issued.exit_code == 0, issued.output
    assert os.path.exists(os.path.join(cluster.root, "certs", "more.pem"))
    assert asked(cluster, "certs", "renew", "more").exit_code == 0


def test_several_nodes_may_be_named_in_one_option(cluster):
    """As in RT_NODES; it was one address that no one could reach."""
    [(host, port)] = cluster.addresses
    done = asked(cluster, "session", "list", "--nodes", f"localhost:1,{host}:{port}")
    assert done.exit_code == 0, done.output
    assert "jfk" in done.stdout


def test_a_drain_ends_beside_a_session_that_is_refused(cluster, tmp_path):
    """It went on for ever, though all that anybody will take was merged."""
    with Publisher(
        tmp_path, stream=STREAM, session="jfk"
    ) as publisher:  # the name is another log's
        publisher.publish(b"other")
    with Publisher(tmp_path, stream=STREAM, session="lga") as publisher:
        publisher.publish(b"m")
    done = asked(cluster, "push", "--drain", "--root", str(tmp_path))
    assert done.exit_code == 1, done.output
    assert "not everything is merged" in done.stderr
    assert "jfk" in done.stderr
    assert "lga" in asked(cluster, "session", "show", "lga").stdout


def test_a_drain_beside_another_push_says_what_it_does_not_know(cluster, tmp_path):
    """It said that not everything is merged, where it only could not ask."""
    with Publisher(tmp_path, stream=STREAM, session="ewr") as publisher:
        publisher.publish(b"m")
    contexts = cluster.contexts("publisher")
    push = PushClient(str(tmp_path), STREAM, cluster.addresses, contexts)
    push.start()
    try:
        assert eventually(lambda: push.drained(merged=True), PATIENCE_S)
        for timeout_s in (4, 16, 64):  # by then a node has to have refused it
            drain = ("push", "--drain", "--timeout", timeout_s, "--root", str(tmp_path))
            done = asked(cluster, *drain)
            if "is being pushed" in done.stderr:
                break
    finally:
        push.stop()
    assert done.exit_code == 1, done.output
    assert "it is not known whether everything is merged" in done.stderr
    assert "not everything is merged" not in done.stderr
