"""Readable notes: parses the notes of one kind, and skips those of newer versions."""

import logging
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Final, TypeVar

from rt.errors import Misuse
from rt.names import shown
from rt.text import printable

_log: Final = logging.getLogger("rt.node")

Parsed = TypeVar("Parsed")


def readable(
    notes: Mapping[str, str], kind: str, parse: Callable[[str], Parsed]
) -> tuple[list[Parsed], list[str]]:
    """Return the readable notes of a kind, sorted by name, and the names of unreadable ones.

    A newer version's note must not stop a node: the node would stop again after every start.

    Args:
        notes: the ledger's notes.
        kind: prefix of the names of these notes.
        parse: raises `Misuse` for a text that it cannot read.
    """
    found, unreadable = [], []
    for name in sorted(each for each in notes if each.startswith(kind)):
        try:
            found.append(parse(notes[name]))
        except Misuse as error:
            _say(name, str(error))
            unreadable.append(name)
    return found, unreadable


@lru_cache(256)  # notes are read several times a second
def _say(name: str, why: str) -> None:
    _log.error("the note %s is unknown to this version (%s)", shown(name), printable(why))
