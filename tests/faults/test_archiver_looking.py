"""Retention from outside: what a node reports, and what is left of archived files."""

import json
import os
import threading

import pytest
from archive_cluster import ArchiveCluster
from commands import run
from replicator_host import eventually

from rt.position import START
from sequencer.execution.execution import Committed
from sequencer.ledger.instruction import Merge, Slice
from sequencer.raft.consensus import Entry

pytestmark = pytest.mark.faults
PAYLOAD = b"x" * 1000


def publish(publisher, count):
    """Publish messages, each with its number, and wait until they are merged."""
    for first in range(0, count, 50):
        publisher.publish_many([b"%06d" % n + PAYLOAD for n in range(first, first + 50)])
    publisher.flush("merged", timeout_s=60)


def relative(path):
    """Return the path of a merged file relative to the node's directory."""
    return path[path.index("out/") :]


def test_a_node_reports_the_history_that_its_files_hold(tmp_path):
    """Over mutual TLS, selected by position and state, including the active file."""
    with ArchiveCluster(tmp_path) as cluster:
        cluster.push()
        publish(cluster.publisher(), 1000)
        cluster.set_policy(limit=400_000)
        assert eventually(lambda: cluster.rows("n1")[0].state == "archived")
        host, port = cluster.addresses[0]
        node = ["--node", f"{host}:{port}", "--identity", "subscriber"]
        node += ["--certs", os.path.join(tmp_path, "certs")]

        def told(*options):
            result = run("log-history", "--json", *options)
            assert result.exit_code == 0, result.output
            rows = json.loads(result.stdout)
            # a node does not show others where its directory is
            same = {"age_s": 0, "logAge": 0}
            return [
                {**row, **same, **{key: relative(row[key]) for key in ("path", "logPath")}}
                for row in rows
            ]

        ours = told(cluster.out("n1"))
        assert told(*node) == ours
        assert (ours[0]["state"], ours[-1]["state"]) == ("archived", "active")
        begin, end = ours[2]["first_position"], ours[4]["first_position"]
        assert told(*node, "--from-position", begin, "--to-position", end) == ours[2:4]
        assert {row["state"] for row in told(*node, "--archived")} == {"archived"}
        assert ours[0]["path"] == "out/log.0.0"


class Watched(tuple):
    """Slices that record which threads look at them."""

    __slots__ = ()
    threads = frozenset()

    def __iter__(self):
        """Record the thread that looks for the files of these sessions."""
        Watched.threads |= {threading.current_thread()}
        return super().__iter__()


def test_a_status_request_reads_none_of_the_sequencers_files(tmp_path):
    """Two threads that read one manifest take its lines twice and then miss the next."""
    slices = Watched([Slice("jfk", START, START, 8, 1, 0, 0, 1)])
    with ArchiveCluster(tmp_path) as cluster:
        node = cluster.nodes["n1"]
        queue, ask = node.pipeline.member.execution.queue, node.pipeline.sequencer.ask
        ask(lambda: queue.append(Committed(Entry(9, 9, b""), Merge(1, slices))))
        assert eventually(lambda: node.status()["waiting_for"] is not None)
        assert node.status()["waiting_for"] == {"session": "jfk", "end": "0.0.8"}
        assert slices.threads
        assert threading.current_thread() not in slices.threads
        ask(queue.clear)
