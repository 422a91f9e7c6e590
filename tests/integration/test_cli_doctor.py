"""`rt doctor`: what it finds, and that each finding says what to do."""

import json
import os
import socket
import time

import pytest

from rt.cli.common.asking import NodeAnswer
from rt.cli.look import doctor_machine
from rt.cli.look.diagnosis import Grade
from rt.cli.look.doctor_cluster import cluster_findings
from rt.cli.look.status import report_of
from rt.client.readers.settings import ConnectionSettings
from rt.config.settings import load
from rt.node.founding.cluster_files import free_addresses, init_cluster
from rt.node.settings.node import NodeSettings
from rt.version import __version__
from tests.archive_cluster import ArchiveCluster
from tests.commands import run
from tests.node_answers import answer
from tests.replicator_host import eventually

DAY_NS = 24 * 3600 * 10**9  # longer than from the collection of the tests to their end
PLACES = {"n1": "a:7420", "n2": "b:7420", "n3": "c:7420"}


def asked(name, **changed):
    """Return what a healthy node answers now."""
    now_ns = time.time_ns()
    return NodeAnswer(
        PLACES[name],
        answer(name, **{"addresses": PLACES, "version": __version__, "certificate_days": 29.0,
                        "disk_reserve": 1 << 20, "now_ns": now_ns} | changed),
        sent_ns=now_ns, took_s=0.01,
    )  # fmt: skip


def settings(*nodes):
    """Return settings that list some nodes."""
    return ConnectionSettings(stream="flights", nodes=nodes)


def found(*answers, listed=()):
    """Return the problems that were found, by subject."""
    ours = settings(*(listed or [each.address for each in answers]))
    every = [*cluster_findings(answers, report_of(list(answers)), ours)]
    for each in every:
        assert bool(each.advice) == (each.grade is not Grade.OK), each
    return [(each.about, each.said) for each in every if each.grade is not Grade.OK]


def test_nothing_is_wrong_with_a_cluster_that_is_well():
    """A doctor that always finds something is not asked again."""
    assert found(*map(asked, PLACES)) == []


@pytest.mark.parametrize(
    ("changed", "about", "words"),
    [
        ({"now_ns": time.time_ns() + DAY_NS}, "clocks", "the clock of n2 is "),
        ({"now_ns": time.time_ns() - DAY_NS}, "clocks", "is 1 d behind ours"),
        ({"version": "0.0.9"}, "versions", "n2: rt 0.0.9, nodes' protocol 7, wire 2; n1, n3: rt"),
        ({"speaks": {"nodes": [7, 8], "wire": [2, 3]}}, "versions", "which work together"),
        ({"speaks": {"nodes": [7, 9], "wire": [2, 2]}}, "versions", "nodes' protocol 7 or 9, wire"),
        ({"speaks": {"nodes": [8], "wire": [2, 3]}}, "versions", "n1 and n2 have no version of"),
        ({"speaks": {"nodes": [7], "wire": [3, 4]}}, "versions", "n2 and n3 have no version of"),
        ({"disk_free": 2 << 20}, "disks", "n2 has 2.0 MiB free, and refuses new data below 1.0"),
        (
            {"takes_data": False, "disk_free": 2 << 20},
            "cluster",
            "n2 refuses new data, as its disk is nearly full: 2.0 MiB are left, and it keeps",
        ),
        ({"certificate_days": 3.0}, "certificates", "expires in 3 days"),
        ({"certificate_days": None}, "certificates", "cannot read its certificate"),
        ({"stream": "other"}, "configuration", "n2 serves stream other, and flights is set"),
        ({"cluster": "d" * 32}, "configuration", "of different clusters"),
        ({"unreachable": {"n1": "refused"}}, "cluster", "n2 cannot reach n1"),
        ({"addresses": {"n1": 5}}, "", ""),
        ({"version": ["x"]}, "", ""),
        ({"speaks": {"nodes": ["x"]}}, "", ""),
        ({"speaks": {"nodes": [], "wire": [2, 2]}}, "", ""),
    ],
)
def test_each_fault_is_found_and_says_what_to_do(changed, about, words):
    """The finding, and not the symptom it causes next week."""
    wrong = found(asked("n1"), asked("n2", **changed), asked("n3"))
    if about:
        assert any(each == about and words in said for each, said in wrong), wrong


