"""Switches known mistakes on by name for a while, and off again."""

import inspect
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

Patch = tuple[Any, str, Any]
MUTANTS: dict[str, Callable[[], list[Patch]]] = {}
TESTED: dict[str, str] = {}  # by mistake, the test that notices it


def mutant(make: Callable[[], list[Patch]]) -> Callable[[], list[Patch]]:
    """Register a mistake under its function's name; the docstring says what it is."""
    MUTANTS[make.__name__.replace("_", "-")] = make
    return make


def noticed_by(test: str) -> Callable[[Callable[[], list[Patch]]], Callable[[], list[Patch]]]:
    """Name the test that notices a mistake which worlds show too rarely to look for it there."""

    def note(make: Callable[[], list[Patch]]) -> Callable[[], list[Patch]]:
        TESTED[make.__name__.replace("_", "-")] = test
        return make

    return note


def rewritten(owner: Any, name: str, right: str, wrong: str) -> Patch:
    """Return a patch that replaces a piece of a function's source text."""
    function = vars(owner)[name]
    source = textwrap.dedent(inspect.getsource(function))
    if source.count(right) != 1:
        raise AssertionError(f"{name} has {right!r} {source.count(right)} times, not once")
    code = compile(source.replace(right, wrong), function.__code__.co_filename, "exec")
    made: dict[str, Any] = {}
    exec(code, function.__globals__, made)
    return owner, name, made[name]


@contextmanager
def switched_on(name: str) -> Iterator[None]:
    """Make one mistake until the block ends."""
    patches = MUTANTS[name]() if name else []
    missing = object()
    before = [
        (owner, attribute, vars(owner).get(attribute, missing)) for owner, attribute, _ in patches
    ]
    try:
        for owner, attribute, value in patches:
            setattr(owner, attribute, value)
        yield
    finally:
        for owner, attribute, value in before:
            if value is missing:
                delattr(owner, attribute)
            else:
                setattr(owner, attribute, value)
