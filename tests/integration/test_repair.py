"""Bit rot in rolled files: found, not served, fetched from another node, and reported."""

import json
import os
from pathlib import Path
from random import Random

import pytest
from archive_cluster import STREAM, ArchiveCluster
from commands import publish, run
from forged_certificates import Authority
from logs import MergedLog
from replicator_host import eventually, log_bytes
from rot import contents, flip_bit, rolled_files, rot

from replicator.pull.client import PullClient
from replicator.repair.copy_scrubber import copy_scrubber
from rt.errors import CorruptLog
from rt.inspect.verify import open_log, verify_log
from rt.log.notify.confirmations import Level
from rt.net.authority.certificates import issue
from rt.net.authority.identity import CertificateRole
from rt.subscriber import Subscriber

PATIENCE_S = 60
FAST = {"scrub_bytes_s": 1 << 30, "scrub_every_s": 0.05}


def fill(cluster, count=600):
    """Publish enough for some rolled files, and wait until all nodes have them."""
    publisher = cluster.publisher()
    for number in range(count):
        publisher.publish(number.to_bytes(4, "big") * 250)
        if number % 20 == 0:
            publisher.flush(Level.WRITTEN, PATIENCE_S)  # ends a frame
    publisher.flush(Level.MERGED, PATIENCE_S)
    outs = [cluster.out(name) for name in cluster.nodes]
    assert eventually(lambda: len({len(rolled_files(each)) for each in outs}) == 1, PATIENCE_S)
    assert len(rolled_files(outs[0])) >= 3
    return contents(outs[0])


def scrub_of(cluster, name):
    """Return what a node reports about its rolled files."""
    return cluster.nodes[name].status()["scrub"]


def test_rot_on_one_node_is_repaired_from_another_and_reported(tmp_path, caplog):
    """A disk loses a sector a year; found at the next restore, it is too late."""
    with ArchiveCluster(tmp_path, 3, **FAST) as cluster:
        cluster.push()
        whole = fill(cluster)
        hurt = rot(cluster.out("n2"), Random(1), 4)
        assert eventually(lambda: scrub_of(cluster, "n2")["repaired"] == len(hurt), PATIENCE_S)
        assert contents(cluster.out("n2")) == whole
        state = scrub_of(cluster, "n2")
        assert state["corrupt"] == len(hurt)
        assert state["unrepaired"] == {}
        assert eventually(lambda: scrub_of(cluster, "n2")["finished_ns"] > 0, PATIENCE_S)
        assert eventually(lambda: scrub_of(cluster, "n2")["files"] >= len(whole), PATIENCE_S)
        assert not verify_log(open_log(cluster.out("n2")), lambda _read: None).is_wrong
    assert "repaired with the copy of" in caplog.text


