"""Retention on real nodes: decided once and applied everywhere, whatever happens."""

import os
import subprocess
import time
from pathlib import Path

import pytest
from archive_cluster import FILE_BYTES, STREAM, ArchiveCluster, held_bytes
from replicator_host import eventually, manifest_lines

from archiver.keep import parse_keep
from rt.errors import GapError
from rt.events import Gap
from rt.position import Position
from rt.subscriber import Subscriber

pytestmark = pytest.mark.faults
MIB = 1 << 20
PAYLOAD = b"x" * 1000


def publish(publisher, count, *, every=50):
    """Publish `count` messages of 1,000 bytes, in frames of `every`, at 10 MB/s at most."""
    for first in range(0, count, every):
        publisher.publish_many([PAYLOAD] * min(every, count - first))
        time.sleep(every / 10_000)
    publisher.flush("merged", timeout_s=60)


def is_empty(directory, row):
    """Whether the file of a row is empty."""
    return os.path.getsize(os.path.join(directory, row.file)) == 0


def said(rows):
    """A history's rows, without the file that is still growing."""
    return [tuple(row) for row in rows if row.rolled_ns is not None]


@pytest.mark.parametrize("nodes", [1, 3])
def test_every_node_and_subscriber_archives_the_same_files(tmp_path, nodes):
    """Decided once and carried out the same everywhere, to the byte in the manifest."""
    with ArchiveCluster(tmp_path, nodes) as cluster:
        cluster.set_policy(limit=MIB)
        cluster.push()
        cluster.pull()
        publish(cluster.publisher(), 5000)
        names = [*cluster.nodes, "sub"]
        ok = eventually(lambda: all(held_bytes(cluster.out(each)) <= MIB for each in names))
        assert ok, [held_bytes(cluster.out(each)) for each in names]
        rows = cluster.rows("n1")
        assert sum(row.bytes for row in rows) > 4 * MIB
        assert eventually(lambda: len({manifest_lines(cluster.out(n)) for n in cluster.nodes}) == 1)
        assert eventually(lambda: said(cluster.rows("sub")) == said(cluster.rows("n1")))
        gone = [row for row in rows if row.state == "archived"]
        assert {row.gone.reason for row in gone} == {"limit"}
        assert all(row.gone.by and row.line.sessions == "jfk" and row.line.digest for row in gone)
        assert eventually(lambda: all(is_empty(cluster.out("n1"), row) for row in gone))


def test_the_oldest_files_above_a_number_of_messages_go_everywhere(tmp_path):
    """A budget of events a day says nothing of their bytes."""
    with ArchiveCluster(tmp_path, 3) as cluster:
        answer = cluster.set_policy(messages=1000)
        assert answer["policy"] == {"time": 0, "disk": 100, "messages": 1000}
        cluster.push()
        cluster.pull()
        publish(cluster.publisher(), 4000)
        names = [*cluster.nodes, "sub"]

        def kept(name):
            return sum(row.messages for row in cluster.rows(name) if row.state != "archived")

        assert eventually(lambda: all(0 < kept(each) <= 1000 for each in names))
        gone = [row for row in cluster.rows("n1") if row.state == "archived"]
        assert {row.gone.reason for row in gone} == {"messages"}
        assert kept("n1") > 1000 - 2 * max(row.messages for row in gone), "no more than it must"
        assert eventually(lambda: said(cluster.rows("n2")) == said(cluster.rows("n1")))
        assert eventually(lambda: said(cluster.rows("sub")) == said(cluster.rows("n1")))


def test_inputs_and_the_publishers_own_files_go_when_they_are_merged(tmp_path):
    """Otherwise each message is kept seven times over."""
    with ArchiveCluster(tmp_path, 3) as cluster:
        cluster.push()
        publish(cluster.publisher(), 3000)
        inputs = [os.path.join(tmp_path, n, STREAM, "in", "jfk") for n in cluster.nodes]
        places = [*inputs, os.path.join(tmp_path, "pub", STREAM, "jfk")]
        ok = eventually(lambda: all(held_bytes(each) <= 2 * FILE_BYTES for each in places))
        assert ok, [held_bytes(each) for each in places]
        assert held_bytes(cluster.out("n1")) > 3_000_000