def test_a_full_disk_is_one_finding_with_what_follows_from_it():
    """It was four: the disk twice, the copy and the session that waited for room."""
    full = {
        "takes_data": False, "disk_free": 2 << 20, "copying_to": "0.0.7",
        "waiting_for": {"session": "jfk", "end": "0.0.9"},
    }  # fmt: skip
    [(about, said)] = found(asked("n1"), asked("n2", **full), asked("n3"))
    assert about == "cluster"
    assert said.endswith("; so it is copying the merged log, at 0.0.7; it waits for session jfk")


def test_an_update_that_is_not_final_is_named():
    """New features wait for it, and an operator may not think of it weeks later."""
    every = {"speaks": {"nodes": [7, 9], "wire": [2, 3]}}
    for level, expected in ((7, ["versions"]), (9, []), (0, [])):
        wrong = found(*(asked(name, level=level, **every) for name in PLACES))
        assert [about for about, said in wrong if "level 9" in said] == expected, wrong


def test_a_node_that_is_not_listed_is_named():
    """The one address that was listed is the one that is down."""
    [(about, said)] = found(asked("n1"))
    assert (about, "n2 at b:7420, n3 at c:7420" in said) == ("configuration", True)


def test_a_list_that_names_another_address_is_not_called_whole():
    """The nodes had told where n3 is, and so all three were asked."""
    wrong = found(*map(asked, PLACES), listed=("a:7420", "b:7420", "d:1"))
    assert [said for _, said in wrong] == [
        "nodes of the cluster that are not listed: n3 at c:7420",
        "listed addresses that are no node's: d:1",
    ]
    assert found(*map(asked, PLACES), listed=("gateway:1", "gateway:2", "gateway:3")) == []
    [(_, said)] = found(*map(asked, PLACES), listed=("gateway:1",))
    assert "n3 at c:7420" in said, "one address of three is too few, behind a gateway as well"


@pytest.mark.parametrize(
    ("error", "is_refusal", "advice"),
    [
        ("no answer from b:7420 (connection refused)", False, "is the node running at b"),
        ("no answer from b:7420 (name or service not known)", False, "look up b"),
        ("no answer from b:7420 (timed out)", False, "does a firewall let port 7420 pass"),
        ("b:7420: it refused our certificate as expired", True, "see what it says"),
    ],
)
def test_a_node_that_cannot_be_asked_has_advice_by_the_error(error, is_refusal, advice):
    """Refused, lost and unknown are three different walks to the machine."""
    answers = [asked("n1"), NodeAnswer("b:7420", {}, error, is_refusal), asked("n3")]
    every = [*cluster_findings(answers, report_of(answers), settings(*PLACES.values()))]
    [ports] = [each for each in every if each.about == "ports" and each.advice]
    assert advice in ports.advice
    assert not [each for each in every if each.about == "cluster" and each.advice]


@pytest.fixture
def places(tmp_path):
    """The files of a cluster of three on this machine, of which none runs."""
    return init_cluster(str(tmp_path), "flights", free_addresses(3))


def on_machine(place, **changed):
    """Return what is wrong with a node's machine."""
    settings = load(NodeSettings, place.config, "node", {}, changed)
    every = [*doctor_machine.node_findings(settings, runs=False)]
    assert all(each.advice for each in every if each.grade is not Grade.OK)
    return [(each.about, each.said) for each in every if each.grade is not Grade.OK]


def test_a_port_that_something_else_holds_is_found(places):
    """The node would say so only when it is started."""
    [(_, said)] = on_machine(places[0])
    assert said.startswith("nothing listens on")
    with socket.socket() as other:
        other.bind(("127.0.0.1", int(places[0].address.rpartition(":")[2])))
        other.listen()
        [(about, said)] = on_machine(places[0], listen=f"127.0.0.1:{other.getsockname()[1]}")
    assert (about, "cannot be listened on" in said) == ("ports", True)


