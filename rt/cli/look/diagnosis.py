"""Diagnosis: one finding of `rt doctor`, how bad it is, and what to do about it."""

from dataclasses import dataclass
from enum import StrEnum


class Grade(StrEnum):
    """How bad a finding is."""

    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """One finding.

    Attributes:
        about: One word: `clocks`, `certificates`, `ports` and so on.
        grade: How bad it is.
        said: What was found, a sentence without its full stop.
        advice: What to do; "" if nothing has to be done.
    """

    about: str
    grade: Grade
    said: str
    advice: str = ""


def fine(about: str, said: str) -> Diagnosis:
    """Return a finding that needs no action."""
    return Diagnosis(about, Grade.OK, said)


def warning(about: str, said: str, advice: str) -> Diagnosis:
    """Return a finding that is or will become a problem."""
    return Diagnosis(about, Grade.WARNING, said, advice)


def problem(about: str, said: str, advice: str) -> Diagnosis:
    """Return a finding that stops something from working."""
    return Diagnosis(about, Grade.PROBLEM, said, advice)
