"""Counts the private names and patched attributes in each test, which internal changes break.

    python -m tests.doors     # records lower counts in tests/doors.txt

Each attribute whose name begins with an underscore counts, unless it is one of `self` or `cls`;
each call that replaces an attribute counts too. `tests/unit/test_style.py` fails if a file has more
of them than is recorded.
"""

import ast
import re

from tests.layout import ROOT, nodes, python_files

RECORD = ROOT / "tests" / "doors.txt"
PRIVATE = re.compile(
    r"_(?!_|replace$|asdict$|fields$|make$|exit$)"
)  # methods of named tuples, and os._exit
PATCHES = {"setattr", "patch", "object"}  # methods of monkeypatch, and of unittest.mock


def count(path):
    """Return how many private names and patches a file has."""
    return sum(_is_private(node) or _is_patch(node) for node in nodes(path))


def _is_private(node):
    if isinstance(node, ast.ImportFrom):
        return any(PRIVATE.match(each.name) for each in node.names)
    if not isinstance(node, ast.Attribute) or not PRIVATE.match(node.attr):
        return False
    return not (isinstance(node.value, ast.Name) and node.value.id in {"self", "cls"})


def _is_patch(node):
    if not isinstance(node, ast.Call):
        return False
    last = node.func.attr if isinstance(node.func, ast.Attribute) else ast.unparse(node.func)
    return last in PATCHES and ast.unparse(node.func).startswith(("monkeypatch.", "patch", "mock."))


def counts():
    """Return the files that have any, with their counts."""
    found = {path: count(path) for path in python_files("tests")}
    return {path: number for path, number in found.items() if number}


def recorded():
    """Return the recorded maximum of each file."""
    rows = (line.split() for line in RECORD.read_text(encoding="utf-8").splitlines())
    return {path: int(number) for number, path in rows}


def main():
    """Record lower counts; higher ones make the style test fail."""
    found, before = counts(), recorded() if RECORD.exists() else None
    kept = found if before is None else {
        path: min(number, found[path]) for path, number in before.items() if found.get(path)
    }  # fmt: skip
    lines = (f"{number:4} {path}\n" for path, number in sorted(kept.items()))
    RECORD.write_text("".join(lines), encoding="utf-8")
    print(f"{sum(found.values())} in {len(found)} files; {sum(kept.values())} are recorded")


if __name__ == "__main__":
    main()
