"""The package as users install it: Spark finds its formats by itself, and the examples run."""

import os
import shutil
import subprocess
import sys
import sysconfig

import pytest

pytest.importorskip("pyspark")

from tests.spark.cluster import python_without_rt
from tests.spark.conftest import QUICK_JAVA, quick_home

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]  # its process has 400 s
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


def test_spark_finds_the_formats_of_an_installed_package_and_the_examples_run(tmp_path):
    """By the modules' names, with no registration; what the documentation shows works as it is.

    Nor need the environment be activated: the python3 of PATH has none of the packages. One JVM for
    all of it: each takes ten seconds to start.
    """
    fake = tmp_path / "bin" / "python3"
    fake.parent.mkdir()
    fake.write_text("#!/bin/sh\necho 'the python3 of PATH was started' >&2\nexit 1\n")
    fake.chmod(0o755)
    command = [install(tmp_path), JOB, os.path.abspath(os.path.join(ROOT, "examples"))]
    environment = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", "JAVA_TOOL_OPTIONS": QUICK_JAVA}
    environment["SPARK_HOME"] = quick_home(tmp_path / "home")
    environment["PATH"] = f"{fake.parent}:{environment['PATH']}"
    for name in ("PYTHONPATH", "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
        environment.pop(name, None)
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False,
        timeout=400,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert [line for line in done.stderr.split("\n") if "replaced a" in line] == []
    first, _, last = done.stdout.partition("example spark_streaming.py\n")
    assert f"installed at {tmp_path}" in first
    assert "rows 100" in first
    assert "|     AA|      29.1|" in first
    published = [line for line in last.split("\n") if line]
    assert published == [f"FLIGHT {n}" for n in range(100) if n % 10 == 7]
