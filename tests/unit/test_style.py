"""The house style, held by a test: who imports whom, what is pure, how long things are."""

import ast
import gc
import os
import re
import warnings
from functools import cache

import pytest

from tests.asserting import unasserting_tests
from tests.doors import count, recorded
from tests.layout import (
    PACKAGES,
    ROOT,
    classes,
    cycles,
    documents,
    fields,
    functions,
    imports,
    nodes,
    our_imports,
    package_imports,
    path_of,
    python_files,
    room,
    source,
    tree,
)
from tests.ratchets import CLASSES_WITHOUT_A_THREADS_BLOCK, HABITS, MODULE_CYCLES

# Whatever these folders import, directly or not, is pure as well.
PURE_FOLDERS = ("rt/format/", "sequencer/raft/")
# Modules that are pure though their folder is not.
PURE_MODULES = {
    "archiver/ages.py", "archiver/policy.py", "archiver/decide.py", "archiver/lease.py",
    "archiver/clock.py", "replicator/wire/messages.py", "replicator/wire/codec.py",
    "replicator/wire/decoder.py",
    "replicator/source/source.py", "replicator/sink/sink.py",
    "sequencer/ledger/instruction.py", "sequencer/ledger/ledger.py",
    "sequencer/planning/holdings.py", "sequencer/planning/wants.py", "sequencer/journal/records.py",
}  # fmt: skip
NOT_PURE = {
    "os", "socket", "ssl", "threading", "asyncio", "time", "random", "secrets", "subprocess",
    "fcntl", "select", "logging", "tempfile",
}  # fmt: skip
FUNCTION_LINES_MAX = 70
FUNCTION_LINES_LONG = 40
# A ratchet: it may only become shorter.
LONG_FUNCTIONS: set[str] = set()
# Alarms, which are printed and fail nothing: many lines or fields may be two ideas under one name.
# Where there is one idea, nothing is split to pass a number.
FILE_LINES_MANY, TEST_FILE_LINES_MANY, FIELDS_MANY = 600, 800, 16
# The callers of `recovery.judge`: a file's writer, readers of files that have ended, and `growth`,
# which answers for every reader of a growing one.
JUDGES = {
    "rt/format/recovery.py", "rt/log/write/active_file.py", "rt/log/write/appender.py",
    "rt/log/read/growth.py",
    "rt/inspect/verify.py", "rt/offload/offload.py",
}  # fmt: skip
DURABLE_MAKERS = {"rt/log/write/appender.py", "rt/log/write/syncer.py", "rt/log/write/writer.py"}
# A class that makes one of these is used by more than one thread, and says who may touch what.
THREADED = re.compile(
    r"\b(threading\.(Thread|Lock|RLock|Condition|Semaphore)|ThreadPoolExecutor)\("
)


CODE = python_files(*PACKAGES)
TESTS = python_files("tests")


@pytest.fixture(scope="module", autouse=True)
def parsed():
    """Parse all files with the garbage collector off: it would walk the trees again and again."""
    gc.disable()
    for path in CODE + TESTS:
        nodes(path)
    gc.freeze()
    gc.enable()


def test_imports_go_down_the_table_of_ranks():
    """A stranger sees from a folder's place what may be touched there, and what depends on it."""
    found = []
    for path in CODE:
        rank, entry = room(path)
        for other in our_imports(path):
            other_rank, other_entry = room(other)
            is_near = other_entry == entry or (rank, other_rank) == (0, 0)
            if other_rank >= rank and not is_near:
                found.append(f"{path} imports {other}")
    assert not found


@pytest.mark.parametrize(
    "command", ["look/status", "look/check", "data/push", "data/pull", "manage/policy"]
)
def test_commands_of_clients_load_no_node(command):
    """A constant in the wrong file made `rt status` load the consensus, and start half as fast."""
    seen, left = set(), {f"rt/cli/{command}.py"}
    while left:
        seen.add(each := left.pop())
        at_once = {node.module for node in tree(each).body if isinstance(node, ast.ImportFrom)}
        left |= {path_of(module) for module in at_once} - seen - {None}
    parts = ("sequencer/raft/engine", "rt/node/agree/", "rt/node/host/", "rt/node/ingest/")
    assert not [each for each in seen if each.startswith(parts)]


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


