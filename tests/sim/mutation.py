"""Switches known mistakes on by name for a while, and off again."""

import functools
import inspect
import textwrap
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from traceback import walk_tb
from types import FunctionType
from typing import Any

Patch = tuple[Any, str, Any]
OUTDATED = (AttributeError, NameError, TypeError)  # what code raises that was written for another
_FILES = str(Path(__file__).parent) + "/"
MUTANTS: dict[str, Callable[[], list[Patch]]] = {}
TESTED: dict[str, str] = {}  # by mistake, the test that notices it
stale: list[str] = []  # errors of the last mistake's own code, which no longer fits the product


class StaleError(Exception):
    """A mistake does not fit the code any more, or a world fails without it: nothing is shown."""


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


def rewritten(owner: Any, name: str, right: str, wrong: str, *more: str) -> Patch:
    """Return a patch that replaces a piece of a function's source text, and `more` in pairs."""
    function = vars(owner)[name]
    source = textwrap.dedent(inspect.getsource(function))
    for old, new in zip((right, *more[::2]), (wrong, *more[1::2]), strict=True):
        if source.count(old) != 1:
            raise AssertionError(f"{name} has {old!r} {source.count(old)} times, not once")
        source = source.replace(old, new)
    code = compile(source, function.__code__.co_filename, "exec")
    made: dict[str, Any] = {}
    exec(code, function.__globals__, made)
    return owner, name, made[name]


def switched_on(name: str) -> AbstractContextManager[None]:
    """Make one mistake until the block ends."""
    stale.clear()
    return patched(MUTANTS[name]() if name else [])


@contextmanager
def patched(patches: list[Patch]) -> Iterator[None]:
    """Apply patches until the block ends."""
    missing = object()
    before = [
        (owner, attribute, vars(owner).get(attribute, missing)) for owner, attribute, _ in patches
    ]
    try:
        for owner, attribute, value in patches:
            setattr(owner, attribute, _noted(value))
        yield
    finally:
        for owner, attribute, value in before:
            if value is missing:
                delattr(owner, attribute)
            else:
                setattr(owner, attribute, value)


def _noted(value: Any) -> Any:
    """Return a mistake that adds to `stale` the errors of its own code, even if they are caught."""
    if isinstance(value, property):
        getter, setter = (each and _noted(each) for each in (value.fget, value.fset))
        return property(getter, setter)
    if not isinstance(value, FunctionType) or not value.__code__.co_filename.startswith(_FILES):
        return value

    @functools.wraps(value)
    def noted(*args: Any, **named: Any) -> Any:
        try:
            return value(*args, **named)
        except OUTDATED as error:
            *_, (frame, _) = walk_tb(error.__traceback__)
            if frame.f_code.co_filename.startswith(_FILES):
                stale.append(f"{type(error).__name__}: {error}")
            raise

    return noted
