"""The source distribution: what a packager gets has all that is needed to build, test and read."""

import subprocess
import sys
import tarfile

import pytest

from tests.layout import ROOT

BUILD = "from setuptools import setup; setup()"


@pytest.fixture(scope="module")
def names(tmp_path_factory):
    """The files of an sdist that is made of this tree."""
    made = tmp_path_factory.mktemp("sdist")
    command = [sys.executable, "-c", BUILD, "-q", "egg_info", "-e", made, "sdist", "-d", made]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    [path] = made.glob("*.tar.gz")
    with tarfile.open(path) as file:
        return {name.partition("/")[2] for name in file.getnames()}


@pytest.mark.parametrize(
    "name",
    [
        "CHANGELOG.md", "CONTRIBUTING.md", "LICENSE", "Makefile", "README.md", "pyproject.toml",
        "deploy/container/Containerfile", "deploy/grafana/rt-dashboard.json",
        "deploy/prometheus/rt-rules.yml", "mkdocs.yml", "rt/py.typed", "rt/web/page/page.js",
        "tests/conftest.py", "tools/sbom.py",
    ],
)  # fmt: skip
def test_what_a_packager_needs_is_there(names, name):
    """It lacked the documents and the changelog."""
    assert (ROOT / name).exists(), name
    assert name in names


@pytest.mark.parametrize("folder", ["docs", "docs/adr", "examples", "locks", "tests/transcripts"])
def test_whole_folders_are_there(names, folder):
    """A new document must not be left out because no list names it."""
    here = {
        f"{folder}/{path.name}" for path in (ROOT / folder).iterdir()
        if path.is_file() and path.suffix in {".md", ".py", ".txt"}
    }  # fmt: skip
    assert len(here) > 2
    assert here <= names, here - names
