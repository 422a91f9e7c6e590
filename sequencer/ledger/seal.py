"""Seal: records that a cluster ended its log, so that another one may continue it."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Final

from rt.errors import Misuse, Refused
from rt.text import printable
from sequencer.ledger.instruction import Instruction, Note

SEALED_NOTE: Final = "sealed"
MOVED_TO_MAX: Final = 300  # characters of each text


@dataclass(frozen=True, slots=True)
class Seal:
    """Seal: who ended a cluster's log, and where it continues.

    Attributes:
        by: who sealed it.
        at_ns: when it was sealed, ns since the epoch.
        moved_to: the addresses of the cluster that continues the log, or other text; ""
            while readers are still served here.
    """

    by: str
    at_ns: int
    moved_to: str = ""

    def __post_init__(self) -> None:
        for text in (self.by, self.moved_to):
            if len(text) > MOVED_TO_MAX or printable(text) != text:
                raise Misuse(
                    f"a seal's texts are printable and have at most {MOVED_TO_MAX} characters"
                )

    def text(self) -> str:
        """Return the seal as JSON; equal seals give equal texts.

        >>> Seal("operator ops", 7).text()
        '{"by":"operator ops","at_ns":7,"moved_to":""}'
        """
        return json.dumps(asdict(self), separators=(",", ":"))

    @property
    def refusal(self) -> Refused:
        """The refusal for publishers and for requests that change something."""
        where = f"it continues at {self.moved_to}" if self.moved_to else "it ends here for now"
        return Refused(SEALED_NOTE, f"this cluster's log was sealed by {self.by}; {where}")


def parse_seal(text: str) -> Seal:
    """Parse a seal; `Misuse` if it is malformed.

    >>> parse_seal(Seal("operator ops", 7, "b1:7420").text()).moved_to
    'b1:7420'
    """
    try:
        fields = json.loads(text)
        by, at_ns, moved_to = fields["by"], fields["at_ns"], fields["moved_to"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise Misuse(f"a seal is malformed: {error}") from None
    if not isinstance(by, str) or type(at_ns) is not int or not isinstance(moved_to, str):
        raise Misuse("a seal is malformed: a field is of another type")
    return Seal(by, at_ns, moved_to)


def seal_of(notes: Mapping[str, str]) -> Seal | None:
    """Return the seal among a ledger's notes; None if the log is not sealed."""
    text = notes.get(SEALED_NOTE)
    return None if text is None else _known(text)


def sealed(text: str, by: str, moved_to: str, now_ns: int) -> str | None:
    """Return the text of the note to set; None if the present seal already says the same.

    Args:
        text: the present note; "" while the log is not sealed.
        by: who seals it.
        moved_to: as in `Seal`; "" keeps the present value.
        now_ns: the time, ns since the epoch.

    >>> sealed(Seal("ops", 7, "b1:7420").text(), "n1", "", 8) is None
    True
    """
    known = _known(text) if text else None
    if known is not None and moved_to in ("", known.moved_to):
        return None
    return Seal(by, now_ns, moved_to).text()


def may_follow(notes: Mapping[str, str], instruction: Instruction) -> bool:
    """Whether an instruction may be proposed; in a sealed cluster, only one about the seal."""
    is_seal = isinstance(instruction, Note) and instruction.name == SEALED_NOTE
    return is_seal or SEALED_NOTE not in notes


def demand_unsealed(notes: Mapping[str, str], instruction: Instruction) -> None:
    """Raise `Refused` if the cluster is sealed and this is not a change of its seal."""
    seal = seal_of(notes)
    if seal is not None and not may_follow(notes, instruction):
        raise seal.refusal


def moved_away(notes: Mapping[str, str]) -> Refused | None:
    """Return the refusal for readers if another cluster continues the log, otherwise None."""
    seal = seal_of(notes)
    return seal.refusal if seal is not None and seal.moved_to else None


@lru_cache(maxsize=4)
def _known(text: str) -> Seal:
    try:
        return parse_seal(text)
    except Misuse:  # of a later version: it ends the log all the same
        return Seal("a later version of rt", 0)
