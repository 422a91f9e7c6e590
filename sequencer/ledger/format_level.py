"""FormatLevel: which formats a cluster may use; raised by agreement, and never lowered.

A node reads every level up to its own, `NEWEST`, and writes only what the cluster's level allows.
So after an update of all nodes, an earlier version still reads everything until an operator raises
the level (`rt cluster upgrade finalize`). docs/adr/0038-levels.md says why.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Final, NamedTuple

from rt.errors import Misuse, Refused
from rt.text import printable

LEVEL_NOTE: Final = "level"
# Earlier versions agreed on this note instead once every member could read headers.
HEADERS_NOTE: Final = "headers"
CODE: Final = "level"  # of a refusal because the cluster's level is too low
OLDEST: Final = 7  # the level of a cluster that has agreed on none
CARRYING: Final = 9
HEADERS: Final = 10
SEALING: Final = 11
COUNTING: Final = 12
NEWEST: Final = COUNTING
_LEVELS_END: Final = 1 << 16
_NS_END: Final = 1 << 63
_BY_MAX: Final = 300  # characters


class Feature(NamedTuple):
    """Feature: what a level allows, and the first version of rt that can read this level."""

    since: str
    words: str


FEATURES: Final[Mapping[int, Feature]] = {
    CARRYING: Feature("0.1.0", "small messages travel inside the instructions that merge them"),
    HEADERS: Feature("0.1.0", "messages may have headers"),
    SEALING: Feature("0.2.0", "the log can be sealed, and continued by another cluster"),
    COUNTING: Feature("0.2.0", "a policy may limit the number of messages that are kept"),
}


@dataclass(frozen=True, slots=True)
class FormatLevel:
    """FormatLevel: the newest formats that a cluster may use, and who raised it.

    Attributes:
        level: a version of the nodes' protocol, at least `OLDEST`.
        by: who raised it.
        at_ns: when the level was raised, ns since the epoch.
    """

    level: int
    by: str
    at_ns: int

    def text(self) -> str:
        """Return the level as JSON; equal levels give equal texts.

        >>> FormatLevel(11, "operator ops", 7).text()
        '{"level":11,"by":"operator ops","at_ns":7}'
        """
        return json.dumps(asdict(self), separators=(",", ":"))


def parse_level(text: str) -> FormatLevel:
    """Parse a level; `Misuse` if it is malformed.

    >>> parse_level(FormatLevel(11, "operator ops", 7).text()).level
    11
    """
    try:
        fields = json.loads(text)
        level, by, at_ns = fields["level"], fields["by"], fields["at_ns"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise Misuse(f"a level is malformed: {error}") from None
    if type(level) is not int or type(at_ns) is not int or not isinstance(by, str):
        raise Misuse("a level is malformed: a field is of another type")
    is_possible = OLDEST <= level < _LEVELS_END and 0 <= at_ns < _NS_END
    if not is_possible or len(by) > _BY_MAX or printable(by) != by:
        raise Misuse("a level is malformed: a field is out of range")
    return FormatLevel(level, by, at_ns)


def level_of(notes: Mapping[str, str]) -> int:
    """Return the level of a ledger with these notes; one above `NEWEST` if it is unknown.

    >>> level_of({}), level_of({HEADERS_NOTE: "1"})
    (7, 10)
    """
    text = notes.get(LEVEL_NOTE)
    if text is None:
        return HEADERS if HEADERS_NOTE in notes else OLDEST
    return _known(text)


def may_carry(notes: Mapping[str, str]) -> bool:
    """Whether a cluster with these notes may carry small updates in its instructions."""
    return level_of(notes) >= CARRYING


def demand_level(notes: Mapping[str, str], level: int) -> None:
    """Raise `Refused` if the level of a cluster with these notes is below `level`."""
    known = level_of(notes)
    if known < level:
        words = f"level {level} of the cluster's formats is needed for this, and it has {known}"
        raise Refused(
            CODE,
            f"{words}; rt cluster upgrade status says what is in the way, "
            "and rt cluster upgrade finalize raises it",
        )


def demand_readable_level(notes: Mapping[str, str], where: str) -> None:
    """Raise `Misuse` if a cluster with these notes may use formats that this version cannot read.

    Args:
        notes: the ledger's notes.
        where: the node's directory, for the message.
    """
    level = level_of(notes)
    if level > NEWEST:
        raise Misuse(
            f"{where}: this node's cluster was upgraded to level {level} of its formats, and this "
            f"version of rt reads up to {NEWEST}; start the node with a later version"
        )


@lru_cache(maxsize=1024)  # a process may serve hundreds of streams
def _known(text: str) -> int:
    try:
        return parse_level(text).level
    except Misuse:  # of a later version, which this one cannot judge
        return NEWEST + 1
