"""Runs the suite and the protocol's client against a gateway of one node: `make conformance`.

Exit codes: 0 if everything that the gateway serves conforms, 77 if the suite cannot be installed
here, 1 otherwise. Forks are not served, and left out; docs/adr/0036-gateway.md says why.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from rt.cli.cluster.up import start_nodes
from rt.cli.process.children import Children
from rt.node.founding.cluster_files import init_local_cluster

HERE = Path(__file__).parent
INSTALLED = HERE.parents[1] / ".venv" / "conformance"
SERVED = "^(?!.*Fork)"
SUITES = ("durable.test.mjs", "client.test.mjs")
STREAM = "flights"
NOT_INSTALLED = 77
TEST_MS = 60_000  # the suite allows 5 s for a test; a busy machine needs more


def install() -> bool:
    """Install the suite, unless it is; False if that is not possible here."""
    if shutil.which("npm") is None:
        print("conformance: npm is not installed; nothing was tested", file=sys.stderr)
        return False
    INSTALLED.mkdir(parents=True, exist_ok=True)
    for name in ("package.json", *SUITES):
        shutil.copy(HERE / name, INSTALLED / name)
    command = ["npm", "install", "--silent", "--no-audit", "--no-fund", "--no-package-lock"]
    if subprocess.run(command, cwd=INSTALLED, check=False).returncode:
        print("conformance: npm could not install the suite; nothing was tested", file=sys.stderr)
        return False
    return True


def main() -> int:
    """Run everything; return the exit code."""
    if not install():
        return NOT_INSTALLED
    with tempfile.TemporaryDirectory() as root, Children() as children:
        start_nodes(children, root, STREAM, init_local_cluster(root, STREAM, 1))
        gateway = children.start(
            "gateway", "gateway", "--config", f"{root}/clients.toml", "--root", f"{root}/edge",
            "--listen", "127.0.0.1:0", "--append",
        )  # fmt: skip
        url = gateway.first_line(r"streams at (\S+)/v1/stream/")[1]
        suite = subprocess.run(
            ["npx", "vitest", "run", "--reporter=default", f"--testTimeout={TEST_MS}",
             "-t", SERVED, *SUITES],
            cwd=INSTALLED, check=False, stdin=subprocess.DEVNULL,
            env={**os.environ, "CONFORMANCE_TEST_URL": url},
        )  # fmt: skip
    return 1 if suite.returncode else 0


if __name__ == "__main__":
    sys.exit(main())
