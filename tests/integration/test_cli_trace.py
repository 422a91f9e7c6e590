"""`rt trace`: where a message was, or where it waits and on what."""

import json
import os
import shutil
from contextlib import ExitStack, closing

import pytest

from rt.errors import Misuse
from rt.inspect.trace import find_merged, find_own
from rt.log.write.writer import WriterSettings
from rt.publisher import Publisher
from tests.archive_cluster import STREAM, ArchiveCluster
from tests.commands import publish, run
from tests.fake_node import FakeNode, nodes_certificates
from tests.logs import MergedLog
from tests.node_answers import answer
from tests.replicator_host import eventually


def traced(cluster, message, *arguments, root="pub"):
    """Return exit code, fields and text of a trace."""
    arguments = (
        "trace", message, "--config", f"{cluster.root}/clients.toml",
        "--root", os.path.join(cluster.clients, root), *arguments,
    )  # fmt: skip
    told, fields = run(*arguments), run(*arguments, "--json")
    if told.exit_code != fields.exit_code:  # it was merged in between
        told = run(*arguments)
    assert told.exit_code == fields.exit_code, told.output + fields.output
    return told.exit_code, json.loads(fields.stdout), told.stdout


def test_a_message_is_followed_from_hop_to_hop(tmp_path):
    """It waits at each in turn, and each time the hop that is broken is named."""
    with ArchiveCluster(tmp_path, 3) as cluster:
        publisher = cluster.publisher()
        publisher.publish_many([b"a", b"b", b"c"])
        publisher.flush("synced")
        copy = ("--copy", cluster.out("sub"))

        code, fields, text = traced(cluster, "jfk:1")
        assert (code, fields["waits_for"].split(":")[0]) == (1, "push")
        assert "no one pushes the session" in text
        assert fields["published"]["position"] == "0.0.1"

        push = cluster.push()
        pull = cluster.pull()
        publisher.flush("merged", 60)
        assert pull.wait_caught_up(60)
        assert eventually(
            lambda: all(
                each["merged_it"] for each in traced(cluster, "jfk:2", *copy)[1]["nodes"].values()
            )
        )
        _, fields, text = traced(cluster, "jfk:1", *copy)
        [place] = fields["copies"].values()
        assert (place["number"], place["instruction"] > 0, fields["waits_for"]) == (1, True, "")
        assert "number 1\nit is merged" in text
        assert all(each["merged_it"] for each in fields["nodes"].values())

        pull.stop()
        publisher.publish(b"d")
        publisher.flush("merged", 60)
        # a node's status is as of its last step: a receipt may precede it
        assert eventually(lambda: traced(cluster, "jfk:3", *copy)[0] == 0)
        code, fields, text = traced(cluster, "jfk:3", *copy)
        assert (code, fields["waits_for"].split(":")[0]) == (0, "pull")
        assert list(fields["copies_without_it"]) == [cluster.out("sub")]

        for name in ("n2", "n3"):
            cluster.stop(name)
        publisher.publish(b"e")
        publisher.flush("received", 60)
        assert eventually(lambda: traced(cluster, "jfk:4")[1]["nodes"]["n1"]["holds_it"])
        code, fields, text = traced(cluster, "jfk:4")
        assert code == 1
        assert "2 nodes have to hold it, and only n1 holds it; no answer from n2" in text
        push.stop()
        cluster.stop("n1")
        code, fields, _ = traced(cluster, "jfk:4")
        assert (code, "no node answers" in fields["waits_for"]) == (1, True)


def test_what_does_not_lead_is_named_where_a_majority_holds_the_message(
    tmp_path, client_certificates, certified
):
    """The bytes arrived; what is missing is a leader, not the network."""
    publish(tmp_path, [b"a"])
    session = {"session": "jfk", "durable": "0.0.4096", "merged": "0.0.0"}
    certs = nodes_certificates(tmp_path, client_certificates)
    status = answer("n1", members=["n1"], sessions=[session], leader="", role="candidate")
    with closing(FakeNode(certs, status=status)) as node:
        done = run("trace", "jfk:0", "--root", tmp_path, "--nodes", node.place)
    assert done.exit_code == 1
    assert "it waits at merge: no node leads" in done.stdout


def test_a_node_that_joined_later_has_merged_what_its_log_contains(
    tmp_path, client_certificates, certified
):
    """It has no copy of the session, and was said to hold nothing of it."""
    publish(tmp_path, [b"a"])
    certs = nodes_certificates(tmp_path, client_certificates)
    session = {"session": "jfk", "durable": "0.0.4096", "merged": "0.0.4096"}
    held = {"n1": [session], "n2": [], "n3": []}
    ends = {"n3": {"merged_end": "0.0.96"}}
    with ExitStack() as stack:
        places = [
            stack.enter_context(closing(FakeNode(
                certs, name, status=answer(name, sessions=sessions) | ends.get(name, {}),
            ))).place
            for name, sessions in held.items()
        ]  # fmt: skip
        nodes = [word for place in places for word in ("--nodes", place)]
        told = run("trace", "jfk:0", "--root", tmp_path, *nodes, "--json")
    merged = {name: each["merged_it"] for name, each in json.loads(told.stdout)["nodes"].items()}
    assert merged == {"n1": True, "n2": True, "n3": False}


