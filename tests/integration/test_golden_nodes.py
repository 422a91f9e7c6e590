"""Data directories of nodes as earlier releases left them: each is read, and goes on, here."""

import json
import os
import tarfile
from pathlib import Path

import pytest

import rt
from rt.node.founding.cluster_files import init_local_cluster
from sequencer.ledger.format_level import NEWEST
from tests.commands import finish, run, start
from tests.replicator_host import eventually

GOLDEN = Path(__file__).parent.parent / "golden" / "nodes"  # tools/golden_node.py made them
RELEASES = sorted(path.name.removesuffix(".tar.xz") for path in GOLDEN.glob("*.tar.xz"))


@pytest.fixture(params=RELEASES)
def old(request, tmp_path):
    """A node's directory of a release, in a cluster of one whose files are new; and its facts."""
    top = str(tmp_path / "cluster")
    [place] = init_local_cluster(top, "flights", 1)
    with tarfile.open(GOLDEN / f"{request.param}.tar.xz") as archive:
        archive.extractall(top, filter="data")
    facts = json.loads((GOLDEN / f"{request.param}.json").read_text())
    return top, place.config, facts


def history(top):
    """The files of the merged log."""
    done = run("log-history", os.path.join(top, "n1", "flights", "out"), "--json")
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def test_a_node_goes_on_from_what_an_earlier_release_has_left(old):
    """All that was agreed on is there, and the next message has the next number."""
    top, config, facts = old
    adopted = run("node", "adopt-state", "--config", config, "--original-is-gone")
    assert adopted.exit_code == 0, adopted.output
    clients = os.path.join(top, "clients.toml")
    with start("node", "--config", config) as node:
        assert node.stdout.readline(), node.stderr.read()

        def asked(*arguments):
            done = run(*arguments, "--config", clients)
            assert done.exit_code == 0, done.output
            return json.loads(done.stdout)

        def state():
            """What it has merged, and the ends of files with their digests."""
            done = run("status", "--json", "--config", clients)  # fails until the node leads
            [found] = json.loads(done.stdout)
            ends = {file["end_position"]: file["digest"] for file in history(top)}
            return found["messages"], ends | {found["merged_end"]: found["digest"]}

        def is_whole():  # it executes its journal first; a file that is a day old rolls then
            messages, ends = state()
            is_same = ends.get(facts["merged_end"]) == facts["digest"]
            return messages == facts["messages"] and is_same

        assert eventually(is_whole), state()
        policy = asked("archive", "policy", "show", "--json")["policy"]
        assert policy.items() >= facts["policy"].items()
        level = asked("cluster", "upgrade", "status", "--json")
        assert (level["level"], level["obstacles"]) == (facts["level"], [])
        with rt.connect(clients, root=os.path.join(top, "mine")) as client:
            rest = rt.Registered(facts["cursor"])
            with client.subscriber(cursor=rest, follow=False) as reader:
                late = [message.payload for message in reader]
            assert late == [b"late %d" % n for n in range(100)]
            with client.publisher("ord") as publisher:
                publisher.publish(b"now", headers={"since": b"today"}, confirm="merged")
            with client.subscriber(follow=False) as reader:
                messages = list(reader)
        assert [each.number for each in messages] == list(range(facts["messages"] + 1))
        assert messages[1000].headers == {"n": b"0"}
        assert messages[-1].payload == b"now"
        assert asked("cluster", "upgrade", "finalize", "--json")["agreed"]["level"] == NEWEST
        node.terminate()
        assert finish(node)[0] == 0
    verified = run("verify", os.path.join(top, "n1", "flights", "out"))
    assert verified.exit_code == 0, verified.output
