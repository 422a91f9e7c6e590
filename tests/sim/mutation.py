"""The switch for known mistakes: made by name, for a while, then taken back."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

Patch = tuple[Any, str, Any]
MUTANTS: dict[str, Callable[[], list[Patch]]] = {}


def mutant(make: Callable[[], list[Patch]]) -> Callable[[], list[Patch]]:
    """Register a mistake under its function's name; the docstring says what it is."""
    MUTANTS[make.__name__.replace("_", "-")] = make
    return make


@contextmanager
def switched_on(name: str) -> Iterator[None]:
    """Make one mistake for a while."""
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
