"""The layout of the code: packages, imports between them, cycles, sizes. `python -m tests.layout`.

`tests/unit/test_style.py` enforces the table of ranks below.
"""

import ast
import functools
import os
import statistics
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGES = ("rt", "replicator", "sequencer", "archiver")
# Imports go down this table, or stay in their row's folder. A row is a folder, or a single file;
# the services of one rank do not import each other: they meet in directories, and in a node.
RANKS: list[tuple[str, ...]] = [
    ("rt/version.py", "rt/limits.py", "rt/position.py", "rt/events.py", "rt/errors.py",
     "rt/names.py", "rt/text.py", "rt/about.py", "rt/latencies.py", "rt/traffic.py",
     "rt/masking.py", "rt/amounts.py"),
    ("rt/format/",),
    ("rt/config/",),
    ("rt/log/",),
    ("rt/offload/",),
    ("rt/inspect/", "rt/publisher.py", "rt/subscriber.py"),
    ("rt/net/",),
    ("sequencer/raft/",),
    ("sequencer/journal/",),
    ("archiver/", "replicator/", "sequencer/"),
    ("rt/node/",),
    ("rt/client/",),
    ("rt/spark/reading/",),
    ("rt/tables/", "rt/arrow.py"),
    ("rt/spark/formats/",),
    ("rt/spark/",),
    ("rt/web/",),
    ("rt/gateway/", "rt/bridge/"),
    ("rt/cli/",),
    ("rt/demo/",),
    ("rt/__init__.py", "rt/__main__.py"),
]  # fmt: skip
# Imports a module only when one of its names is requested.
LAZY = "rt/__init__.py"


def python_files(*folders: str) -> list[str]:
    """Return the Python files below these folders, relative to the project."""
    found = (path for folder in folders for path in (ROOT / folder).rglob("*.py"))
    return sorted(str(path.relative_to(ROOT)) for path in found if ".venv" not in path.parts)


def documents() -> list[str]:
    """Return the documents but the changelog, which may name removed things, by relative path."""
    found = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    return sorted(str(path.relative_to(ROOT)) for path in found if path.name != "CHANGELOG.md")


@functools.cache
def source(path: str) -> str:
    """Return the text of a file."""
    return (ROOT / path).read_text(encoding="utf-8")


@functools.cache
def tree(path: str) -> ast.Module:
    """Return the syntax tree of a file."""
    return ast.parse(source(path))


@functools.cache
def nodes(path: str) -> tuple[ast.AST, ...]:
    """Return all nodes of a file's syntax tree, except those of contexts such as `Load`."""
    found: list[ast.AST] = [tree(path)]
    for node in found:  # it grows; `ast.walk` takes twice as long
        for name in node._fields:
            value = getattr(node, name, None)
            if isinstance(value, list):
                found += [each for each in value if isinstance(each, ast.AST)]
            elif isinstance(value, ast.AST) and not isinstance(value, ast.expr_context):
                found.append(value)
    return tuple(found)


