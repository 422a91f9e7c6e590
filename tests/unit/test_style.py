"""The house style, held by a test: who imports whom, what is pure, how long things are."""

import ast
import os
import re

import pytest

ROOT = os.path.join(os.path.dirname(__file__), "..", "..")
PACKAGES = ("rt", "replicator", "sequencer", "archiver")
# Imports go down this table, or stay in their row's folder. A row is a folder, or a single file;
# the services of one rank do not import each other: they meet in directories, and in a node.
RANKS: list[tuple[str, ...]] = [
    ("rt/version.py", "rt/limits.py", "rt/position.py", "rt/events.py", "rt/errors.py",
     "rt/names.py", "rt/text.py"),
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
    ("rt/spark/",),
    ("rt/cli/",),
    ("rt/demo/",),
    ("rt/__init__.py", "rt/__main__.py"),
]  # fmt: skip
# What an engine promises, which the engine itself imports.
BELOW_THEIR_FOLDER = {"sequencer/consensus.py": 6}
# Whatever these folders import, directly or not, is pure as well.
PURE_FOLDERS = ("rt/format/", "sequencer/raft/")
# Modules that are pure though their folder is not.
PURE_MODULES = {
    "archiver/ages.py", "archiver/policy.py", "archiver/decide.py", "archiver/lease.py",
    "archiver/clock.py", "replicator/wire.py", "replicator/source.py", "replicator/sink.py",
    "sequencer/consensus.py", "sequencer/instruction.py", "sequencer/ledger.py",
    "sequencer/holdings.py", "sequencer/wants.py", "sequencer/journal/records.py",
}  # fmt: skip
NOT_PURE = {
    "os", "socket", "ssl", "threading", "asyncio", "time", "random", "secrets", "subprocess",
    "fcntl", "select", "logging", "tempfile",
}  # fmt: skip
FUNCTION_LINES_MAX, FILE_LINES_MAX, TEST_FILE_LINES_MAX = 70, 420, 800
FUNCTION_LINES_LONG = 40
# A ratchet: it may only become shorter.
LONG_FUNCTIONS: set[str] = set()
LONG_FILES: dict[str, int] = {}
DURABLE_MAKERS = {"rt/log/appender.py", "rt/log/writer.py"}


def python_files(*folders):
    """Return the Python files below these folders, relative to the project."""
    return sorted(
        os.path.relpath(os.path.join(directory, name), ROOT)
        for folder in folders
        for directory, _, names in os.walk(os.path.join(ROOT, folder))
        for name in names
        if name.endswith(".py")
    )


def source(path):
    """Return the text of a file."""
    with open(os.path.join(ROOT, path), encoding="utf-8") as file:
        return file.read()


