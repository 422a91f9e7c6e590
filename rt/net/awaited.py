"""Awaited: the nodes whose answers this process is waiting for, for a command to report."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from rt.net.addresses import address_text

_awaited: Final[dict[object, tuple[str, float]]] = {}  # each is set and removed by one thread


@contextmanager
def awaiting(address: tuple[str, int]) -> Iterator[None]:
    """Record that this thread waits for a node's answer, until the block ends."""
    key = object()
    _awaited[key] = address_text(address), time.monotonic()
    try:
        yield
    finally:
        del _awaited[key]


def awaited(since_s: float) -> list[str]:
    """Return the addresses whose answers threads have awaited for `since_s` seconds or longer.

    Any thread may call this.
    """
    before_s = time.monotonic() - since_s
    found = {where for where, begun_s in list(_awaited.values()) if begun_s <= before_s}
    return sorted(found)
