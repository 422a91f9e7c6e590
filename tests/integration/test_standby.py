"""A cluster's state is carried beside its log, and another cluster continues both."""

import json
import os
import shutil
from contextlib import ExitStack
from itertools import islice

import pytest

import rt
from replicator.pull.client import PullClient
from rt import Publisher, Subscriber
from rt.cli.common import exits
from rt.client.standby import StandbyRecord, StateCarrier, read_record
from rt.client.standby_reach import parse_keep
from rt.errors import Misuse, Refused
from rt.log.write.writer import WriterSettings
from rt.net.admin import ask_any
from rt.net.authority.certificates import issue
from rt.net.authority.grants import GRANTS_NAME
from rt.net.authority.identity import CertificateRole
from rt.node.founding.carried_state import carried_state, read_carried
from rt.node.founding.cluster_files import founding_lines, free_addresses, init_local_cluster
from rt.node.founding.layout import ClusterLayout
from rt.position import Position
from tests.archive_cluster import FILE_BYTES, STREAM, ArchiveCluster, connect, held_bytes
from tests.commands import run, start
from tests.replicator_host import eventually


def payloads(root):
    """Return what a copy holds, in order."""
    with Subscriber(root, stream=STREAM, follow=False) as subscriber:
        return [bytes(each.payload) for each in subscriber]


def state_since(cluster, index, path):
    """Write the first state that is not older than an instruction; return the path."""

    def has_come():
        carried = carried_state(cluster.ask({"do": "standby-state"}))
        if carried.state().index < index:
            return False
        path.write_bytes(carried.encode())
        return True

    assert eventually(has_come, 60)
    return str(path)


def grouped(root, session):
    """Open a session of the group of redundant publishers."""
    return Publisher(
        str(root), stream=STREAM, session=session, group="feed",
        writer=WriterSettings(file_bytes_max=FILE_BYTES),
    )  # fmt: skip


def test_a_sealed_cluster_is_continued_by_another_and_nothing_is_lost_or_doubled(tmp_path):
    """The planned change of sites: policy, groups, positions, copies and certificates go on."""
    clients, old_root, new_root = tmp_path / "clients", tmp_path / "old", tmp_path / "new"
    with ArchiveCluster(old_root, nodes=3, clients=clients) as old:
        old.set_policy(time=77)
        push, pull = old.push(), old.pull()
        jfk, red, blue = (
            old.publisher("jfk"),
            *(grouped(clients / "pub", n) for n in ("red", "blue")),
        )
        old.undo.callback(red.close)
        old.undo.callback(blue.close)
        numbers = [b"feed %d" % each for each in range(50)]
        red.publish_many(numbers)
        blue.publish_many(numbers[:20])
        jfk.publish_many([b"jfk %d" % each for each in range(100)])
        for each in (jfk, red, blue):
            each.flush("merged", timeout_s=60)
        for wrong in ({"do": "end", "latest": True, "since": "x"},
                      {"do": "adopt-session", "session": "jfk", "at": "x"}):  # fmt: skip
            with pytest.raises(Misuse, match=r"(since|at): not a position: 'x'"):
                old.ask(wrong, who="operator")
        sealed = old.ask({"do": "seal"}, who="operator")
        assert sealed["sealed"]["by"] == "operator operator"
        with pytest.raises(Refused, match="sealed by operator operator; it ends here for now"):
            old.ask({"do": "set-policy", "policy": json.loads('{"time": 5}')}, who="operator")
        jfk.publish(b"after the seal")
        red.publish(b"feed 50")
        assert eventually(lambda: "sealed" in str(push.status()), 60), push.status()
        assert eventually(lambda: str(pull.status().durable_place) == sealed["end"], 60)
        state = state_since(old, sealed["index"], tmp_path / "state.json")
        copy = old.out("sub")
        lines = founding_lines(copy, STREAM, [], state, log_id=read_carried(state).log)
        assert str(old.ask({"do": "end"})["end"]) == sealed["end"], "nothing came after the seal"
        layout = ClusterLayout(authority=str(old_root / "certs"))
        with ArchiveCluster(
            new_root, nodes=3, clients=clients, founded=lines, layout=layout
        ) as new:
            assert new.ask({"do": "policy"})["policy"]["time"] == 77
            old.ask({"do": "seal", "moved_to": "new"}, who="operator")
            assert eventually(lambda: "continues at new" in pull.status().error, 60)
            push.stop()
            pull.stop()
            new.push(nodes=[*old.addresses, *new.addresses])
            pulled = new.pull()
            jfk.publish(b"in the new cluster")
            blue.publish_many([*numbers[20:], b"feed 50", b"feed 51"])
            for each in (jfk, blue):
                each.flush("merged", timeout_s=60)
            end = max(node.merged_end for node in new.nodes.values())
            assert eventually(lambda: pulled.status().position >= end, 60), pulled.status()
            found = payloads(str(clients / "sub"))
    assert [each for each in found if each.startswith(b"jfk")] == [
        b"jfk %d" % n for n in range(100)
    ]
    assert [each for each in found if each.startswith(b"feed")] == [
        b"feed %d" % n for n in range(52)
    ]
    assert [each for each in found if each.endswith((b"seal", b"cluster"))] == [
        b"after the seal", b"in the new cluster",
    ]  # fmt: skip


