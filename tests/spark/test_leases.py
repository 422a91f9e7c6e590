"""A load holds its files at the nodes, and says what was lost where the disk was full."""

import os
import time

import pytest

pytest.importorskip("pyspark")

from pyspark.errors import PythonException
from pyspark.sql.types import LongType, StructField, StructType

from rt.errors import Misuse, RtError
from rt.position import Position
from rt.spark.formats.batch import RtSource
from rt.spark.reading.options import read_options
from tests.archive_cluster import FILE_BYTES, ArchiveCluster
from tests.commands import PATIENCE_S

pytestmark = [pytest.mark.process, pytest.mark.filterwarnings("ignore")]
SCHEMA = StructType([StructField("position", LongType())])


@pytest.fixture
def cluster(tmp_path):
    """A node with ten small files and a policy that keeps all of them."""
    with ArchiveCluster(tmp_path) as made:
        made.push()
        publisher = made.publisher()
        for _ in range(10):
            publisher.publish_many([bytes(1000)] * 100)
            publisher.flush("merged", 60)
        yield made


def leased(cluster, **options):
    """The options of a load that holds its files."""
    nodes = ",".join(f"{host}:{port}" for host, port in cluster.addresses)
    lease = {"leaseNodes": nodes, "leaseCerts": f"{cluster.root}/certs"}
    lease["leaseIdentity"] = "subscriber"
    return {"path": cluster.out("n1"), **lease, **options}


def eventually(fact):
    """Wait until it holds."""
    end = time.monotonic() + PATIENCE_S
    while not fact():
        assert time.monotonic() < end
        time.sleep(0.05)


def rows(source):
    """Plan and read a load as Spark does; return how many rows it gave."""
    reader = source.reader(SCHEMA)
    return sum(batch.num_rows for part in reader.partitions() for batch in reader.read(part))


def test_a_load_holds_its_files_at_once_and_again_with_its_first_query(cluster):
    """Against the limit on the size, for a bounded time; what lies before its start may go."""
    begins = cluster.rows("n1")[2].first
    source = RtSource(leased(cluster, startingPosition=str(begins), leaseTime="50s"))
    [lease] = cluster.ask({"do": "policy"})["leases"]
    assert (lease["holder"], lease["start"]) == ("subscriber", begins)
    assert 0 < lease["until_ns"] - time.time_ns() <= 50e9
    cluster.set_policy(limit=FILE_BYTES)
    eventually(lambda: cluster.ledger("n1").archived_to == begins)
    total = rows(source)
    [again] = cluster.ask({"do": "policy"})["leases"]
    assert again["until_ns"] > lease["until_ns"]
    assert total == 800
    cluster.ask({"do": "release"}, "subscriber")
    eventually(lambda: cluster.ledger("n1").archived_to > begins)
    with pytest.raises(RtError, match=f"{Position(begins)}.* was archived"):
        rows(RtSource({**leased(cluster), "startingPosition": str(begins)}))


def test_two_loads_of_one_identity_hold_what_both_need(cluster):
    """A node keeps one lease of a name: the second must not release what the first reads."""
    files = [row.first for row in cluster.rows("n1")]
    RtSource(leased(cluster, startingPosition=str(files[1]), leaseTime="100s"))
    RtSource(leased(cluster, startingPosition=str(files[3]), leaseTime="10s"))
    [lease] = cluster.ask({"do": "policy"})["leases"]
    assert lease["start"] == files[1]
    assert lease["until_ns"] - time.time_ns() > 80e9


@pytest.mark.spark
def test_a_lease_lost_to_a_full_disk_fails_the_job_with_position_and_cause(spark, cluster):
    """Against a full disk nothing holds; the job must not end with fewer rows."""
    options = leased(cluster)
    frame = spark.read.format("rt").options(**options).load()
    assert frame.count() == 1000
    cluster.set_policy(limit=FILE_BYTES)
    time.sleep(1.0)
    assert frame.count() == 1000
    cluster.set_policy(disk=1)
    first = os.path.join(cluster.out("n1"), Position(0).file_name)
    eventually(lambda: not os.path.getsize(first))  # its line precedes the truncation
    with pytest.raises(PythonException, match=r"0\.0\.0 .*disk, over the lease of subscriber"):
        frame.count()


def test_a_lease_that_no_node_gives_fails_the_load_with_a_reason(cluster):
    """A program that asks for a lease relies on it."""
    source = RtSource({**leased(cluster), "leaseNodes": "127.0.0.1:1"})
    with pytest.raises(Misuse, match=r"no node accepted the request: 127.0.0.1:1: .*refused"):
        source.reader(SCHEMA)
    source = RtSource({**leased(cluster), "leaseIdentity": "publisher"})
    with pytest.raises(Misuse, match="publisher publisher may not ask this; a subscriber"):
        source.reader(SCHEMA)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"leaseTime": "1h"}, "add leaseNodes"),
        ({"leaseNodes": "a:1", "leaseCerts": "c"}, "add leaseIdentity"),
        ({"leaseNodes": "a:1", "leaseCerts": "c", "leaseIdentity": "No!"}, "leaseIdentity="),
    ],
)
def test_half_a_lease_is_refused(options, words):
    """It would silently hold nothing."""
    with pytest.raises(Misuse, match=words):
        read_options({"path": "somewhere", **options})
