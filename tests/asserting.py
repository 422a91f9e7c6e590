"""Finds tests that assert nothing: no `assert`, no `pytest.raises`, no helper that has one."""

import ast
import functools
from collections.abc import Iterator

from tests.layout import nodes, python_files, tree

EXPECTS = {"pytest.raises", "pytest.warns", "pytest.fail"}
# It prints where two ideas may share a name, and is to fail nothing.
PRINTS = "test_long_files_and_classes_of_many_fields_are_named"

Place = tuple[str, ast.AST]  # a file, and what is defined in it


def unasserting_tests() -> Iterator[str]:
    """Yield file and name of each test that reaches no assertion by the names that it uses."""
    for path in _files():
        if path.rpartition("/")[2].startswith("test_"):
            for test in _tests(path):
                if test.name != PRINTS and not _asserts(path, test):
                    yield f"{path}:{test.lineno}: {test.name}"


def _tests(path: str) -> Iterator[ast.FunctionDef]:
    for node in nodes(path):
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            yield node


def _asserts(path: str, test: ast.AST) -> bool:
    """Whether a test, or anything that it refers to by name, directly or not, has an assertion."""
    seen: set[int] = set()
    left: list[Place] = [(path, test)]
    while left:
        where, node = left.pop()
        if id(node) not in seen:
            seen.add(id(node))
            if _has_assertion(node):
                return True
            left += _named_in(where, node)
    return False


@functools.cache
def _has_assertion(node: ast.AST) -> bool:
    for each in ast.walk(node):
        if isinstance(each, ast.Assert):
            return True
        called = each.func if isinstance(each, ast.Call) else None
        if isinstance(called, ast.Attribute) and ast.unparse(called) in EXPECTS:
            return True
        if isinstance(each, ast.Raise) and each.exc is not None:
            made = ast.unparse(each.exc)
            if made.startswith(("AssertionError", "Violation")):
                return True
    return False


def _named_in(path: str, node: ast.AST) -> Iterator[Place]:
    """Yield the definitions, fixtures too, that names in a piece of code may refer to."""
    for owner, name in _names(node):
        imported = _imported(path).get(owner)
        if imported is not None and imported[1] is None:
            yield from _defined(imported[0], name)
        elif owner:
            yield from _methods(path, name)
        else:
            yield from _defined(path, name)


@functools.cache
def _names(node: ast.AST) -> set[tuple[str, str]]:
    """Return pairs (owner, name) of a piece of code, as ("math", "pi"); the owner may be ""."""
    found: set[tuple[str, str]] = set()
    for each in ast.walk(node):
        if isinstance(each, ast.Name):
            found.add(("", each.id))
        elif isinstance(each, ast.arg):
            found.add(("", each.arg))
        elif isinstance(each, ast.Attribute):
            found.add((each.value.id if isinstance(each.value, ast.Name) else "?", each.attr))
    return found


def _defined(path: str, name: str) -> list[Place]:
    """Return what a file defines under a name, or imports under it from another file of tests."""
    imported = _imported(path).get(name)
    if imported is not None and imported[1] is not None:
        return _defined(*imported)
    return [(path, each) for each in _definitions(path).get(name, [])]


@functools.cache
def _methods(path: str, name: str) -> list[Place]:
    """Return the methods of this name, of any class, in a file and in the files it imports."""
    return [(other, each) for other in _reached(path) for each in _own_methods(other).get(name, [])]


@functools.cache
def _own_methods(path: str) -> dict[str, list[ast.AST]]:
    found: dict[str, list[ast.AST]] = {}
    for node in nodes(path):
        if isinstance(node, ast.ClassDef):
            for each in node.body:
                if isinstance(each, ast.FunctionDef):
                    found.setdefault(each.name, []).append(each)
    return found


@functools.cache
def _definitions(path: str) -> dict[str, list[ast.AST]]:
    """Return the functions, classes and top-level values of a file by name."""
    found: dict[str, list[ast.AST]] = {}
    for node in nodes(path):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.setdefault(node.name, []).append(node)
    for node in tree(path).body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        for target in targets:
            if isinstance(target, ast.Name):
                found.setdefault(target.id, []).append(node)
    return found


@functools.cache
def _imported(path: str) -> dict[str, tuple[str, str | None]]:
    """Return what a file imports from files of tests, by its name: the file, and the name there.

    The name there is None for an imported module.
    """
    found: dict[str, tuple[str, str | None]] = {}
    for node in nodes(path):
        if isinstance(node, ast.Import):
            for each in node.names:
                if file := _file_of(each.name):
                    found[each.asname or each.name] = file, None
        elif isinstance(node, ast.ImportFrom):
            package = path.split("/")[: -node.level] if node.level else []
            module = ".".join([*package, *([node.module] if node.module else [])])
            for each in node.names:
                name = each.asname or each.name
                if file := _file_of(f"{module}.{each.name}"):
                    found[name] = file, None
                elif file := _file_of(module):
                    found[name] = file, each.name
    return found


@functools.cache
def _reached(path: str) -> frozenset[str]:
    """Return a file of tests, and all files of tests that it imports, directly or not."""
    seen: set[str] = set()
    left = {path}
    while left:
        each = left.pop()
        seen.add(each)
        left |= {file for file, _ in _imported(each).values()} - seen
    return frozenset(seen)


@functools.cache
def _file_of(module: str) -> str | None:
    """Return the path of a module among the tests; None if it is not one of them."""
    path = module.replace(".", "/")
    tries = (f"{path}.py", f"tests/{path}.py", f"{path}/__init__.py")
    return next((each for each in tries if each in _files()), None)


@functools.cache
def _files() -> dict[str, None]:
    return dict.fromkeys(python_files("tests"))
