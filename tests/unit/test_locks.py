"""The locks: they hold what pyproject.toml asks for, with hashes, and name no index."""

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tools.lock import LOCKS

ROOT = Path(__file__).parents[2]
ADVICE = "run: pip install uv && python tools/lock.py"


def locked(name):
    """Return the versions of each package in a lock."""
    found = {}
    for line in (ROOT / "locks" / f"{name}.txt").read_text().splitlines():
        if not line.startswith(("#", " ")):
            requirement = Requirement(line.removesuffix("\\").strip())
            [specifier] = requirement.specifier
            found.setdefault(requirement.name, []).append(specifier.version)
    return found


def wanted(extras, project):
    """Return what a set of extras asks for, those of extras of our own included."""
    optional = project["optional-dependencies"]
    texts = [*project["dependencies"], *(each for extra in extras for each in optional[extra])]
    found = [Requirement(text) for text in texts]
    own = [each for each in found if each.name == project["name"]]
    inner = {extra for each in own for extra in each.extras}
    return [each for each in found if each not in own] + (wanted(inner, project) if inner else [])


@pytest.mark.parametrize("name", LOCKS)
def test_a_lock_has_a_version_of_everything_that_is_asked_for(name):
    """A dependency that was added without it would be missing from `make test`."""
    with open(ROOT / "pyproject.toml", "rb") as file:
        project = tomllib.load(file)["project"]
    versions = locked(name)
    for requirement in wanted(LOCKS[name], project):
        found = versions.get(requirement.name.lower())
        assert found, f"{requirement.name} is not in locks/{name}.txt; {ADVICE}"
        assert all(requirement.specifier.contains(each) for each in found), (requirement, ADVICE)


@pytest.mark.parametrize("name", [*LOCKS, "build", "raftos"])
def test_a_lock_has_hashes_and_names_no_index(name):
    """It has to work with the index that pip is configured with, whichever that is."""
    text = (ROOT / "locks" / f"{name}.txt").read_text()
    assert "://" not in text
    assert "-index" not in text
    packages = re.split(r"^(?=[a-z0-9])", text, flags=re.MULTILINE)[1:]
    assert packages
    assert all(re.search(r"--hash=sha256:[0-9a-f]{64}", each) for each in packages)
