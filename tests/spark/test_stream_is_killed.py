"""A streaming query whose process is killed again and again."""

import os
import random
import signal
import subprocess
import sys
import time

import pytest

from tests.spark.random_logs import Merging, plain_rows, random_log

pytestmark = [pytest.mark.spark, pytest.mark.faults]
JOB = os.path.join(os.path.dirname(__file__), "stream_job.py")
KILLS = 20


def test_a_query_killed_twenty_times_publishes_each_message_once(tmp_path):
    """Killed anywhere: between a task's frames, before a commit, while it plans."""
    with random_log(str(tmp_path / "from"), 7, rounds=8) as merging:
        pass
    checkpoint, chance = tmp_path / "checkpoint", random.Random(7)
    arguments = [merging.directory, str(tmp_path / "to"), str(checkpoint)]
    for _ in range(KILLS):
        _run_and_kill(arguments, checkpoint, chance)
    subprocess.run([sys.executable, JOB, *arguments], check=True, capture_output=True, timeout=500)
    with Merging(str(tmp_path / "to")) as back:
        back.merge()
    found = sorted((r.payload, r.key or b"", r.time_ns) for r in plain_rows(back.directory))
    expected = sorted((r.payload, r.key or b"", r.time_ns) for r in plain_rows(merging.directory))
    assert found == expected


def _run_and_kill(arguments, checkpoint, chance):
    """Start the query, let it get a little further, and kill it."""
    before = _commits(checkpoint)
    job = subprocess.Popen(
        [sys.executable, JOB, *arguments], start_new_session=True,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    deadline = time.monotonic() + 100
    while job.poll() is None and _commits(checkpoint) == before and time.monotonic() < deadline:
        time.sleep(0.02)
    time.sleep(chance.uniform(0, 1))
    assert job.poll() is None, "the query ended before it was killed"
    os.killpg(job.pid, signal.SIGKILL)
    job.wait()


def _commits(checkpoint):
    """Return the newest batch that was committed."""
    folder = checkpoint / "commits"
    numbers = [int(n) for n in os.listdir(folder) if n.isdigit()] if folder.exists() else []
    return max(numbers, default=-1)
