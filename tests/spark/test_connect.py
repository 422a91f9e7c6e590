"""Spark Connect: the driver is in another process, and classes travel to it."""

import os
import subprocess
import sys

import pytest

from rt import Publisher
from tests.spark.reading import Load

pytestmark = pytest.mark.faults  # a server of its own takes half a minute to start


def test_batch_sink_and_stream_work_over_connect(tmp_path):
    """What a client wrote is what it read, by each way."""
    pytest.importorskip("grpc")
    payloads = [b"a", b"bb", b"ccc"]
    with Publisher(str(tmp_path), stream="flights", session="jfk") as publisher:
        publisher.publish_many(payloads)
    job = os.path.join(os.path.dirname(__file__), "connect_job.py")
    done = subprocess.run(
        [sys.executable, job, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert "ran with pyspark.sql.connect.session" in done.stdout
    for stream in ("batch", "streamed"):
        rows = Load(str(tmp_path / stream)).read()
        assert sorted(rows["payload"].to_pylist()) == payloads
