"""The same job where users outgrow one machine: a Spark standalone cluster."""

import json
import os
import random
import subprocess
import sys
import time

import pytest

from rt import Publisher
from tests.spark.cluster import Cluster, python_without_rt, without_our_code
from tests.spark.random_logs import STREAM, Merging, plain_rows, random_log

pytestmark = [pytest.mark.spark, pytest.mark.faults]
JOB = os.path.join(os.path.dirname(__file__), "cluster_job.py")
ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", ".."))


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """A cluster whose Python has no rt: the job must bring it."""
    directory = tmp_path_factory.mktemp("cluster")
    python = python_without_rt(directory)
    bare = [python, "-c", "import rt"]
    made = subprocess.run(
        bare, cwd=directory, env=without_our_code(), capture_output=True, check=False
    )
    assert made.returncode
    running = Cluster(directory, python)
    running.python = python
    yield running
    running.stop()


def start_job(cluster, what, path, out):
    """Start a driver; its executors run the Python without rt."""
    environment = {**os.environ, "PYSPARK_PYTHON": cluster.python, "SPARK_LOCAL_IP": "127.0.0.1"}
    environment["PYSPARK_DRIVER_PYTHON"] = sys.executable
    environment["PYTHONPATH"] = ROOT  # of the driver, which ships what it finds
    command = [sys.executable, JOB, cluster.url, what, path, str(out)]
    with open(os.path.join(cluster.directory, "driver.log"), "ab") as log:
        return subprocess.Popen(
            command, env=environment, cwd=cluster.directory, stdout=log, stderr=log
        )


def finish(cluster, job, timeout_s=600):
    """Wait for a driver and hold that it went well."""
    try:
        code = job.wait(timeout_s)
    finally:
        job.kill()
    with open(os.path.join(cluster.directory, "driver.log"), encoding="utf-8") as log:
        assert code == 0, log.read()[-3000:]


def expected(rows):
    """Return what the job `count` should find."""
    found = {}
    for row in rows:
        count, numbers, size = found.get(row.session, (0, 0, 0))
        found[row.session] = (count + 1, numbers + row.number, size + len(row.payload))
    return [[session, *sums] for session, sums in sorted(found.items())]


def test_a_cluster_runs_the_job_with_the_package_it_was_shipped(cluster, tmp_path):
    """Two workers, no rt in their Python, paths on storage that they share."""
    with random_log(str(tmp_path), 1) as merging:
        pass
    finish(cluster, start_job(cluster, "count", merging.directory, tmp_path / "found"))
    assert json.loads((tmp_path / "found").read_text()) == expected(plain_rows(merging.directory))


def test_a_job_whose_executors_are_killed_twenty_times_reads_every_row_once(cluster, tmp_path):
    """A lost executor's tasks run elsewhere, on the snapshot of the load."""
    with (
        random_log(str(tmp_path), 2) as merging,
        Publisher(str(tmp_path), stream=STREAM, session="lga") as publisher,
    ):
        for _ in range(10):
            publisher.publish_many([os.urandom(100)] * 10_000)
        publisher.flush("written")
        merging.merge()
    rows = expected(plain_rows(merging.directory))
    kills = 0
    while kills < 20:
        job = start_job(cluster, "count", merging.directory, tmp_path / "found")
        kills += _kill_while(cluster, job, random.Random(kills), at_most=20)
        finish(cluster, job)
        assert json.loads((tmp_path / "found").read_text()) == rows


def test_a_sink_whose_executors_are_killed_publishes_each_row_once(cluster, tmp_path):
    """A task that is tried again publishes what is missing."""
    with random_log(str(tmp_path / "from"), 3, rounds=12) as merging:
        pass
    job = start_job(cluster, "sink", merging.directory, tmp_path / "to")
    assert _kill_while(cluster, job, random.Random(1))
    finish(cluster, job)
    with Merging(str(tmp_path / "to")) as back:
        back.merge()
    found = sorted((row.payload, row.key or b"") for row in plain_rows(back.directory))
    assert found == sorted((r.payload, r.key or b"") for r in plain_rows(merging.directory))


def _kill_while(cluster, job, chance, pause_s=3.0, at_most=5):
    """Kill executors while a job runs; return how many."""
    kills = 0
    while job.poll() is None and kills < at_most:
        kills += cluster.kill_executor(chance.choice)
        time.sleep(chance.uniform(0.3, pause_s))
    return kills
