"""The house style, held by a test: who imports whom, what is pure, how long things are."""

import ast
import os
import re

import pytest

ROOT = os.path.join(os.path.dirname(__file__), "..", "..")
PACKAGES = ("rt", "replicator", "sequencer", "archiver")
# May import anything below them; nothing else imports them.
EDGES = re.compile(r"rt/(__main__|cli|cluster|demo|node|spark)\w*(/.*)?\.py")
NOT_PURE = {
    "os", "socket", "ssl", "threading", "asyncio", "time", "random", "subprocess", "fcntl",
    "select",
}  # fmt: skip
PURE = {
    "rt": {
        "position", "limits", "frame", "columns", "ranges", "walk", "scan", "recovery", "index",
        "seek", "message", "events", "errors", "names", "checksum",
    },
    "archiver": {"ages", "policy", "decide", "lease", "clock"},
    "replicator": {"wire", "source", "sink"},
    "sequencer": {
        "consensus", "quorum", "instruction", "ledger", "planner", "raft", "raft_core",
        "raft_election", "raft_leader", "raft_log", "raft_messages", "raft_progress", "raft_reads",
        "raft_receive", "journal_records",
    },
}  # fmt: skip
FUNCTION_LINES_MAX, FILE_LINES_MAX, TEST_FILE_LINES_MAX = 70, 400, 800
FUNCTION_LINES_LONG = 40
# A ratchet: it may only become shorter.
LONG_FUNCTIONS: set[str] = set()
LONG_FILES: dict[str, int] = {}
DURABLE_MAKERS = {"rt/appender.py", "rt/writer.py"}


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


def is_edge(module):
    """Whether a module, by its full name, is one that nothing below may import."""
    return EDGES.fullmatch(module.replace(".", "/") + ".py")


CODE = python_files(*PACKAGES)
TESTS = python_files("tests")


@pytest.mark.parametrize("path", CODE)
def test_packages_import_only_what_lies_below_them(path):
    """The log must be usable without the node, and a node's parts must not grow together."""
    package = path.split(os.sep)[0]
    others = {each for each in imports(path) if each.split(".")[0] in set(PACKAGES) - {package}}
    if package == "rt" and not EDGES.fullmatch(path):
        assert not others
        assert not {each for each in imports(path) if is_edge(each)}
    elif package != "rt":
        strange = {each for each in others if each.split(".")[0] != "rt"}
        assert not strange, "replicator, sequencer and archiver meet in directories"
        assert not {each for each in others if is_edge(each)}


@pytest.mark.parametrize(
    "path", [f"{package}/{name}.py" for package, names in PURE.items() for name in sorted(names)]
)
def test_pure_modules_touch_neither_clock_nor_disk_nor_chance(path):
    """Values in, values out: so a simulation replays them exactly, and a test needs no machine."""
    modules = {each.split(".")[0] for each in imports(path)}
    assert not modules & NOT_PURE
    assert not re.search(r"\bopen\(", source(path))


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
    assert source("rt/appender.py").count("Durable(") == 1
    made = re.findall(r"Durable\(([^)]*)\)", source("rt/writer.py"))
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
