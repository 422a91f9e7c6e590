"""Diagnosis: one thing that `rt doctor` looked at, how it is, and what to do about it."""

from dataclasses import dataclass
from enum import StrEnum


class Grade(StrEnum):
    """How something is."""

    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """One thing that was looked at.

    Attributes:
        about: one word: `clocks`, `certificates`, `ports` and so on.
        grade: how it is.
        said: what was found, a sentence without its full stop.
        advice: what to do; "" if nothing has to be done.
    """

    about: str
    grade: Grade
    said: str
    advice: str = ""


def fine(about: str, said: str) -> Diagnosis:
    """Return a finding that is well."""
    return Diagnosis(about, Grade.OK, said)


def warning(about: str, said: str, advice: str) -> Diagnosis:
    """Return a finding that will be a problem, or may be one."""
    return Diagnosis(about, Grade.WARNING, said, advice)


def problem(about: str, said: str, advice: str) -> Diagnosis:
    """Return a finding that keeps something from working."""
    return Diagnosis(about, Grade.PROBLEM, said, advice)
