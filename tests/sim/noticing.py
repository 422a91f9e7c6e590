"""Noticing: runs a mistake's own test, with the mistake made by this module as a pytest plugin.

A mistake that no longer fits the code fails its test by a TypeError or the like, which proves
nothing.
"""

import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from .mutants import switched_on
from .mutation import OUTDATED, TESTED, StaleError, stale

_ROOT = Path(__file__).parents[2]
_NAME = "RT_MISTAKE"
_NOT_OURS = tuple(f"E   {each.__name__}" for each in OUTDATED)
_STALE = "the mistake's own code fails: "
_FAILED = 1  # pytest's exit code; other codes say that no test ran


def is_noticed(mutant: str) -> bool:
    """Return whether a mistake makes its test fail.

    Raises:
        StaleError: the mistake no longer fits the code.
    """
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", __name__, f"tests/{TESTED[mutant]}"],
        cwd=_ROOT, env={**os.environ, _NAME: mutant}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if found := [line for line in ran.stdout.splitlines() if line.startswith((_STALE, *_NOT_OURS))]:
        raise StaleError(f"{mutant} no longer fits the code: {found[0]}")
    return ran.returncode == _FAILED


def pytest_configure(config: pytest.Config) -> None:
    """Make the mistake until all tests have run."""
    made = ExitStack()
    made.enter_context(switched_on(os.environ[_NAME]))
    config.add_cleanup(made.close)
    config.add_cleanup(lambda: print(_STALE, stale[0]) if stale else None)