def test_functions_are_short():
    """A function that does not fit on a screen is not understood."""
    assert not [
        f"{path}:{function.name} has {lines} lines"
        for path in CODE + TESTS
        for function in functions(path)
        if (lines := function.end_lineno - function.lineno + 1) > FUNCTION_LINES_MAX
    ]


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


@pytest.mark.filterwarnings("default::UserWarning")
def test_long_files_and_classes_of_many_fields_are_named():
    """A run prints where two ideas may share a name; no idea is split to pass a number."""
    for path in CODE + TESTS:
        many = TEST_FILE_LINES_MANY if path.startswith("tests") else FILE_LINES_MANY
        if (lines := source(path).count("\n")) > many:
            warnings.warn(f"{path} has {lines} lines", UserWarning, stacklevel=1)
        for owner in classes(path) if path in CODE else ():
            if (count := len(fields(owner))) > FIELDS_MANY:
                warnings.warn(f"{path}:{owner.name} has {count} fields", UserWarning, stacklevel=1)


def test_no_public_class_name_is_used_twice():
    """Identity once meant three things; a name that means one thing can be searched for."""
    seen: dict[str, str] = {}
    for path in CODE:
        for node in tree(path).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                assert node.name not in seen, f"{node.name}: {path} and {seen[node.name]}"
                seen[node.name] = path


def test_classes_used_by_several_threads_say_who_may_touch_what():
    """A field that two threads touch by accident is a fault that no test repeats."""
    unstated = {
        f"{path}:{owner.name}"
        for path in CODE
        if THREADED.search(source(path))
        for owner in classes(path)
        if THREADED.search(ast.unparse(owner))
        and "Threads:" not in (ast.get_docstring(owner) or "")
    }
    assert unstated <= CLASSES_WITHOUT_A_THREADS_BLOCK


def test_packages_and_modules_form_no_cycle():
    """Two modules that import each other are one module with two names."""
    assert not cycles(package_imports())
    modules = {path: our_imports(path) for path in CODE}
    assert all(each in MODULE_CYCLES for each in cycles(modules))


PROSE = [*CODE, *TESTS, *python_files("benchmarks", "examples"), *documents()]


@cache
def with_habits():
    """Return the files that have any habit: one search of a file finds what sixteen would."""
    exempt = {"tests/ratchets.py", "CONTRIBUTING.md"}
    any_of = re.compile("|".join(HABITS))
    return [each for each in PROSE if each not in exempt and any_of.search(source(each).lower())]


@pytest.mark.parametrize("habit", HABITS)
def test_habits_of_translated_prose_do_not_return(habit):
    """English that needs a second reading costs every reader after the first."""
    found = [
        f"{path}:{number}: {line.strip()}"
        for path in with_habits()
        for number, line in enumerate(source(path).splitlines(), 1)
        if re.search(habit, line, re.IGNORECASE)
    ]
    assert len(found) <= HABITS[habit], "\n".join(found)


MENTIONED = re.compile(r"`((?:rt|replicator|sequencer|archiver|tests|benchmarks)/[\w/]+\.py)")


@pytest.mark.parametrize("path", documents())
def test_files_that_documents_name_exist(path):
    """A reference to a file that has moved sends the reader away."""
    named = set(MENTIONED.findall(source(path)))
    assert not {each for each in named if not (ROOT / each).exists()}


def test_packages_hold_no_assert_no_wide_except_and_no_loose_end():
    """`python -O` drops an assert; a wide except hides the error that mattered."""
    assert not [
        f"{path}:{node.lineno}: {what}" for path in CODE for node, what in _loose_ends(path)
    ]
    assert not [path for path in CODE if re.search(r"\b(TODO|FIXME|XXX)\b", source(path))]


def _loose_ends(path):
    """Yield the asserts of a file, and its handlers of everything that are not in `main`."""
    in_main = {
        id(node)
        for function in functions(path)
        if function.name == "main"
        for node in ast.walk(function)
    }
    for node in nodes(path):
        if isinstance(node, ast.Assert):
            yield node, "an assert"
        if isinstance(node, ast.ExceptHandler) and id(node) not in in_main and not _raises(node):
            caught = ast.unparse(node.type) if node.type else "everything"
            if caught in ("everything", "Exception", "BaseException"):
                yield node, f"catches {caught}"


