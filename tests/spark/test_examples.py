"""The package as users install it: Spark finds its formats by itself, and the examples run."""

import os
import shutil
import subprocess
import sys
import sysconfig

import pytest

pytest.importorskip("pyspark")

from tests.spark.cluster import python_without_rt

pytestmark = pytest.mark.spark
ROOT = os.path.join(os.path.dirname(__file__), "..", "..")
JOB = os.path.join(os.path.dirname(__file__), "installed_job.py")
BUILD = "from setuptools import setup; setup()"


def install(directory):
    """Build the packages as a wheel has them and put them into a new environment; its Python."""
    python = python_without_rt(directory)
    tree, base = directory / "tree", directory / "bare"
    tree.mkdir()
    for name in ("pyproject.toml", "README.md"):
        shutil.copy(os.path.join(ROOT, name), tree)
    for name in ("rt", "replicator", "sequencer", "archiver", "pyspark_rt", "pyspark_rt_history"):
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(os.path.join(ROOT, name), tree / name, ignore=ignored)
    inside = sysconfig.get_path("purelib", vars={"base": str(base)})
    build = [sys.executable, "-c", BUILD, "-q", "build_py", "--build-lib", inside]
    subprocess.run(build, cwd=tree, check=True, capture_output=True)
    return python


@pytest.fixture(scope="module")
def printed(tmp_path_factory):
    """What the job printed: one JVM for all of it."""
    directory = tmp_path_factory.mktemp("installed")
    command = [install(directory), JOB, os.path.abspath(os.path.join(ROOT, "examples"))]
    environment = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1"}
    for name in ("PYTHONPATH", "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
        environment.pop(name, None)
    done = subprocess.run(
        command, cwd=directory, env=environment, capture_output=True, text=True, check=False,
        timeout=200,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_spark_finds_the_formats_of_an_installed_package_by_itself(printed):
    """By the names of the modules; a package in editable mode is not where Spark looks."""
    assert "installed at" in printed
    assert os.path.join("bare", "lib") in printed


def test_the_batch_example_counts_and_decodes(printed):
    """What the documentation shows must work as it stands."""
    assert "|     AA|      29.1|" in printed


def test_the_streaming_example_publishes_what_it_chose(printed):
    """From a log, through Spark to its end, into a log, read back by a subscriber."""
    found = printed.partition("example spark_streaming.py\n")[2].split("\n")
    assert [line for line in found if line] == [f"FLIGHT {n}" for n in range(100) if n % 10 == 7]