@pytest.fixture
def standby(tmp_path):
    """Give a cluster, a copy of its log with its state, and a function that makes another."""
    clients = tmp_path / "clients"
    with ExitStack() as undo:
        old = undo.enter_context(ArchiveCluster(tmp_path / "old", nodes=3, clients=clients))
        old.set_policy(time=77)
        pull = old.pull()
        issue(os.path.join(old.root, "certs"), "edge", CertificateRole.MIRROR, streams=(STREAM,))
        carrier = StateCarrier(
            str(clients / "sub"), STREAM, lambda request: old.ask(request, who="edge"),
            lambda: pull.status().durable_place, every_s=0.05,
        )  # fmt: skip
        undo.enter_context(carrier)
        yield old, pull, carrier, undo


def written(cluster):
    """Return what the standby wrote last, which is what a command reads; an empty record first."""
    try:
        return read_record(os.path.join(cluster.clients, "sub"), STREAM)
    except Misuse:
        return StandbyRecord()


def link(cluster, who="operator"):
    """Return the options with which commands reach a cluster."""
    nodes = [word for host, port in cluster.addresses for word in ("--nodes", f"{host}:{port}")]
    return [*nodes, "--certs", os.path.join(cluster.root, "certs"), "--identity", who]


def test_standbys_are_named_only_to_peers_with_a_right_to_the_stream(standby):
    """Names of machines are for those who ship to the stream, read it or run it."""
    old, _, _, _ = standby
    certs = os.path.join(old.root, "certs")
    issue(certs, "other-sub", CertificateRole.SUBSCRIBER, streams=("trains",))
    issue(certs, "far", CertificateRole.MIRROR, streams=("trains",))
    issue(certs, "other-pub", CertificateRole.PUBLISHER, sessions=("jfk",))
    with open(os.path.join(certs, GRANTS_NAME), "r+", encoding="utf-8") as file:
        entry = "[publisher.other-pub]\n"
        granted = file.read().replace(entry, f'{entry}streams = ["trains"]\n')
        file.seek(0)
        file.write(granted)
    old.push()
    asked = {"do": "standby-reach"}
    assert old.ask({"do": "end", "since": "0.0.0"}, who="edge")
    for who in ("publisher", "subscriber", "operator", "n1", "edge"):
        reached = [
            ask_any([each], old.contexts(who), asked)["reached"] for each in old.addresses
        ]  # fmt: skip
        assert {"edge": "0.0.0"} in reached, who
    for who in ("other-sub", "far", "other-pub"):
        for each in old.addresses:
            with pytest.raises(Refused, match=f"{who} may not ask this; a publisher or subscr"):
                ask_any([each], old.contexts(who), asked)


