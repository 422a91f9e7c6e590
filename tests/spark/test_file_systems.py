"""Logs on other file systems: an object store that speaks S3, and whatever fsspec knows."""

import os

import pytest

from rt import Publisher
from rt.errors import Misuse
from rt.spark import gaps
from tests.spark.random_logs import plain_rows, random_log
from tests.spark.reading import Load, wanted
from tests.spark.test_batch_reading import FIELDS, as_dicts


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    """A merged log of several files."""
    with random_log(str(tmp_path_factory.mktemp("log")), 1, file_bytes_max=1 << 15) as merging:
        pass
    return merging.directory


@pytest.fixture(scope="module")
def bucket(log):
    """The log in a bucket of a server that speaks S3; its URI."""
    server = pytest.importorskip("moto.server").ThreadedMotoServer(port=0, verbose=False)
    fs = pytest.importorskip("pyarrow.fs")
    os.environ.setdefault("AWS_ACCESS_KEY_ID", "test")
    os.environ.setdefault("AWS_SECRET_ACCESS_KEY", "test")
    server.start()
    host, port = server.get_host_and_port()
    where = f"endpoint_override={host}:{port}&scheme=http&region=us-east-1"
    system, _ = fs.FileSystem.from_uri(f"s3://logs?{where}&allow_bucket_creation=true")
    system.create_dir("logs")
    fs.copy_files(log, "logs/out", destination_filesystem=system)
    yield f"s3://logs/out?{where}"
    server.stop()


def test_a_log_in_an_object_store_reads_as_on_disk(log, bucket):
    """One code path: positions, splits, pruning and checks are the same."""
    load = Load(bucket, partitionBytes=20_000)
    assert len(load.splits()) > 3
    assert load.read(wanted(*FIELDS)).to_pylist() == as_dicts(plain_rows(log))
    assert gaps(bucket) == []


@pytest.mark.faults
@pytest.mark.spark
@pytest.mark.filterwarnings("ignore")
def test_spark_reads_a_log_from_an_object_store(spark, log, bucket):
    """In the workers too, which open the files themselves."""
    frame = spark.read.format("rt").option("partitionBytes", 20_000).load(bucket)
    found = sorted((row.position, bytes(row.payload)) for row in frame.collect())
    assert found == [(row.position, row.payload) for row in plain_rows(log)]


def test_a_log_in_whatever_fsspec_knows_reads_as_on_disk(log):
    """Schemes that pyarrow does not know are asked of fsspec."""
    fsspec = pytest.importorskip("fsspec")
    memory = fsspec.filesystem("memory")
    memory.put(log, "/logs/out", recursive=True)
    found = Load("memory://logs/out").read(wanted(*FIELDS)).to_pylist()
    assert found == as_dicts(plain_rows(log))


def test_a_scheme_that_nothing_knows_is_refused(tmp_path):
    """The error names everything that was asked."""
    with pytest.raises(Misuse, match="neither pyarrow nor fsspec knows gopher://"):
        Load("gopher://logs/out")
    with random_log(str(tmp_path), 1, rounds=1) as merging:
        assert Load(f"file://{merging.directory}").read().num_rows


def test_large_frames_in_whatever_fsspec_knows_read_as_on_disk(tmp_path):
    """Their payloads are read straight to their place where the file system can do that."""
    fsspec = pytest.importorskip("fsspec")
    memory = fsspec.filesystem("memory")
    with Publisher(str(tmp_path), stream="large", session="jfk") as publisher:
        publisher.publish_many([bytes([n]) * 50_000 for n in range(100)])
        publisher.flush("written")
    log = str(tmp_path / "large" / "jfk")
    memory.put(log, "/large", recursive=True)
    try:
        found = Load("memory://large").read(wanted("position", "payload"))
    finally:
        memory.rm("/large", recursive=True)
    assert found.num_rows == 100
    assert found == Load(log).read(wanted("position", "payload"))