def test_two_nodes_with_different_damage_repair_each_other(tmp_path):
    """Each has what the other lacks, and neither may give what it lacks itself."""
    with ArchiveCluster(tmp_path, 3, **FAST) as cluster:
        cluster.push()
        whole = fill(cluster)
        files = {name: rolled_files(cluster.out(name)) for name in cluster.nodes}
        for place, name in ((0, "n1"), (1, "n2")):
            path, size = files[name][place]
            flip_bit(path, size // 2)
        for name in ("n1", "n2"):
            assert eventually(lambda: scrub_of(cluster, name)["repaired"] == 1, PATIENCE_S)  # noqa: B023
            assert contents(cluster.out(name)) == whole


def test_a_file_that_no_node_has_whole_is_kept_reported_and_never_served(tmp_path):
    """Of two damaged copies none is right: both stay, until someone puts back the bytes."""
    with ArchiveCluster(tmp_path, 3, **FAST) as cluster:
        cluster.push()
        whole = fill(cluster)
        hurt = {name: rolled_files(cluster.out(name))[1] for name in cluster.nodes}
        for place, (path, size) in enumerate(hurt.values()):
            flip_bit(path, size // 2 + 64 * place)
        for name, (path, _) in hurt.items():
            assert eventually(lambda: path in scrub_of(cluster, name)["unrepaired"], PATIENCE_S)  # noqa: B023
        pull = cluster.pull()
        assert eventually(lambda: "corrupt at" in pull.status().error, PATIENCE_S)
        assert not pull.wait_caught_up(0.5)
        assert set(contents(cluster.out("sub"))) == {"log.0.0"}
        path, size = hurt["n1"]
        flip_bit(path, size // 2)  # the operator has found the bytes
        for name in cluster.nodes:
            nothing = {}
            assert eventually(lambda: scrub_of(cluster, name)["unrepaired"] == nothing, PATIENCE_S)  # noqa: B023
        assert pull.wait_caught_up(PATIENCE_S)
        assert all(contents(cluster.out(name)) == whole for name in (*cluster.nodes, "sub"))


def test_a_damaged_session_copy_is_filled_again_where_another_node_has_it(tmp_path, caplog):
    """A node's copy may be the one that another needs; what no other has is left as it is."""
    with ArchiveCluster(tmp_path, 3, **FAST) as cluster:
        push = cluster.push()
        fill(cluster)
        for name in ("n2", "n3"):
            cluster.stop(name)  # so that nothing is merged any more, and no copy is archived
        publisher = cluster.publisher("ewr")
        for number in range(400):
            publisher.publish(number.to_bytes(4, "big") * 250)
        publisher.flush(Level.RECEIVED, PATIENCE_S)
        copy = os.path.join(cluster.root, "n1", STREAM, "in", "ewr")
        assert eventually(lambda: len(rolled_files(copy)) >= 2, PATIENCE_S)
        push.stop()
        path, size = rolled_files(copy)[0]
        flip_bit(path, size // 2)
        assert eventually(lambda: path in scrub_of(cluster, "n1")["unrepaired"], PATIENCE_S)
        assert os.path.getsize(path) == size  # the publisher may be gone for good
        cluster.push()
        assert eventually(lambda: scrub_of(cluster, "n1")["repaired"] == 1, PATIENCE_S)
        assert scrub_of(cluster, "n1")["unrepaired"] == {}
        cluster.start("n2")
        publisher.flush(Level.MERGED, PATIENCE_S)
    assert "not repaired: no other node is known to have it" in caplog.text


def test_a_subscriber_reads_on_while_its_node_repairs_what_it_reads(tmp_path):
    """It has the damaged file open: it stops at the damage, and goes on in the whole one."""
    with ArchiveCluster(tmp_path, 3) as cluster:  # which reads nothing by itself
        cluster.push()
        fill(cluster)
        subscriber = Subscriber(os.path.join(cluster.root, "n2"), stream=STREAM)
        path, size = rolled_files(cluster.out("n2"))[0]
        flip_bit(path, size // 2)
        messages, read = subscriber.messages(PATIENCE_S), []
        with pytest.raises(CorruptLog) as found:
            read.extend(message.payload for message in messages)
        assert 0 < len(read) < 600
        cluster.nodes["n2"].damaged(found.value, growing=False)
        assert eventually(lambda: scrub_of(cluster, "n2")["repaired"] == 1, PATIENCE_S)
        messages = subscriber.messages(PATIENCE_S)
        read += [next(messages).payload for _ in range(600 - len(read))]
        assert read == [number.to_bytes(4, "big") * 250 for number in range(600)]
        subscriber.close()


def test_a_copy_that_is_pulled_is_scrubbed_and_repaired(tmp_path, caplog):
    """A subscriber's disk rots like any other."""
    with ArchiveCluster(tmp_path, 3) as cluster:
        cluster.push()
        whole = fill(cluster)
        contexts = cluster.contexts("subscriber")
        client = PullClient(
            os.path.join(cluster.clients, "sub"), STREAM, cluster.addresses, contexts
        )
        scrubber = copy_scrubber(client, cluster.addresses, contexts, 1 << 30, every_s=0.05)
        client.start()
        try:
            scrubber.start(client.loop)
            with scrubber:
                assert client.wait_caught_up(PATIENCE_S)
                hurt = rot(cluster.out("sub"), Random(2), 3)
                assert eventually(lambda: scrubber.state.repaired == len(hurt), PATIENCE_S)
                assert contents(cluster.out("sub")) == whole
        finally:
            client.stop()


@pytest.mark.parametrize("is_rolled", [True, False])
def test_a_copy_that_ends_in_damage_goes_on_after_it_was_repaired(tmp_path, is_rolled):
    """A node compares the end of a copy, and refused such a one as diverged for ever."""
    with ArchiveCluster(tmp_path, 3) as cluster:
        cluster.push()
        fill(cluster)
        contexts = cluster.contexts("subscriber")
        pull = cluster.pull()
        rolled = len(rolled_files(cluster.out("n1"))) + is_rolled
        if is_rolled:
            cluster.ask({"do": "roll"})
        assert pull.wait_caught_up(PATIENCE_S)
        outs = [cluster.out(name) for name in (*cluster.nodes, "sub")]  # n1 may not lead, and lag
        assert eventually(
            lambda: {len(rolled_files(each)) for each in outs} == {rolled}, PATIENCE_S
        )
        pull.stop()
        name = f"log.0.{rolled - is_rolled}"
        path = os.path.join(cluster.out("sub"), name)
        flip_bit(path, os.path.getsize(path) - 200)
        client = PullClient(
            os.path.join(cluster.clients, "sub"), STREAM, cluster.addresses, contexts
        )
        scrubber = copy_scrubber(client, cluster.addresses, contexts, 0)
        client.start()
        scrubber.start(client.loop)
        with scrubber:
            assert client.wait_caught_up(PATIENCE_S), client.status()
            whole = log_bytes(cluster.out("n1"))[name]
            assert eventually(lambda: log_bytes(cluster.out("sub"))[name] == whole, PATIENCE_S)
            client.stop()


def test_a_node_that_copies_the_log_goes_on_where_the_end_of_what_it_has_rots(tmp_path, caplog):
    """Each of the others said that the copy was not of its log, and merging waited for ever."""
    with ArchiveCluster(tmp_path, 3) as cluster:
        cluster.push()
        whole = fill(cluster)
        member = cluster.nodes["n3"].pipeline.member
        done = member.executor.ledger.index

        def is_saved():
            newest = member.engine.core.snapshots.newest
            return newest is not None and newest.index >= done

        assert eventually(is_saved, PATIENCE_S)
        cluster.stop("n3")  # it repeats nothing of that
        out = Path(cluster.out("n3"))
        path, size = rolled_files(out)[1]
        lines = (out / "manifest").read_bytes().splitlines(keepends=True)
        ends = [place for place, line in enumerate(lines) if b"log.0.1" in line]
        (out / "manifest").write_bytes(b"".join(lines[: ends[-1] + 1]))
        for each in out.glob("log.*"):
            if not each.name.startswith(("log.0.0", "log.0.1")):
                each.unlink()
        flip_bit(path, size - 200)
        cluster.start("n3")
        assert eventually(lambda: contents(out) == whole, PATIENCE_S)
        assert eventually(lambda: not cluster.nodes["n3"].status()["copying_to"], PATIENCE_S)
        assert scrub_of(cluster, "n3")["repaired"] == 1
    assert "log.0.1: repaired with the copy of" in caplog.text


def test_rt_verify_repairs_a_copy_and_says_what_it_did(tmp_path):
    """An operator with a damaged copy needs one command, and no plan."""
    with ArchiveCluster(tmp_path, 3) as cluster:
        cluster.push()
        whole = fill(cluster)
        pull = cluster.pull()
        assert pull.wait_caught_up(PATIENCE_S)
        out, certs = cluster.out("sub"), os.path.join(cluster.root, "certs")
        nodes = [each for host, port in cluster.addresses for each in ("--nodes", f"{host}:{port}")]
        repair = ("--repair", *nodes, "--certs", certs, "--identity", "subscriber")
        files = rolled_files(out)
        flip_bit(files[0][0], files[0][1] // 2)
        os.unlink(files[1][0])
        flip_bit(files[2][0] + ".idx", 3)
        refused = run("verify", out, *repair)
        assert refused.exit_code == 2
        assert "is in use, by a program that repairs it by itself" in refused.stderr
        pull.stop()
        assert run("verify", out).exit_code == 1
        done = run("verify", out, *repair)
        assert done.exit_code == 0, done.output
        assert "log.0.0: repaired with the copy of localhost:" in done.stderr
        assert "kept as quarantine.replaced.log.0.0.0" in done.stderr
        assert "log.0.1: repaired with the copy of localhost:" in done.stderr
        assert "log.0.2: its index is built again" in done.stderr
        assert contents(out) == whole
        flip_bit(files[0][0], files[0][1] // 2)
        nowhere = run("verify", out, "--repair", "--nodes", "localhost:1", *repair[-4:])
        assert nowhere.exit_code == 1
        assert "log.0.0: not repaired: localhost:1: " in nowhere.stderr
        session = os.path.join(cluster.clients, "pub", STREAM, "jfk")
        assert run("verify", session, *repair).exit_code == 0


def test_only_merged_logs_are_repaired_from_nodes(tmp_path):
    """What a publisher has not shipped yet is nowhere else."""
    directory = publish(tmp_path, [b"x"] * 3)
    flip_bit(os.path.join(directory, "log.0.0"), 70)
    done = run("verify", directory, "--repair")
    assert done.exit_code == 2
    assert "only a merged log (out) is repaired from nodes" in done.stderr


@pytest.mark.parametrize("beside", [".lock", "state"])
def test_the_file_that_a_node_writes_is_left_to_the_node(tmp_path, beside):
    """Set aside here, a node alone would have nothing, and no rt pull copies it again."""
    out = str(tmp_path / "out")
    with MergedLog(out) as log:
        for _ in range(2):
            log.merge("jfk", [b"x" * 300])
    certs = Authority(str(tmp_path / "certs")).directory
    issue(certs, "reader", CertificateRole.SUBSCRIBER)
    own = tmp_path / beside
    own.touch() if beside == ".lock" else own.mkdir()
    flip_bit(os.path.join(out, "log.0.0"), 200)
    command = ("verify", out, "--repair", "--certs", certs, "--identity", "reader")
    done = run(*command)
    assert done.exit_code == 1, done.output
    assert "log.0.0: not repaired: the node still writes this file" in done.stderr
    assert "start the node" in done.stderr
    assert "log.0.0" in os.listdir(out)
    own.unlink() if beside == ".lock" else own.rmdir()
    done = run(*command)
    assert "set aside as quarantine.log.0.0.0; rt pull copies it again" in done.stderr
    assert done.exit_code == 1, "it said whole, 0 files, 0 messages, and ended with 0"
    assert "empty without what was found damaged and is not repaired (log.0.0)" in done.stdout
    again = run("verify", out, "--json")
    assert json.loads(again.stdout)["not_repaired"] == {}


def storm(tmp_path, flips, files):
    """Flip bits on one node of three, a few at a time, while it is pulled from again and again."""
    chance = Random(flips)
    with ArchiveCluster(tmp_path, 3, **FAST) as cluster:
        cluster.push()
        whole = fill(cluster, 130 * files)
        cluster.places.sort(key=lambda place: place.name != "n3")  # pullers ask n3 first
        corrupt = done = 0
        while done < flips:
            hurt = rot(cluster.out("n3"), chance, 10)
            done, corrupt = done + 10, corrupt + len(hurt)
            name = f"sub{done}"
            pull = cluster.pull(name)
            assert pull.wait_caught_up(PATIENCE_S)
            assert contents(cluster.out(name)) == whole
            pull.stop()
            assert eventually(lambda: contents(cluster.out("n3")) == whole, PATIENCE_S)

        def is_repaired():
            state = scrub_of(cluster, "n3")
            return state["repaired"] == state["corrupt"] > 0 and not state["unrepaired"]

        assert eventually(is_repaired, PATIENCE_S)
        assert all(scrub_of(cluster, name)["corrupt"] == 0 for name in ("n1", "n2"))
        assert contents(cluster.out("n3")) == whole


def test_forty_flips_on_a_minority_are_repaired_and_none_is_served(tmp_path):
    """The thousand of the long test, in short."""
    storm(tmp_path, 40, 6)


@pytest.mark.faults
def test_a_thousand_flips_on_a_minority_are_repaired_and_none_is_served(tmp_path):
    """The target: whatever a disk does to a minority, no reader notices."""
    storm(tmp_path, 1000, 12)