def test_what_a_promotion_would_begin_with_is_said_before_it_is_made(standby, tmp_path):
    """It is too late to find out afterwards."""
    old, _, carrier, _ = standby
    old.push()
    publisher = old.publisher("jfk")
    publisher.publish_many([b"%d" % each for each in range(100)])
    publisher.flush("merged", timeout_s=60)
    root = ["--root", os.path.join(old.clients, "sub"), "--stream", STREAM]
    assert eventually(lambda: old.ledger("n1").number == 100, 60)
    assert eventually(lambda: written(old).proven_to == str(old.ledger("n1").end), 60)
    shown = run("standby", "status", *root, "--max", "60", "--json")
    assert shown.exit_code == 0, shown.output
    facts = json.loads(shown.stdout)
    assert facts["ok"] is True
    assert facts["messages_behind"] == 0
    assert facts["digest"] == old.ledger("n1").digest.hex()
    told = run("standby", "promote", str(tmp_path / "new"), *root, "--now", "--dry-run")
    assert told.exit_code == 0, told.output
    assert "may be missing" in told.stdout
    told = run("standby", "promote", str(tmp_path / "new"), *root, "--now", "--dry-run", "--json")
    assert json.loads(told.stdout)["digest"] == facts["digest"]
    assert not (tmp_path / "new").exists()
    carrier.stop()
    stale = run("standby", "status", *root, "--max", "0.01")
    assert stale.exit_code == 1
    assert "the copy may lack what was merged in the last" in stale.stderr
    for wrong in ([], ["--now", "--drained"]):
        refused = run("standby", "promote", str(tmp_path / "new"), *root, *wrong)
        assert refused.exit_code == 2
        assert "give --drained if the cluster runs, or --now if it is lost" in refused.stderr