@pytest.mark.parametrize(
    ("mode", "said"),
    [(0o644, "everyone may read this key"), (0o660, "its group may write this key"), (0o640, "")],
)
def test_a_key_is_judged_as_the_programs_judge_it(places, tmp_path, mode, said):
    """It warned of a key that they take, and of one that they refuse with other words."""
    key = tmp_path / "certs" / "n1.key"
    key.chmod(mode)
    found = [words for about, words in on_machine(places[0]) if about == "certificates"]
    assert bool(found) == bool(said)
    assert all(words.startswith(f"{key}: {said}") for words in found)


def test_a_certificate_that_others_cannot_use_is_found(places, tmp_path):
    """A name that is missing, and no file at all."""
    moved = [f"{each.name}=elsewhere:{number}" for number, each in enumerate(places, 1)]
    wrong = dict(on_machine(places[1], members=moved))
    assert "does not name elsewhere" in wrong["certificates"]
    (tmp_path / "certs" / "n3.pem").unlink()
    assert "no such" in dict(on_machine(places[2]))["certificates"]


def test_a_disk_that_loses_or_slows_what_is_acknowledged_is_found():
    """Memory, a network, and a disk whose syncs take a second."""
    for kind, words in (("tmpfs", "is in memory"), ("nfs4", "is on a network")):
        [each] = doctor_machine.file_system("/srv/rt", kind)
        assert words in each.said
    assert [*doctor_machine.file_system("/srv/rt", "ext4")] == []
    slow, quick = (doctor_machine.sync_time("/srv/rt", 1 << 30, taken) for taken in (1.2, 0.002))
    assert (slow.grade, "a sync takes 1.2 s" in slow.said) == (Grade.WARNING, True)
    assert (quick.grade, "a sync takes 2 ms" in quick.said) == (Grade.OK, True)


@pytest.mark.skipif(not os.path.ismount("/dev/shm"), reason="no file system in memory is there")
def test_a_directory_in_memory_is_recognized():
    """`/tmp` is in memory on some systems, and nothing says so."""
    assert "is in memory (tmpfs)" in next(doctor_machine.disk("/dev/shm/rt")).said


def test_few_descriptors_are_found():
    """It is found at the 1,000th session otherwise."""
    [each] = doctor_machine.descriptors(1024)
    assert (each.grade, "LimitNOFILE" in each.advice) == (Grade.WARNING, True)


def test_the_command_looks_at_a_real_cluster_as_client_and_as_node(tmp_path):
    """With a node down, and with a file that names another cluster."""
    with ArchiveCluster(tmp_path, 3) as cluster:
        clients, first = f"{tmp_path}/clients.toml", f"{tmp_path}/n1.toml"
        every = []

        def is_whole():
            every[:] = json.loads(run("doctor", "--config", clients, "--json").stdout)
            return not [each for each in every if each["grade"] == "problem"]

        assert eventually(is_whole), every  # once each node has reached the others, and one leads
        assert {each["about"] for each in every} >= {
            "ports", "certificates", "clocks", "disks", "versions", "configuration", "descriptors",
        }  # fmt: skip
        node = run("doctor", "--node", first, "--quiet")
        assert "the node runs" not in node.stdout
        assert "the node runs and listens" in run("doctor", "--node", first).stdout
        cluster.stop("n3")
        down = []

        def is_one_thing():
            down[:] = [run("doctor", "--config", clients, "--quiet")]
            return "1 thing is wrong" in down[0].stdout

        assert eventually(is_one_thing), down[0].stdout  # two until another leads, if n3 did
        assert down[0].exit_code == 1
        assert "n3 at localhost" in down[0].stdout
        text = (tmp_path / "n1.toml").read_text()
        other = tmp_path / "other.toml"
        other.write_text(text.replace('cluster_id = "', 'cluster_id = "00'))
        assert "is of another cluster than the file" in run("doctor", "--node", other).stdout


def test_a_certificate_that_is_missing_is_a_finding_and_no_traceback(tmp_path):
    """The first thing that a newcomer meets."""
    done = run("doctor", "--certs", tmp_path)
    assert done.exit_code == 1
    assert "rt certs issue client" in done.stdout
    assert run("doctor", "--node", "/nowhere.toml").exit_code == 2