def test_another_message_of_the_same_number_is_not_this_one(tmp_path):
    """A session that was put back from an older copy gives its numbers a second time."""
    with ArchiveCluster(tmp_path, 1) as cluster:
        publisher, own = cluster.publisher(), os.path.join(cluster.clients, "pub", STREAM, "jfk")
        publisher.publish(b"a")
        publisher.close()
        shutil.copytree(own, tmp_path / "older")
        publisher, push, pull = cluster.publisher(), cluster.push(), cluster.pull()
        publisher.publish(b"b")
        publisher.flush("merged", 60)
        assert pull.wait_caught_up(60)
        copy = ("--copy", cluster.out("sub"))
        assert traced(cluster, "jfk:1", *copy)[0] == 0
        publisher.close()
        push.stop()
        shutil.rmtree(own)
        shutil.copytree(tmp_path / "older", own)
        publisher = cluster.publisher()
        assert publisher.publish(b"c") == 1
        publisher.flush("synced")

        code, fields, text = traced(cluster, "jfk:1", *copy)
        assert (code, fields["copies"], fields["nodes"]["n1"]["merged_it"]) == (1, {}, False)
        [(where, another)] = fields["copies_with_another"].items()
        assert (where, another["number"]) == (cluster.out("sub"), 1)
        assert "has another message 1 of this session" in fields["waits_for"]
        assert "it is merged" not in text
        assert "has merged it" not in text
        assert traced(cluster, "jfk:0", *copy)[0] == 0  # the older copy has it, and no other


def test_a_message_that_is_not_there_yet_is_not_one_that_waits(tmp_path):
    """A sequence number that was never given is the caller's mistake."""
    with ArchiveCluster(tmp_path, 1) as cluster:
        publisher = cluster.publisher()
        publisher.publish(b"a")
        publisher.flush("synced")
        code, _, text = traced(cluster, "jfk:1")
        assert (code, "no message 1 yet" in text) == (1, True)
        cluster.push()
        publisher.flush("merged", 60)
        code, _, text = traced(cluster, "jfk:0", root="elsewhere")
        assert (code, "it is not known here" in text) == (1, True)
        unknown = run("trace", "jfkk:1", "--config", f"{cluster.root}/clients.toml")
        assert unknown.exit_code == 2
        assert "no session 'jfkk' is known here or to the nodes" in unknown.stderr
        assert "did you mean 'jfk'?" in unknown.stderr


@pytest.mark.parametrize("message", ["jfk", "jfk:", "jfk:-1", "jfk:x", ":3", "../x:1", "jfk:9" * 9])
def test_what_is_no_message_is_refused_in_one_sentence(message):
    """Nothing of it becomes a path before it is parsed."""
    done = run("trace", message)
    assert done.exit_code == 2
    assert "Traceback" not in done.output


def test_a_message_is_found_in_any_file_and_any_frame(tmp_path):
    """Sequence numbers lead to the frame by manifest and index."""
    with Publisher(
        str(tmp_path), stream="s", session="jfk", writer=WriterSettings(file_bytes_max=1 << 17)
    ) as publisher:
        for _ in range(500):
            publisher.publish_many([b"x" * 100] * 10)
            publisher.flush("written")
    directory = str(tmp_path / "s" / "jfk")
    assert len([each for each in os.listdir(directory) if each.startswith("log.")]) > 4
    for sequence in (0, 1, 777, 4999):
        place = find_own(directory, sequence)
        assert place.time_ns > 0
        assert int(place.end) == int(place.position) + 1
    assert find_own(directory, 5000) is None
    with pytest.raises(Misuse, match="it is a session's log"):
        find_merged(directory, "jfk", 0)
    with pytest.raises(Misuse, match="holds no log"):
        find_own(str(tmp_path), 0)


def test_the_merged_place_is_that_of_the_session_that_is_meant(tmp_path):
    """Every session has a message 1; repeats and other sessions are passed over."""
    with MergedLog(str(tmp_path / "out")) as log:
        log.merge("jfk", [b"a", b"b"])
        log.merge("lga", [b"c", b"d", b"e"])
        log.roll()
        log.merge("jfk", [b"f"])
    out = str(tmp_path / "out")
    assert find_merged(out, "lga", 1).number == 3
    assert find_merged(out, "jfk", 1).number == 1
    last = find_merged(out, "jfk", 2)
    assert (last.number, last.instruction > find_merged(out, "lga", 1).instruction) == (5, True)
    assert last == find_merged(out, "jfk", 2, last.merged_ns + 10**9)
    assert last == find_merged(out, "jfk", 2, last.merged_ns + 10**12)  # the publisher's clock
    assert find_merged(out, "jfk", 3) is None
    assert find_merged(out, "ewr", 0) is None
    assert STREAM
