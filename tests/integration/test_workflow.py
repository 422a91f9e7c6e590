"""The workflow of the forge: what it runs is here, and covers every Python and extra we name."""

import re
import subprocess
import tomllib

import pytest

from tests.layout import ROOT

yaml = pytest.importorskip("yaml")  # of what another package of the lock file needs
EXPRESSION = re.compile(r"\$\{\{.*?\}\}")


@pytest.fixture(scope="module")
def job():
    """The one job."""
    workflow = yaml.safe_load((ROOT / ".github/workflows/test.yml").read_text(encoding="utf-8"))
    [job] = workflow["jobs"].values()
    return job


@pytest.fixture(scope="module")
def project():
    """The table `[project]`."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def commands(job):
    """The scripts of all steps."""
    return [step["run"] for step in job["steps"] if "run" in step]


def test_every_python_that_we_name_is_tested(job, project):
    """A classifier is a promise."""
    begin = "Programming Language :: Python :: 3."
    named = {each.rpartition(" ")[2] for each in project["classifiers"] if each.startswith(begin)}
    matrix = job["strategy"]["matrix"]
    assert named == set(matrix["python"])
    lowest = {each["python"] for each in matrix["include"] if each["dependencies"] == "lowest"}
    assert {f">={each}" for each in lowest} == {project["requires-python"]}


def test_every_script_is_one_that_a_shell_reads(job):
    """A quote that does not end is found out an hour after the push."""
    for script in commands(job):
        text = EXPRESSION.sub("word", script)
        done = subprocess.run(["bash", "-n"], input=text.encode(), check=False, capture_output=True)
        assert (done.returncode, done.stderr) == (0, b""), script


@pytest.mark.parametrize("locked", ["", "yes"])
def test_the_targets_it_makes_are_there(job, locked):
    """With and without the lock file, as the matrix has it."""
    made = [each for script in commands(job) for each in re.findall(r"^make (\w+) LOCKED=", script)]
    assert made == ["test"]
    for target in made:
        command = ["make", "--dry-run", target, f"LOCKED={locked}"]
        subprocess.run(command, cwd=ROOT, capture_output=True, check=True)


def test_the_lowest_versions_are_pinned_for_every_extra_that_make_installs(job, project):
    """What is not pinned is tested in its newest version, which the others do anyway."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    [installed] = re.findall(r"'\.\[([\w,]*\bdev\b[\w,]*)\]'", makefile)
    [compiled] = [script for script in commands(job) if "--resolution lowest" in script]
    pinned = set(re.findall(r"--extra (\w+)", compiled))
    assert pinned <= project["optional-dependencies"].keys()
    assert set(installed.split(",")) <= pinned