@functools.cache
def imports(path: str) -> set[str]:
    """Return the modules that a file imports, by their full names."""
    found: set[str] = set()
    for node in nodes(path):
        if isinstance(node, ast.Import):
            found |= {each.name for each in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            found |= {str(node.module)} | {f"{node.module}.{each.name}" for each in node.names}
    return found


@functools.cache
def our_imports(path: str) -> set[str]:
    """Return the files of ours that a file imports."""
    names = {each for each in imports(path) if each.split(".")[0] in PACKAGES}
    found = {file for each in names if (file := path_of(each)) is not None}
    return found - {path, LAZY}


@functools.cache
def path_of(module: str) -> str | None:
    """Return the file of a module; None if it is not ours."""
    stem = module.replace(".", "/")
    return next(
        (each for each in (f"{stem}.py", f"{stem}/__init__.py") if (ROOT / each).exists()), None
    )


def room(path: str) -> tuple[int, str]:
    """Return the rank of a file, and the entry in the table of ranks that gives it."""
    rows = [(rank, entry) for rank, row in enumerate(RANKS) for entry in row]
    return max((row for row in rows if path.startswith(row[1])), key=lambda row: len(row[1]))


@functools.cache
def functions(path: str) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Return the functions of a file."""
    kinds = ast.FunctionDef | ast.AsyncFunctionDef
    return [node for node in nodes(path) if isinstance(node, kinds)]


@functools.cache
def classes(path: str) -> list[ast.ClassDef]:
    """Return the classes of a file."""
    return [node for node in nodes(path) if isinstance(node, ast.ClassDef)]


def fields(owner: ast.ClassDef) -> set[str]:
    """Return the fields of a class: annotated in its body, or assigned to `self`."""
    declared = {
        node.target.id
        for node in owner.body
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
        and not ast.unparse(node.annotation).startswith(("Final", "ClassVar"))
    }  # fmt: skip
    return declared | {
        target.attr
        for node in ast.walk(owner)
        for target in _targets(node)
        if isinstance(target, ast.Attribute)
        and isinstance(target.value, ast.Name)
        and target.value.id == "self"
    }


def _targets(node: ast.AST) -> Iterator[ast.expr]:
    if isinstance(node, ast.AnnAssign):
        yield node.target
    elif isinstance(node, ast.Assign):
        for target in node.targets:
            yield from target.elts if isinstance(target, ast.Tuple) else [target]


def package_of(path: str) -> str:
    """Return the folder of a file, or the file itself at the top of rt/."""
    folder = os.path.dirname(path)
    return path if folder == "rt" else folder


def package_imports() -> dict[str, set[str]]:
    """Return the packages that each package imports."""
    found: dict[str, set[str]] = {}
    for path in python_files(*PACKAGES):
        mine = package_of(path)
        others = {package_of(other) for other in our_imports(path)} - {mine}
        found.setdefault(mine, set()).update(others)
    return found


def cycles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Return groups of nodes that reach each other."""
    reached = {node: _reached(graph, node) for node in graph}
    groups = {
        frozenset(other for other in reached[node] if node in reached.get(other, set()))
        for node in graph
        if node in reached[node]
    }
    return sorted(sorted(group) for group in groups)


def _reached(graph: dict[str, set[str]], start: str) -> set[str]:
    seen: set[str] = set()
    left = set(graph[start])
    while left:
        node = left.pop()
        seen.add(node)
        left |= graph.get(node, set()) - seen
    return seen


def main() -> None:
    """Print sizes per package, imports between packages, and cycles."""
    files = python_files(*PACKAGES)
    print(f"{'package':<20} {'functions':>12} {'files':>9} {'fields':>7}")
    print(f"{'':<20} {'p50/p95/max':>12} {'p50/max':>9} {'max':>7}")
    for folder in sorted({os.path.dirname(path) for path in files}):
        inside = [path for path in files if os.path.dirname(path) == folder]
        lines = sorted(_lines(each) for path in inside for each in functions(path)) or [0]
        p95 = lines[min(len(lines) - 1, len(lines) * 95 // 100)]
        sizes = [source(path).count("\n") for path in inside]
        most = max((len(fields(each)) for path in inside for each in classes(path)), default=0)
        row = f"{statistics.median_low(lines)}/{p95}/{lines[-1]}"
        print(f"{folder:<20} {row:>12} {statistics.median_low(sizes)}/{max(sizes):>4} {most:>7}")
    print("\nimports, from the highest rank down")
    graph = package_imports()
    for name in sorted(graph, key=lambda each: (-room(each + "/")[0], each)):
        print(f"{name}: {', '.join(sorted(graph[name])) or 'nothing'}")
    modules = {path: our_imports(path) for path in files}
    print(f"\ncycles between packages: {cycles(graph) or 'none'}")
    print(f"cycles between modules: {cycles(modules) or 'none'}")


def _lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    return (function.end_lineno or 0) - function.lineno + 1


if __name__ == "__main__":
    main()
