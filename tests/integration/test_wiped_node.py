"""A wiped node: what it serves while it learns the merged log again."""

import os
import shutil

from archive_cluster import STREAM, ArchiveCluster
from commands import run
from replicator_host import eventually, log_bytes

PATIENCE_S = 60


def test_a_wiped_node_serves_all_or_says_no(tmp_path):
    """`rt pull --once` copied nothing from it, and called that complete."""
    with ArchiveCluster(tmp_path / "cluster", nodes=3) as cluster:
        push = cluster.push()
        publisher = cluster.publisher()
        for number in range(300):
            publisher.publish(number.to_bytes(4, "big") * 256)
        publisher.flush("merged", PATIENCE_S)
        assert push.stop(drain_s=PATIENCE_S)
        logs = [cluster.out(name) for name in cluster.nodes]
        assert eventually(lambda: all(log_bytes(each) == log_bytes(logs[0]) for each in logs))
        whole = log_bytes(logs[0])
        cluster.stop("n3")
        shutil.rmtree(os.path.join(cluster.root, "n3", STREAM))
        cluster.start("n3")
        copy, said = tmp_path / "copy", []

        def is_copied():
            pulled = run(
                "pull", "--config", os.path.join(cluster.root, "clients.toml"), "--once",
                "--nodes", cluster.places[2].address, "--root", copy, "--timeout", 1,
            )  # fmt: skip
            said.append((pulled.exit_code, pulled.output))
            return pulled.exit_code == 0

        assert eventually(is_copied, PATIENCE_S), said
        assert log_bytes(copy / STREAM / "out") == whole, said
        assert all("ask another" in output for code, output in said if code), said
