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
STEPS_MAX = 8  # of one or two batches
DEADLINE_S = 300


def test_a_query_killed_twenty_times_publishes_each_message_once(tmp_path):
    """Killed anywhere: between a task's frames, before a commit, while it plans."""
    with random_log(str(tmp_path / "from"), 7, rounds=8) as merging:
        pass
    checkpoint, chance = tmp_path / "checkpoint", random.Random(7)
    command = [sys.executable, JOB, merging.directory, str(tmp_path / "to"), str(checkpoint)]
    log = tmp_path / "log"
    kills = starts = 0
    while kills < KILLS and starts < 2 * KILLS:
        kills += _run_and_kill(command, log, tmp_path, chance)
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


def _run_and_kill(command, log, tmp_path, chance):
    """Start the query, and kill it some steps after its first commit; False if it did not start."""
    before, after = _commits(tmp_path), chance.randrange(STEPS_MAX)
    job, committed, deadline = _start(command, log), None, time.monotonic() + DEADLINE_S
    while job.poll() is None and time.monotonic() < deadline:
        steps = _steps(tmp_path)
        if committed is None and _commits(tmp_path) > before:
            committed = steps
        if committed is not None and len(steps - committed) >= after:
            break
        time.sleep(0.005)
    if job.poll() is not None:
        assert SLOW_START in log.read_text(), f"the query ended before it was killed: {_tail(log)}"
        return False
    os.killpg(job.pid, signal.SIGKILL)
    job.wait()
    assert committed is not None, f"no commit in {DEADLINE_S} s: {_tail(log)}"
    return True


def _start(command, log):
    with open(log, "wb") as file:
        return subprocess.Popen(command, start_new_session=True, stdout=file, stderr=file)


def _tail(log):
    return log.read_text(encoding="utf-8", errors="replace")[-3000:]


def _commits(tmp_path):
    """Return the newest batch that was committed."""
    numbers = [int(n) for n in _names(tmp_path / "checkpoint" / "commits") if n.isdigit()]
    return max(numbers, default=-1)


def _steps(tmp_path):
    """Return what the query has written so far: plans, commits, staged files, messages."""
    staged = tmp_path / "to" / ".spark" / "flights"
    folders = [tmp_path / "checkpoint" / "offsets", tmp_path / "checkpoint" / "commits", staged]
    folders += [staged / name for name in _names(staged)]
    found = {(folder.name, name) for folder in folders for name in _names(folder)}
    logs = (tmp_path / "to" / "flights").glob("*/log.*")
    return found | {(path.parent.name, path.name, path.stat().st_size) for path in logs}


def _names(folder):
    try:
        return os.listdir(folder)
    except FileNotFoundError:
        return []