def test_what_the_slowest_node_lacks_stays_at_the_publisher_if_so_configured(tmp_path):
    """`all` is for operators who never want a node to copy outputs."""
    from replicator.push.progress import Release

    with ArchiveCluster(tmp_path, 3) as cluster:
        cluster.stop("n3")
        cluster.push(release=Release.ALL)
        publish(cluster.publisher(), 1000)
        own = os.path.join(tmp_path, "pub", STREAM, "jfk")
        time.sleep(2.5)
        assert held_bytes(own) > 1_000_000
        cluster.start("n3")
        assert eventually(lambda: held_bytes(own) <= FILE_BYTES, 60)


def test_a_node_that_was_down_for_the_whole_retention_comes_back(tmp_path):
    """Neither the inputs it lacks nor their output exist anywhere; the rest must not be lost."""
    with ArchiveCluster(tmp_path, 3) as cluster:
        cluster.set_policy(limit=MIB)
        cluster.push()
        publisher = cluster.publisher()
        publish(publisher, 500)
        cluster.stop("n3")
        publish(publisher, 5000)
        before = cluster.ledger("n1").archived_to
        assert before > 0
        cluster.start("n3")
        publish(publisher, 2000)

        def is_back():
            ours, theirs = cluster.ledger("n3"), cluster.ledger("n1")
            return (ours.end, ours.digest) == (theirs.end, theirs.digest)

        assert eventually(is_back, 60), (cluster.ledger("n3").end, cluster.ledger("n1").end)
        assert cluster.ledger("n3").number == 7500
        assert eventually(lambda: said(cluster.rows("n3")) == said(cluster.rows("n1")))
        assert eventually(lambda: held_bytes(cluster.out("n3")) <= MIB)


def test_an_idle_stream_rolls_by_age_and_expires(tmp_path):
    """Without it the last data of a slow stream would stay for ever."""
    with ArchiveCluster(tmp_path, file_age_s=1.0) as cluster:
        cluster.push()
        publish(cluster.publisher(), 10)
        assert eventually(lambda: any(row.rolled_ns for row in cluster.rows("n1")))
        cluster.set_policy(limit=1)
        assert eventually(lambda: cluster.rows("n1")[0].state == "archived")


def test_roll_on_demand_ends_the_active_file_on_every_node(tmp_path):
    """For a backup that wants everything up to now."""
    with ArchiveCluster(tmp_path, 3) as cluster:
        cluster.push()
        publish(cluster.publisher(), 10)
        assert cluster.ask({"do": "roll"})["rolled"] == "log.0.0"
        assert cluster.ask({"do": "roll"})["rolled"] is None
        assert eventually(lambda: all(cluster.rows(n)[0].rolled_ns for n in cluster.nodes))
        assert len({manifest_lines(cluster.out(each)) for each in cluster.nodes}) == 1


def test_a_lease_holds_files_until_it_is_released(tmp_path):
    """A backup that takes an hour must not have its files archived under it."""
    with ArchiveCluster(tmp_path, 3) as cluster:
        cluster.push()
        publish(cluster.publisher(), 1000)
        held = {"do": "lease", "start": "0.2.0", "seconds": 60, "bytes": 1 << 40}
        assert cluster.ask(held, "subscriber")["holder"] == "subscriber"
        cluster.set_policy(limit=FILE_BYTES)
        assert eventually(lambda: cluster.ledger("n1").archived_to.roll == 2)
        time.sleep(1.5)
        assert cluster.ledger("n1").archived_to.roll == 2
        cluster.ask({"do": "release"}, "subscriber")
        assert eventually(lambda: cluster.ledger("n1").archived_to.roll > 3)


@pytest.mark.parametrize("keep", ["all", "3Mi", "256Ki"])
def test_a_subscriber_keeps_more_or_less_than_the_nodes(tmp_path, keep):
    """Its disk is its own."""
    kept = parse_keep(keep)
    with ArchiveCluster(tmp_path) as cluster:
        cluster.set_policy(limit=MIB)
        cluster.push()
        cluster.pull(keep=kept.keeps, sweep=kept.sweep)
        publish(cluster.publisher(), 6000)
        low, high = {"all": (5, 7), "3Mi": (2, 3), "256Ki": (0, 0.25)}[keep]
        held = cluster.out("sub")
        assert eventually(lambda: low * MIB <= held_bytes(held) <= high * MIB), held_bytes(held)
        assert eventually(lambda: held_bytes(cluster.out("n1")) <= MIB)


