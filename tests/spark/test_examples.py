"""The examples run, and print what they say."""

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.spark
EXAMPLES = os.path.join(os.path.dirname(__file__), "..", "..", "examples")


def run(name):
    """Run an example without arguments; return what it printed."""
    command = [sys.executable, os.path.join(EXAMPLES, name)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=140)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_the_batch_example_counts_and_decodes():
    """What the documentation shows must work as it stands."""
    assert "|     AA|      29.1|" in run("spark_batch.py")


@pytest.mark.faults
def test_the_streaming_example_publishes_what_it_chose():
    """From a log, through Spark, into a log, read back by a subscriber."""
    found = run("spark_streaming.py").split("\n")
    assert [line for line in found if line] == [f"FLIGHT {n}" for n in range(100) if n % 10 == 7]