def _raises(handler):
    """Whether a handler passes on what it caught: it only tidies up."""
    last = handler.body[-1]
    return isinstance(last, ast.Raise) and last.exc is None


def test_durability_is_made_only_where_something_was_synced():
    """An acknowledgement is built from it; an invented one promises what is not so."""
    makers = {path for path in CODE if re.search(r"\bDurable\(", source(path))}
    assert makers <= DURABLE_MAKERS
    assert source("rt/log/write/appender.py").count("Durable(") == 1
    made = re.findall(
        r"Durable\(([^)]*)\)", source("rt/log/write/writer.py") + source("rt/log/write/syncer.py")
    )
    # the end as recovery found it, and a wish, which is compared and never given out
    assert sorted(made) == ["log.end", "target"]


def test_what_a_bad_frame_means_is_decided_in_one_place():
    """It was decided in three; one of them called a damaged log complete."""
    assert {path for path in CODE if re.search(r"\bjudge\(", source(path))} == JUDGES


def test_every_test_says_why_anyone_would_care():
    """A test that fails in two years is read by someone who was not there."""
    tests = [
        (f"{path}::{function.name}", function)
        for path in TESTS
        if os.path.basename(path).startswith("test_")
        for function in functions(path)
        if function.name.startswith("test_")
    ]
    assert not [name for name, function in tests if not ast.get_docstring(function)]
    assert not [name for name, test in tests if test.name.count("_") < 3], "not a sentence"


def test_every_feature_names_tests_that_exist():
    """A row that claims a feature of another system shows where it is held."""
    for row in rows_of("docs/FEATURES.md", at_least=50):
        named = re.findall(r"`(tests/[^`]+)`", row)
        is_claim = not re.search(r"not (?:yet|here|needed)|^\| feature |Python only", row)
        assert named or not is_claim, row
        demand_tests(named, row)


def test_every_promise_names_a_test_that_exists():
    """A promise without a test is a hope."""
    for row in rows_of("docs/SAFETY.md", at_least=40):
        if row != "| promise | guarded by |":
            named = re.findall(r"`([^`]+::[^`]+)`", row)
            assert named, f"no test is named: {row}"
            demand_tests(named, row)


def rows_of(document, at_least):
    """Return the lines of a document's tables."""
    rows = [line for line in source(document).splitlines() if line.startswith("| ")]
    assert len(rows) > at_least
    return rows


def demand_tests(named, row):
    """Fail if a named test is not there, or if none of them runs wherever the suite does."""
    assert set(named) <= set(all_tests()), row
    assert not named or any(all_tests()[each] for each in named), f"may be skipped: {row}"


def whether_always_run(path):
    """Return the tests of a file, and the file, with whether nothing that is missing skips them."""
    marks = [ast.unparse(each) for each in tree(path).body if isinstance(each, ast.Assign)]
    may_be_skipped = any("pytestmark" in each and "skipif" in each for each in marks)
    found = {path: not may_be_skipped}
    lines = source(path).splitlines()
    for function in functions(path):
        first = min([function, *function.decorator_list], key=lambda each: each.lineno)
        text = "\n".join(lines[first.lineno - 1 : function.end_lineno])
        is_skipped = re.search(r"mark\.skip|needs_raftos|pytest\.skip\(", text)
        found[f"{path}::{function.name}"] = not (may_be_skipped or is_skipped)
    return found


@cache
def all_tests():
    """Return the tests of all files: not at import, which six workers would wait for."""
    return {name: runs for path in TESTS for name, runs in whether_always_run(path).items()}


def test_no_test_uses_more_private_names_than_it_did():
    """A test that goes around a door breaks where nothing changed for users (tests/doors.py)."""
    allowed = recorded()
    found = {path: count(path) for path in TESTS}
    assert not {path: number for path, number in found.items() if number > allowed.get(path, 0)}


def test_unit_tests_do_not_sleep():
    """What a unit test waits for is an event or a clock it sets; the rest belongs elsewhere."""
    assert not [
        f"{path}:{node.lineno}"
        for path in TESTS
        if path.startswith("tests/unit/test_") and "sleep" in source(path)
        for node in nodes(path)
        if isinstance(node, ast.Call) and ast.unparse(node.func) in {"time.sleep", "sleep"}
    ]


def test_every_test_asserts_something():
    """A test that cannot fail is read, run and trusted, and holds nothing."""
    assert not [*unasserting_tests()]