def imports(path):
    """Return the modules that a file imports, in full."""
    found = set()
    for node in ast.walk(ast.parse(source(path))):
        if isinstance(node, ast.Import):
            found |= {each.name for each in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            found |= {node.module} | {f"{node.module}.{each.name}" for each in node.names}
    return found


def functions(path):
    """Return the functions of a file."""
    kinds = ast.FunctionDef | ast.AsyncFunctionDef
    return [node for node in ast.walk(ast.parse(source(path))) if isinstance(node, kinds)]


def path_of(module):
    """Return the file of a module of ours, or None where the name is not a module's."""
    for path in (module.replace(".", "/") + ".py", module.replace(".", "/") + "/__init__.py"):
        if os.path.exists(os.path.join(ROOT, path)):
            return path
    return None


def our_imports(path):
    """Return the files of ours that a file imports."""
    names = {each for each in imports(path) if each.split(".")[0] in PACKAGES}
    found = {path_of(each) for each in names}
    return found - {None, path, "rt/__init__.py"}  # that one imports nothing until it is asked


def room(path):
    """Return the rank of a file and the entry of the table that gives it."""
    rows = [(rank, entry) for rank, row in enumerate(RANKS) for entry in row]
    rank, entry = max(
        ((rank, entry) for rank, entry in rows if path.startswith(entry)),
        key=lambda each: len(each[1]),
    )
    return BELOW_THEIR_FOLDER.get(path, rank), entry


CODE = python_files(*PACKAGES)
TESTS = python_files("tests")


@pytest.mark.parametrize("path", CODE)
def test_imports_go_down_the_table_of_ranks(path):
    """A stranger sees from a folder's place what may be touched there, and what depends on it."""
    rank, entry = room(path)
    for other in our_imports(path):
        other_rank, other_entry = room(other)
        is_near = other_entry == entry or (rank, other_rank) == (0, 0)
        assert other_rank < rank or is_near, f"{path} imports {other}"


@pytest.mark.parametrize("path", [path for path in CODE if path.startswith(PURE_FOLDERS)])
def test_pure_folders_reach_no_clock_disk_or_chance_however_indirectly(path):
    """Values in, values out: a simulation replays them exactly, and a test needs no machine."""
    seen, left = set(), {path}
    while left:
        each = left.pop()
        seen.add(each)
        demand_pure(each)
        left |= our_imports(each) - seen


@pytest.mark.parametrize("path", sorted(PURE_MODULES))
def test_pure_modules_touch_neither_clock_nor_disk_nor_chance(path):
    """What decides in a service is pure, beside shells that are not."""
    demand_pure(path)


def demand_pure(path):
    """Fail where a file imports what is not pure, or opens a file."""
    assert not {each.split(".")[0] for each in imports(path)} & NOT_PURE, path
    assert not re.search(r"(?<![\w.])open\(", source(path)), path


@pytest.mark.parametrize("path", CODE + TESTS)
def test_files_and_functions_are_short(path):
    """A file that nobody reads to its end is one that nobody understands."""
    usual = TEST_FILE_LINES_MAX if path.startswith("tests") else FILE_LINES_MAX
    limit = LONG_FILES.get(path, usual)
    assert source(path).count("\n") <= limit
    for function in functions(path):
        lines = function.end_lineno - function.lineno + 1
        assert lines <= FUNCTION_LINES_MAX, f"{function.name} has {lines} lines"


def test_no_function_of_the_packages_is_long_that_was_not():
    """Forty lines is long; the list of those that are may only become shorter."""
    long = {
        f"{path}:{function.name}"
        for path in CODE
        for function in functions(path)
        if _code_lines(function) > FUNCTION_LINES_LONG
    }
    assert long == LONG_FUNCTIONS


def _code_lines(function):
    """Return the lines of a function without its docstring."""
    first = function.body[0]
    is_text = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
    return function.end_lineno - (first.end_lineno if is_text else function.lineno)


@pytest.mark.parametrize("path", CODE)
def test_packages_hold_no_assert_no_wide_except_and_no_loose_end(path):
    """`python -O` drops an assert; a wide except hides the error that mattered."""
    tree = ast.parse(source(path))
    assert not [node.lineno for node in ast.walk(tree) if isinstance(node, ast.Assert)]
    assert not re.search(r"\b(TODO|FIXME|XXX)\b", source(path))
    in_main = {
        id(node)
        for function in functions(path)
        if function.name == "main"
        for node in ast.walk(function)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.ExceptHandler) and id(node) not in in_main and not _raises(node):
            caught = ast.unparse(node.type) if node.type else "everything"
            assert caught not in ("everything", "Exception", "BaseException"), node.lineno


def _raises(handler):
    """Whether a handler passes on what it caught: it only tidies up."""
    last = handler.body[-1]
    return isinstance(last, ast.Raise) and last.exc is None


def test_durability_is_made_only_where_something_was_synced():
    """An acknowledgement is built from it; whoever makes one up promises what is not so."""
    makers = {path for path in CODE if re.search(r"\bDurable\(", source(path))}
    assert makers <= DURABLE_MAKERS
    assert source("rt/log/appender.py").count("Durable(") == 1
    made = re.findall(r"Durable\(([^)]*)\)", source("rt/log/writer.py"))
    # the end as recovery found it, and a wish, which is compared and never given out
    assert sorted(made) == ["self._appender.end", "target"]


@pytest.mark.parametrize(
    "path", [path for path in TESTS if os.path.basename(path).startswith("test_")]
)
def test_every_test_says_why_anyone_would_care(path):
    """A test that fails in two years is read by somebody who was not there."""
    for function in functions(path):
        if function.name.startswith("test_"):
            assert ast.get_docstring(function), function.name
            assert function.name.count("_") >= 3, f"{function.name} is no sentence"


def test_every_promise_names_a_test_that_exists():
    """A promise without a test is a hope."""
    there = {f"{path}::{each.name}" for path in TESTS for each in functions(path)}
    rows = [line for line in source("docs/SAFETY.md").splitlines() if line.startswith("| ")]
    promises = [row for row in rows if row != "| promise | guarded by |"]
    assert len(promises) > 40
    for row in promises:
        named = re.findall(r"`([^`]+::[^`]+)`", row)
        assert named, f"no test is named: {row}"
        assert set(named) <= there, row
