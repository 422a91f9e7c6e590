"""Three nodes, of which one lies, one refuses and one is down: a publisher keeps its files.

Or the one that lies answers for the one that is down, too.
"""

import signal
import subprocess
import sys
from contextlib import ExitStack

import pytest

from rt.log.notify.confirmations import ConfirmationsFile
from rt.log.write.writer import WriterSettings
from rt.node.founding.cluster_files import init_local_cluster
from rt.position import START, file_position
from rt.publisher import Publisher
from tests.commands import PATIENCE_S, clean_environment, finish, start
from tests.replicator_host import eventually, log_bytes, manifest_lines

pytestmark = pytest.mark.process
STREAM = "flights"
# What it acknowledges (tests/hostile_sink.py), and at how many ports of others it answers.
LIES = [("impossible", 0), ("possible", 0), ("possible", 1)]


@pytest.fixture
def places(tmp_path):
    """Return three nodes, of which the second grants the publisher another session."""
    places = init_local_cluster(str(tmp_path / "cluster"), STREAM, 3)
    grants = tmp_path / "cluster" / "certs" / "grants.toml"
    grants.write_text('[publisher.publisher]\nsessions = ["lga"]\n')
    return places


@pytest.fixture
def session(tmp_path):
    """Publish a session of several files, whose publisher has ended."""
    settings = WriterSettings(file_bytes_max=128 * 1024)
    with Publisher(
        str(tmp_path / "data"), stream=STREAM, session="jfk", writer=settings
    ) as publisher:
        for number in range(40):
            publisher.publish_many([b"%d" % number * 4000] * 4)
    path = tmp_path / "data" / STREAM / "jfk"
    assert len(log_bytes(path)) > 2
    return path


def is_told(lie, said, session, others):
    """Whether the pusher has met all three nodes, and heard the lie to its end."""
    third = "is one node, and counts as one" if others else "(connection refused)"
    if lie == "impossible":
        is_heard = "the sink acknowledges up to 524287.16383.1073741823 and was sent" in said
    else:
        last = max(map(file_position, log_bytes(session)))
        is_heard = ConfirmationsFile(str(session)).read().merged.file == last
    return is_heard and "does not grant" in said and third in said


@pytest.mark.parametrize(("lie", "others"), LIES)
def test_one_lying_node_deletes_nothing(places, session, tmp_path, lie, others):
    """It once acknowledged 2^63-1 on a log of 112 bytes, and two files were truncated."""
    certs, said = tmp_path / "cluster" / "certs", tmp_path / "said"
    before = log_bytes(session), manifest_lines(session)
    ports = [each.address.rpartition(":")[2] for each in (places[0], *places[2:][:others])]
    liar = [sys.executable, "-m", "tests.hostile_sink", certs, "n1", lie, *ports]
    link = ["--root", tmp_path / "data", "--stream", STREAM, "--certs", certs]
    link += ["--identity", "publisher"]
    for place in places:
        link += ["--nodes", place.address]
    with ExitStack() as undo:
        hostile = subprocess.Popen(liar, env=clean_environment(), stdout=subprocess.PIPE)
        honest = start("node", "--config", places[1].config)
        for process in (hostile, honest):
            undo.enter_context(process)
            undo.callback(process.kill)
        assert hostile.stdout.readline() == b"listening\n"
        assert honest.stdout.readline().startswith(b"node n2 serves")
        with said.open("wb") as file:
            push = undo.enter_context(start("push", *link, stderr=file))
            undo.callback(push.kill)
            assert eventually(lambda: is_told(lie, said.read_text(), session, others), PATIENCE_S)
            push.send_signal(signal.SIGTERM)  # it looks a last time at what may be archived
            code, told, _ = finish(push)
    assert (code, told[:51]) == (0, b"not everything is synced by a majority of the nodes")
    assert (log_bytes(session), manifest_lines(session)) == before
    assert ConfirmationsFile(str(session)).read().released == START
