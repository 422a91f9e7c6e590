"""Awaited: which nodes this process waits for an answer from, for a command that says so."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

_awaited: Final[dict[object, tuple[str, float]]] = {}  # each is set and removed by one thread


@contextmanager
def awaiting(address: tuple[str, int]) -> Iterator[None]:
    """Count a node among those that are waited for."""
    key = object()
    _awaited[key] = f"{address[0]}:{address[1]}", time.monotonic()
    try:
        yield
    finally:
        del _awaited[key]


def awaited(since_s: float) -> list[str]:
    """Return the addresses that have been waited for this long; any thread may ask."""
    before_s = time.monotonic() - since_s
    found = {where for where, begun_s in list(_awaited.values()) if begun_s <= before_s}
    return sorted(found)
