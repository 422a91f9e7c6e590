"""Awaited: records which nodes this process is waiting for, so that a command can report them."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from rt.net.addresses import address_text

_awaited: Final[dict[object, tuple[str, float]]] = {}  # each is set and removed by one thread


@contextmanager
def awaiting(address: tuple[str, int]) -> Iterator[None]:
    """Record, until the block ends, that this thread is waiting for a node's answer."""
    key = object()
    _awaited[key] = address_text(address), time.monotonic()
    try:
        yield
    finally:
        del _awaited[key]


def awaited(since_s: float) -> list[str]:
    """Return the addresses of nodes awaited for at least `since_s` seconds without an answer.

    Any thread may call this.
    """
    before_s = time.monotonic() - since_s
    found = {where for where, begun_s in list(_awaited.values()) if begun_s <= before_s}
    return sorted(found)