def test_a_subscriber_that_was_offline_meets_a_typed_gap(tmp_path):
    """It learns what it missed, from where to where, and why."""
    with ArchiveCluster(tmp_path) as cluster:
        cluster.push()
        pull = cluster.pull()
        publisher = cluster.publisher()
        publish(publisher, 300)
        pull.wait_caught_up(60)
        root = os.path.join(tmp_path, "sub")
        with Subscriber(root, stream=STREAM, follow=False) as reader:
            last = [message.next_position for message in reader][-1]
        pull.stop()
        cluster.set_policy(limit=MIB)
        publish(publisher, 5000)
        assert eventually(lambda: held_bytes(cluster.out("n1")) <= MIB)
        cluster.pull().wait_caught_up(60)
        with pytest.raises(GapError) as raised:
            list(Subscriber(root, stream=STREAM, start=last, follow=False))
        gap = raised.value.gap
        assert gap.begin == last
        assert (gap.reason, bool(gap.files), gap.at_ns > 0) == ("limit", True, True)
        met = []
        reader = Subscriber(
            root, stream=STREAM, start=last, follow=False, on_gap="notify", on_event=met.append
        )
        numbers = [message.number for message in reader]
        assert [event for event in met if isinstance(event, Gap)] == [gap]
        assert numbers == list(range(numbers[0], 5300))


def test_a_killed_node_finishes_what_its_lines_say(tmp_path):
    """The line is on disk and the file is not empty yet: the moment between the two."""
    with ArchiveCluster(tmp_path) as cluster:
        cluster.push()
        publish(cluster.publisher(), 1000)
        first = Path(cluster.out("n1"), "log.0.0")
        data = first.read_bytes()
        cluster.set_policy(limit=FILE_BYTES)
        assert eventually(lambda: is_empty(cluster.out("n1"), cluster.rows("n1")[0]))
        cluster.stop("n1")
        first.write_bytes(data)
        assert not is_empty(cluster.out("n1"), cluster.rows("n1")[0])
        cluster.start("n1")
        gone = [row for row in cluster.rows("n1") if row.state == "archived"]
        assert eventually(lambda: all(is_empty(cluster.out("n1"), row) for row in gone))


def test_empty_files_are_folded_into_the_manifest_and_readers_still_see_the_gap(tmp_path):
    """A stream that runs for years would otherwise be a directory of a million names."""
    with ArchiveCluster(tmp_path, fold_s=0.5) as cluster:
        cluster.push()
        cluster.set_policy(limit=MIB)
        publish(cluster.publisher(), 5000)
        first = os.path.join(cluster.out("n1"), "log.0.0")
        assert eventually(lambda: not os.path.exists(first))
        assert not os.path.exists(first + ".idx")
        assert cluster.rows("n1")[0].state == "archived"
        with pytest.raises(GapError):
            list(Subscriber(os.path.join(tmp_path, "n1"), stream=STREAM, follow=False,
                            start="0.0.0"))  # fmt: skip
        cluster.stop("n1")
        cluster.start("n1")
        cluster.pull().wait_caught_up(60)
        assert eventually(lambda: said(cluster.rows("sub")) == said(cluster.rows("n1")))


@pytest.fixture
def small_disk(tmp_path):
    """Mount a file system of 48 MiB; skip where that is not allowed."""
    path = tmp_path / "disk"
    path.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=48m", "tmpfs", str(path)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("a file system cannot be mounted here: it takes root")
    yield path
    subprocess.run(["umount", "-l", str(path)], check=True)


def used_percent(path):
    """How full a file system is."""
    facts = os.statvfs(path)
    return 100 * (1 - facts.f_bavail / facts.f_blocks)


@pytest.mark.parametrize("percent", [50, 70, 90])
def test_a_small_disk_is_never_fuller_than_the_rule_says_by_more_than_a_few_files(
    tmp_path, small_disk, percent
):
    """Real traffic, three times the disk."""
    file_bytes = MIB // 2
    with ArchiveCluster(small_disk, clients=tmp_path, file_bytes=file_bytes) as cluster:
        cluster.push()
        cluster.set_policy(disk=percent)
        publisher, fullest = cluster.publisher(), 0
        for _ in range(150):
            publish(publisher, 1000, every=250)
            fullest = max(fullest, used_percent(small_disk))
        print(f"disk {percent}: at most {fullest:.1f} % used")
        assert percent - 10 < fullest <= percent + 6
        assert {row.gone.reason for row in cluster.rows("n1") if row.gone} == {"disk"}
        assert cluster.ledger("n1").number == 150_000


