"""A streaming query whose process is killed again and again."""

import os
import random
import signal
import subprocess
import sys
import time

import pytest

from tests.spark.random_logs import Merging, plain_rows, random_log
from tests.spark.reading import SLOW_START

pytestmark = [pytest.mark.spark, pytest.mark.faults]
JOB = os.path.join(os.path.dirname(__file__), "stream_job.py")
KILLS = 20


def test_a_query_killed_twenty_times_publishes_each_message_once(tmp_path):
    """Killed anywhere: between a task's frames, before a commit, while it plans."""
    with random_log(str(tmp_path / "from"), 7, rounds=8) as merging:
        pass
    checkpoint, chance = tmp_path / "checkpoint", random.Random(7)
    command = [sys.executable, JOB, merging.directory, str(tmp_path / "to"), str(checkpoint)]
    log = tmp_path / "log"
    kills = starts = 0
    while kills < KILLS and starts < 2 * KILLS:
        kills += _run_and_kill(command, log, checkpoint, chance)
        starts += 1
    assert kills == KILLS
    for _ in range(5):
        if _start(command, log).wait(500) == 0:
            break
        assert SLOW_START in log.read_text(), _tail(log)
    with Merging(str(tmp_path / "to")) as back:
        back.merge()
    found = sorted((r.payload, r.key or b"", r.time_ns) for r in plain_rows(back.directory))
    expected = sorted((r.payload, r.key or b"", r.time_ns) for r in plain_rows(merging.directory))
    assert found == expected


def _run_and_kill(command, log, checkpoint, chance):
    """Start the query, let it get a little further, and kill it; False if it did not start."""
    before = _commits(checkpoint)
    job = _start(command, log)
    deadline = time.monotonic() + 100
    while job.poll() is None and _commits(checkpoint) == before and time.monotonic() < deadline:
        time.sleep(0.02)
    time.sleep(chance.uniform(0, 1))
    if job.poll() is not None:
        assert SLOW_START in log.read_text(), f"the query ended before it was killed: {_tail(log)}"
        return False
    os.killpg(job.pid, signal.SIGKILL)
    job.wait()
    return True


def _start(command, log):
    with open(log, "wb") as file:
        return subprocess.Popen(command, start_new_session=True, stdout=file, stderr=file)


def _tail(log):
    return log.read_text(encoding="utf-8", errors="replace")[-3000:]


def _commits(checkpoint):
    """Return the newest batch that was committed."""
    folder = checkpoint / "commits"
    numbers = [int(n) for n in os.listdir(folder) if n.isdigit()] if folder.exists() else []
    return max(numbers, default=-1)
