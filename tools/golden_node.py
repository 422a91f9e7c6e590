"""Make the data directory of a node as a release leaves it: `golden_node.py COMMIT NAME LEVEL`.

One node merges two sessions, one of them with keys and headers, has a policy and a registered
cursor, begins a second file, and is killed with messages that no snapshot covers.
tests/golden/nodes/NAME.tar.xz holds the directory and NAME.json what it must give back:
tests/integration/test_golden_nodes.py reads both with the rt of today.
"""

import io
import json
import os
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
GOLDEN = ROOT / "tests" / "golden" / "nodes"
PACKAGES = ("rt", "replicator", "sequencer", "archiver")
POLICY = {"time": 52_560_000, "limit": "90Gi"}  # a century: nothing may go while tests read it
FOUND = """
import sys
from rt.node.founding.cluster_files import init_local_cluster
init_local_cluster(sys.argv[1], "flights", 1)
"""
# These run with the packages of the release; their argument is the directory of the cluster.
PROGRAM = """
import sys, rt
top = sys.argv[1]
with rt.connect(f"{top}/clients.toml", root=f"{top}/mine") as client:
    jfk, lga = client.publisher("jfk"), client.publisher("lga")
    with jfk, lga:
        jfk.publish_many([b"jfk %d" % n for n in range(1000)])
        jfk.flush("merged", timeout_s=60)
        for n in range(500):
            lga.publish(b"lga %d" % n, b"key %d" % (n % 7), headers={"n": b"%d" % n})
        lga.flush("merged", timeout_s=60)
        with client.subscriber(cursor=rt.Registered("etl"), follow=False) as reader:
            for message in reader:
                reader.ack(message)
"""
LATE = """
import sys, rt
top = sys.argv[1]
with rt.connect(f"{top}/clients.toml", root=f"{top}/mine") as client:
    with client.publisher("jfk") as jfk:
        jfk.publish_many([b"late %d" % n for n in range(100)])
        jfk.flush("merged", timeout_s=60)
"""


class Release:
    """The packages of a commit, and a cluster of one node that runs them."""

    def __init__(self, commit: str, top: str) -> None:
        packed = subprocess.run(
            ["git", "archive", commit, *PACKAGES], cwd=ROOT, capture_output=True, check=True
        )
        self.code, self.top = f"{top}/code", f"{top}/cluster"
        with tarfile.open(fileobj=io.BytesIO(packed.stdout)) as archive:
            archive.extractall(self.code, filter="data")

    def python(self, *arguments: str) -> str:
        """Run Python with the packages of the release; return what it printed."""
        done = subprocess.run(
            [sys.executable, *arguments], cwd=self.code, env=self.environment, text=True,
            capture_output=True, timeout=120, check=False,
        )  # fmt: skip
        if done.returncode:
            sys.exit(f"{arguments}: {done.stderr}")
        return done.stdout

    def rt(self, *command: str) -> str:
        """Run a command of the release; return what it printed."""
        return self.python("-m", "rt", *command)

    @property
    def environment(self) -> dict[str, str]:
        """The environment in which the release's commands find its packages and the node."""
        return {**os.environ, "PYTHONPATH": self.code, "RT_CONFIG": f"{self.top}/clients.toml"}


def fill(release: Release) -> dict[str, Any]:
    """Have the node merge and archive; return what its directory must give back."""
    release.rt("archive", "policy", "set", json.dumps(POLICY))
    release.python("-c", PROGRAM, release.top)
    release.rt("archive", "roll")
    release.python("-c", LATE, release.top)
    state = json.loads(release.rt("status", "--json"))[0]
    return {
        "merged_end": state["merged_end"], "messages": state["messages"], "digest": state["digest"],
        "policy": POLICY, "cursor": "etl",
    }  # fmt: skip


def main(commit: str, name: str, level: str) -> None:
    """Write both files; `level` is that of the formats which the release uses."""
    with tempfile.TemporaryDirectory() as top:
        release = Release(commit, top)
        release.python("-c", FOUND, release.top)
        release.rt("node", "found", "--config", f"{release.top}/n1.toml")
        node = subprocess.Popen(
            [sys.executable, "-m", "rt", "node", "--config", f"{release.top}/n1.toml"],
            cwd=release.code, env=release.environment, stdout=subprocess.PIPE,
        )  # fmt: skip
        try:
            if node.stdout is None or not node.stdout.readline():  # says that it serves
                sys.exit("the node ended")
            found = {**fill(release), "level": int(level)}
        finally:
            node.kill()
            node.wait()
        GOLDEN.mkdir(parents=True, exist_ok=True)
        (GOLDEN / f"{name}.json").write_text(json.dumps(found, indent=1) + "\n")
        with tarfile.open(GOLDEN / f"{name}.tar.xz", "w:xz") as archive:
            archive.add(f"{release.top}/n1", "n1")
        print(f"{name}: {found['messages']} messages up to {found['merged_end']}")


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit("usage: tools/golden_node.py COMMIT NAME LEVEL")
    main(*sys.argv[1:])