def test_a_stream_of_small_files_is_never_above_its_limit_by_more_than_one(tmp_path, small_disk):
    """Twenty files roll in a second; a decision takes a while to have its effect."""
    limit, file_bytes = 16 * MIB, MIB // 2
    with ArchiveCluster(small_disk, clients=tmp_path, file_bytes=file_bytes) as cluster:
        cluster.push()
        cluster.set_policy(limit=limit)
        publisher, most = cluster.publisher(), 0
        for _ in range(400):
            publisher.publish_many([PAYLOAD] * 150)
            time.sleep(0.015)
            most = max(most, held_bytes(cluster.out("n1")))
        publisher.flush("merged", timeout_s=60)
        print(f"at most {(most - limit) / file_bytes:.1f} files above the limit")
        assert limit / 2 < most <= limit + file_bytes


def test_a_node_below_its_reserve_refuses_data_and_resumes_when_there_is_room(tmp_path, small_disk):
    """Publishers keep their data; nothing is torn, and nothing needs a restart."""
    with ArchiveCluster(small_disk, clients=tmp_path, reserve=12 * MIB) as cluster:
        cluster.set_policy()
        push = cluster.push()
        publisher = cluster.publisher()
        for _ in range(60):
            publisher.publish_many([PAYLOAD] * 1000)
            time.sleep(0.02)
        node = cluster.nodes["n1"]
        # it takes more as soon as inputs that were merged have gone, until none are left
        assert eventually(lambda: any("reserve" in s.error or "keeps" in s.error
                                      for s in push.status()) and not node.status()["takes_data"],
                          20), push.status()  # fmt: skip
        assert node.failure is None
        cluster.set_policy(limit=4 * MIB)
        publisher.flush("merged", timeout_s=60)
        assert node.status()["takes_data"] is True
        assert cluster.ledger("n1").number == 60_000


def test_a_node_below_its_reserve_pauses_its_own_copy_of_the_merged_log(
    tmp_path, small_disk, caplog
):
    """It would fill the very disk it protects from publishers; the other nodes continue."""
    (small_disk / "n3").mkdir()
    (tmp_path / "n3").symlink_to(small_disk / "n3")
    with ArchiveCluster(tmp_path, 3) as cluster:
        cluster.set_policy()
        cluster.push()
        publisher = cluster.publisher()
        publish(publisher, 500)
        cluster.stop("n3")
        publish(publisher, 10_000)
        reserve = 12 * MIB
        ballast = small_disk / "ballast"
        ballast.write_bytes(bytes(free(small_disk) - reserve - 3 * MIB))
        cluster.settings["reserve"] = reserve
        cluster.start("n3")
        node = cluster.nodes["n3"]

        def is_settled():
            before = node.status()
            time.sleep(1)  # inputs that were merged may yet make room
            after = node.status()
            both = before["copying_waits_for"] and after["copying_waits_for"]
            return both and before["copying_to"] == after["copying_to"]

        assert eventually(is_settled, 60), node.status()
        assert "12.0 MiB" in node.status()["copying_waits_for"]
        paused = Position.parse(node.status()["copying_to"])
        publish(publisher, 100)
        time.sleep(3)
        said = [each for each in caplog.messages if "the copy waits for 12.0 MiB" in each]
        assert len(said) <= 2, "once for each node that it asked, and not twice a second"
        reached = Position.parse(node.status()["copying_to"])
        assert reached in {paused, paused.next_file()}  # ending a file takes no room
        assert node.failure is None
        assert free(small_disk) > reserve - 3 * MIB  # what two connections bring, and indexes
        ballast.unlink()
        assert eventually(lambda: cluster.ledger("n3").number == 10_600, 60), node.status()
        assert cluster.ledger("n3").digest == cluster.ledger("n1").digest


def free(path):
    """Return the bytes that are free on the file system of a path."""
    facts = os.statvfs(path)
    return facts.f_bavail * facts.f_frsize
