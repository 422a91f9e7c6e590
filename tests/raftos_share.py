"""Measures how much of raftos runs: the executed statements of its functions, file by file.

    python -m tests.raftos_share

First while it is imported, then while 20 simulated clusters of the engine run through their
faults. Statements outside functions (definitions, imports) are not counted, nor are docstrings.
"""

import ast
import importlib
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from types import FrameType
from typing import Any

from tests.sim.cluster import Cluster

SEEDS = 20
Place = tuple[str, int]


def statements(directory: str) -> dict[Place, str]:
    """Return the function's name for each statement inside a function, by file and line."""
    found: dict[Place, str] = {}
    for name in sorted(os.listdir(directory)):
        if name.endswith(".py"):
            with open(os.path.join(directory, name), encoding="utf-8") as file:
                _collect(ast.parse(file.read()), name, "", found)
    return found


def _collect(tree: ast.AST, file: str, inside: str, found: dict[Place, str]) -> None:
    functions = ast.FunctionDef | ast.AsyncFunctionDef
    for child in ast.iter_child_nodes(tree):
        if isinstance(child, functions | ast.ClassDef):
            name = f"{inside}.{child.name}".lstrip(".")
            if inside and isinstance(tree, functions):
                found[file, child.lineno] = inside
            _collect(child, file, name, found)
            continue
        is_text = isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant)
        counts = isinstance(child, ast.stmt) and not isinstance(tree, ast.ClassDef)
        if counts and inside and not is_text:
            found[file, child.lineno] = inside
        _collect(child, file, inside, found)


@contextmanager
def watched(directory: str) -> Iterator[set[Place]]:
    """Collect the lines that run in files of this directory."""
    ran: set[Place] = set()

    def line(frame: FrameType, event: str, _: Any) -> Any:
        if event == "line":
            ran.add((os.path.basename(frame.f_code.co_filename), frame.f_lineno))
        return line

    def call(frame: FrameType, _event: str, _: Any) -> Any:
        return line if frame.f_code.co_filename.startswith(directory) else None

    before = sys.gettrace()
    sys.settrace(call)
    try:
        yield ran
    finally:
        sys.settrace(before)


def main() -> int:
    """Measure, and print what the record of the decision quotes."""
    spec = find_spec("raftos")
    if spec is None or spec.origin is None:
        print("raftos is not installed: make .venv/raftos")
        return 1
    directory = os.path.dirname(spec.origin)
    there = statements(directory)
    with watched(directory + os.sep) as at_import:
        engine = importlib.import_module("sequencer.raftos_engine")
    with watched(directory + os.sep) as running:
        kind = type("RaftosCluster", (Cluster,), {"engine": engine.RaftosRaft})
        for seed in range(SEEDS):
            kind(seed).run()
    report("at import", there, at_import)
    report("while nodes run", there, running)
    return 0


def report(when: str, there: dict[Place, str], ran: set[Place]) -> None:
    """Print how many statements ran, and of which functions."""
    hit = {place: name for place, name in there.items() if place in ran}
    print(f"{when}: {len(hit)} of {len(there)} statements, {len(hit) * 100 // len(there)} %")
    for file in sorted({file for file, _ in there}):
        names = dict.fromkeys(name for (where, _), name in hit.items() if where == file)
        count = sum(where == file for where, _ in hit)
        total = sum(where == file for where, _ in there)
        print(f"  {file}: {count} of {total}  {', '.join(names)}".rstrip())


if __name__ == "__main__":
    sys.exit(main())