def promoted(old, tmp_path, *options):
    """Promote the standby by the command; return the new cluster, started, and what was said."""
    done = run(
        "standby", "promote", str(tmp_path / "new"), "--root", os.path.join(old.clients, "sub"),
        "--stream", STREAM, "--authority", os.path.join(old.root, "certs"), "--count", "3",
        *options,
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    for name in ("publisher", "subscriber"):  # clients keep theirs
        for end in ("pem", "key"):
            shutil.copy2(os.path.join(old.root, "certs", f"{name}.{end}"), tmp_path / "new/certs")
    return ArchiveCluster(tmp_path / "new", clients=old.clients, made=True), done


def test_a_drained_standby_is_promoted_by_one_command(standby, tmp_path):
    """Certificates, grants, policy and a registered cursor go on, under names of their own."""
    old, pull, _, _ = standby
    push = old.push()
    publisher = old.publisher("jfk")
    publisher.publish_many([b"%d" % each for each in range(100)])
    publisher.flush("merged", timeout_s=60)
    with (
        connect(old, str(tmp_path / "reader")) as client,
        client.subscriber(cursor=rt.Registered("etl"), follow=False) as reader,
    ):
        for message in islice(reader, 60):
            reader.ack(message, sync=True)
    new, done = promoted(old, tmp_path, "--drained", "--timeout", "60", *link(old))
    with new:
        assert "copy and cluster are equal: number 100" in done.stdout
        assert sorted(new.nodes) == ["n4", "n5", "n6"]
        assert eventually(lambda: "continues at" in pull.status().error, 60)
        twice = run(
            "standby", "promote", new.root, "--root", os.path.join(old.clients, "sub"),
            "--stream", STREAM, "--drained", *link(old),
        )  # fmt: skip
        assert twice.exit_code == 2
        assert "holds the files of a cluster" in twice.stderr
        again = run("cluster", "seal", *link(old), "--stream", STREAM, "--json")
        assert json.loads(again.stdout)["sealed"]["moved_to"], "a repetition does not take it back"
        policy = run("archive", "policy", "show", *link(old), "--stream", STREAM)
        assert policy.exit_code == 3
        assert "continues at" in policy.stderr, "no word is needed: its seal says so"
        push.stop()
        pull.stop()
        new.push()
        publisher.publish(b"100")
        publisher.flush("merged", timeout_s=60)
        assert new.ask({"do": "policy"}, "n4")["policy"]["time"] == 77
        config = os.path.join(new.root, "clients.toml")
        with (
            rt.connect(config, root=str(tmp_path / "other")) as client,
            client.subscriber(cursor=rt.Registered("etl"), follow=False) as reader,
        ):
            left = [bytes(each.payload) for each in reader]
    assert left == [b"%d" % each for each in range(60, 101)]


def test_a_standby_that_lags_is_promoted_and_publishers_send_again_what_it_lacks(standby, tmp_path):
    """The cluster is lost with messages that were merged there, confirmed and not copied."""
    old, pull, carrier, _ = standby
    push = old.push(keep_s=3600)
    publisher = old.publisher("jfk")
    first = [b"%d" % each for each in range(1000)]
    publisher.publish_many([each.ljust(500, b".") for each in first])
    publisher.flush("merged", timeout_s=60)
    end = old.merged_end()
    assert eventually(lambda: Position.parse(carrier.record.proven_to) >= end, 60)
    carrier.stop()
    pull.stop()
    late = [b"late %d" % each for each in range(1000)]
    publisher.publish_many([each.ljust(500, b".") for each in late])
    publisher.flush("merged", timeout_s=60)
    assert eventually(lambda: old.ledger("n1").number == 2000, 60), "it may lag, and is compared"
    push.stop()
    for name in list(old.nodes):
        old.stop(name)
    new, done = promoted(old, tmp_path, "--now")
    with new:
        assert "may be missing" in done.stdout
        lost = [old.out("n1"), os.path.join(old.clients, "sub", STREAM, "out")]
        compared = json.loads(run("standby", "compare", *lost, "--json").stdout)
        assert (compared["beyond"], compared["lost"], compared["missing"]) == (
            1000, 1000, {"jfk": [[1000, 2000]]},
        )  # fmt: skip
        new.push()
        publisher.publish(b"after")
        publisher.flush("merged", timeout_s=60)
        pulled = PullClient(
            str(tmp_path / "reader"), STREAM, new.addresses, new.contexts("subscriber")
        )  # fmt: skip
        pulled.start()
        new.undo.callback(pulled.stop)
        found = max(node.merged_end for node in new.nodes.values())
        assert eventually(lambda: pulled.status().position >= found, 60), pulled.status()
        texts = [each.rstrip(b".") for each in payloads(str(tmp_path / "reader"))]
        again = run("standby", "compare", lost[0], str(tmp_path / "reader" / STREAM / "out"))
        assert again.exit_code == 0, again.output
    assert texts == [*first, *late, b"after"]


def test_publishers_of_a_client_keep_what_the_standby_does_not_have_yet(standby, tmp_path):
    """The program that publishes is the only one that still has it when the cluster is lost."""
    old, pull, carrier, _ = standby
    config, root = os.path.join(old.root, "clients.toml"), str(tmp_path / "program")
    own = os.path.join(root, STREAM, "jfk")
    writer = WriterSettings(file_bytes_max=FILE_BYTES)
    with rt.connect(config, root=root, keep="standby") as client:
        publisher = client.publisher("jfk", writer=writer)

        def publish(count):
            for _ in range(count):
                publisher.publish_many([b"x" * 1000] * 100)
            publisher.flush("merged", timeout_s=60)

        publish(10)
        assert eventually(lambda: held_bytes(own) <= 2 * FILE_BYTES, 60), "the standby has it"
        carrier.stop()
        pull.stop()
        publish(10)
        assert not eventually(lambda: held_bytes(own) < 900_000, 8), "it was given up too early"


@pytest.mark.parametrize("keep", ["1parsec", "-1s", "inf", "mirror"])
def test_a_wrong_time_to_keep_is_refused_with_what_is_possible(keep):
    """A mistyped word must not mean that nothing is kept."""
    with pytest.raises(Misuse, match=f"keep is '{keep}'; use a time such as 1h, or standby"):
        parse_keep(keep)


def promoting(old, directory, root):
    """Return the command that gives a cluster up."""
    authority = os.path.join(old.root, "certs")
    return ["standby", "promote", str(directory), "--root", root, "--stream", STREAM, "--now",
            "--authority", authority]  # fmt: skip


def test_a_promoted_copy_does_not_grow_and_is_promoted_once(standby, tmp_path):
    """Two clusters must not continue one log, nor one of them lack what the other took."""
    old, pull, carrier, _ = standby
    root = os.path.join(old.clients, "sub")
    assert eventually(lambda: written(old).state_index, 60)
    writing = run(*promoting(old, tmp_path / "early", root))
    assert writing.exit_code == 2
    assert "a promoted copy must not grow: stop rt pull --standby" in writing.stderr
    carrier.stop()
    pull.stop()
    made = run(*promoting(old, tmp_path / "second", root))
    assert made.exit_code == 0, made.output
    assert f"rt standby fence --root {root}" in made.stdout
    refused = run("pull", "--root", root, "--stream", STREAM, "--once", *link(old, "subscriber"))
    assert refused.exit_code == 2
    assert "takes nothing more: it was promoted" in refused.stderr
    shown = run("standby", "status", "--root", root, "--stream", STREAM, "--max", "0.001")
    assert shown.exit_code == 0, shown.output
    assert "it was promoted, and takes nothing more: its log continues at localhost" in shown.stdout
    again = run(*promoting(old, tmp_path / "third", root))
    assert again.exit_code == 2
    assert "two clusters must not continue one log" in again.stderr


def test_a_cluster_that_was_given_up_is_sealed_when_it_comes_back(standby, tmp_path):
    """A partition: the old site merged on. It hears of the new log, keeps its tail and follows."""
    old, pull, carrier, _ = standby
    push, copy = old.push(keep_s=3600), os.path.join(old.clients, "sub")
    publisher = old.publisher("jfk")
    publisher.publish_many([b"%d" % each for each in range(100)])
    publisher.flush("merged", timeout_s=60)
    end = old.merged_end()
    assert eventually(lambda: Position.parse(carrier.record.proven_to) >= end, 60)
    carrier.stop()
    pull.stop()
    publisher.publish_many([b"late %d" % each for each in range(50)])
    publisher.flush("merged", timeout_s=60)
    assert eventually(lambda: old.ledger("n1").number == 150, 60), "it may lag, and rejoins"
    push.stop()
    new, _ = promoted(old, tmp_path, "--now")
    with new, open(os.path.join(copy, STREAM, "standby.succession"), encoding="utf-8") as file:
        new.push()
        publisher.publish(b"after")
        publisher.flush("merged", timeout_s=60)
        fencing = ["standby", "fence", "--root", copy, "--stream", STREAM, *link(old, "subscriber")]
        for words in ("its log ends at", "was sealed before"):  # it may be run again
            told = run(*fencing)
            assert told.exit_code == 0, told.output
            assert words in told.stdout
        with pytest.raises(Refused, match="continues at localhost"):
            old.ask({"do": "end", "latest": True}, who="subscriber")
        with pytest.raises(Refused, match="and this is"):
            new.ask({"do": "succeed", "succession": file.read()}, who="n4")
        for name in list(old.nodes):
            old.stop(name)
        root = os.path.join(old.root, "n1")
        rejoins_a_node(root, file.name, os.path.join(new.root, "certs"))
        pulled = run("pull", "--once", "--root", root, "--stream", STREAM, *link(new, "subscriber"))
        assert pulled.exit_code == 0, pulled.output
        here = payloads(root)
    late = [b"late %d" % each for each in range(50)]
    assert here == [*(b"%d" % each for each in range(100)), *late, b"after"]


def rejoins_a_node(root, succession, certs):
    """Demand that a node's log becomes a copy of the new one, and that its tail is kept."""
    words = ["standby", "rejoin", "--root", root, "--stream", STREAM, "--succession", succession]
    dry, found = (json.loads(run(*words, "--certs", certs, "--json", *more).stdout)
                  for more in (["--dry-run"], []))  # fmt: skip
    assert dry == found
    assert found["beyond"] == {"jfk": [[100, 150]]}
    with open(os.path.join(found["aside"], "beyond.tsv"), encoding="utf-8") as file:
        assert file.read().splitlines()[1:] == ["jfk\t100\t149"]
    for each in (os.path.join(root, STREAM, "out"), found["aside"]):
        assert run("verify", each).exit_code == 0
    node = run("node", "--config", os.path.join(os.path.dirname(root), "n1.toml"))
    assert node.exit_code == exits.BAD_USE, node.output
    assert "is a copy of another log" in node.output


def test_a_node_of_a_lost_site_does_not_start_before_the_standby_was_asked(tmp_path):
    """Another cluster may continue its log; an operator may say that none does."""
    [place] = init_local_cluster(str(tmp_path / "one"), STREAM, 1)
    [there] = free_addresses(1)

    for more, words in (
        ((), "serves stream"),  # there is no log that could have been given up
        (("--standby", there), "does not start yet, since another cluster may continue its log"),
        (("--standby", there, "--without-standby"), "serves stream"),
    ):
        with start("node", "--config", place.config, *more, text=True) as process:
            said = process.stderr if len(more) == 2 else process.stdout
            try:
                assert words in said.readline()
            finally:
                process.terminate()
            assert process.wait(60) == 0
