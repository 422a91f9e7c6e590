"""Operators: who may change a stream for everyone, and what the audit log says of it."""

import json
import os
import stat
import threading
import tomllib

import pytest

from rt.errors import Misuse, Refused
from rt.net.authority.certificates import certificate_files, init_authority, issue, load_certificate
from rt.net.authority.grants import GRANTS_NAME, Grant, read_grants
from rt.net.authority.identity import CertificateRole, PeerIdentity
from rt.net.status import ask_status
from rt.node.admin.audit import AuditLog
from rt.node.founding.cluster_files import init_cluster
from rt.node.founding.layout import ClusterLayout
from tests.archive_cluster import ArchiveCluster
from tests.commands import run
from tests.control_fuzz import REQUESTS, node_admin

LOOKS = ("policy", "plan")
OWN = ("lease", "release")
CURSORS = ("cursors", "cursor-open", "cursor-ack", "cursor-reset", "cursor-forget")
ROLES = {
    "operator": PeerIdentity("alice", CertificateRole.OPERATOR),
    "node": PeerIdentity("n1", CertificateRole.NODE),
    "subscriber": PeerIdentity("spark", CertificateRole.SUBSCRIBER, streams=("*",)),
    "subscriber with leases": PeerIdentity(
        "spark", CertificateRole.SUBSCRIBER, streams=("*",), leases=True
    ),
    "other stream's subscriber": PeerIdentity(
        "spark", CertificateRole.SUBSCRIBER, streams=("trains",)
    ),
    "publisher": PeerIdentity("jfk", CertificateRole.PUBLISHER, sessions=("*",)),
}
MAY = {
    "operator": {each["do"] for each in REQUESTS},
    "node": {each["do"] for each in REQUESTS},
    "subscriber": {*LOOKS, *CURSORS},
    "subscriber with leases": {*LOOKS, *OWN, *CURSORS},
    "other stream's subscriber": set(),
    "publisher": set(),
}


@pytest.fixture
def audit(tmp_path):
    """Return an empty audit log."""
    return AuditLog(str(tmp_path / "audit.jsonl"))


def lines(audit):
    """Return what an audit log says."""
    if not os.path.exists(audit.path):
        return []
    with open(audit.path, encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def ask_here(admin, request, identity, where="10.0.0.1:5"):
    """Ask a desk without a connection."""
    return json.loads(admin.answer(json.dumps(request).encode(), identity, where))


@pytest.mark.parametrize("request_", REQUESTS, ids=lambda request: request["do"])
@pytest.mark.parametrize("role", ROLES)
def test_each_role_may_ask_what_its_certificate_grants(role, request_, audit):
    """A leaked subscriber's key must not delete a stream by its policy."""
    answer = ask_here(node_admin(audit), {**request_, "holder": "spark"}, ROLES[role])
    assert (answer.get("code") != "role") == (request_["do"] in MAY[role]), answer


def test_a_subscriber_releases_its_own_lease_and_no_other(audit):
    """A lease protects a reader from everyone else."""
    admin, spark = node_admin(audit), ROLES["subscriber with leases"]
    assert "released" in ask_here(admin, {"do": "release"}, spark)
    assert ask_here(admin, {"do": "release", "holder": "nas"}, spark)["code"] == "role"
    assert "released" in ask_here(admin, {"do": "release", "holder": "nas"}, ROLES["operator"])


def test_a_decision_is_one_line_of_the_audit_log(audit):
    """Who set the policy, when, from where, and which instruction carried it out."""
    admin = node_admin(audit)
    request = {"do": "set-policy", "policy": {"time": 60}}
    ask_here(admin, {"do": "policy"}, ROLES["operator"])
    ask_here(admin, request, ROLES["operator"])
    ask_here(admin, {"do": "roll"}, ROLES["subscriber"])
    done, refused = lines(audit)
    assert (done["by"], done["from"], done["outcome"]) == ("operator alice", "10.0.0.1:5", "done")
    assert done["asked"] == {**request, "policy": '{"time": 60}', "stream": "flights"}
    assert (done["after"], done["by_instruction"]) == (0, 1)
    assert (refused["by"], refused["outcome"]) == ("subscriber spark", "role")
    assert "may not ask this" in refused["why"]
    assert stat.S_IMODE(os.stat(audit.path).st_mode) == 0o600


def test_refusals_of_a_minute_are_one_line(tmp_path):
    """A peer that is refused may ask again fifty times a second, and fill the disk."""
    now = [0.0]
    audit = AuditLog(str(tmp_path / "audit.jsonl"), lambda: now[0])
    for _ in range(100):
        audit.record({"do": "roll"}, "subscriber spark", "", "role")
    audit.record({"do": "roll"}, "subscriber nas", "", "role")
    now[0] += 61
    audit.record({"do": "roll"}, "subscriber spark", "", "role")
    assert [each["left_out"] for each in lines(audit)] == [0, 0, 99]
    for _ in range(3):
        audit.record({"do": "roll"}, "operator alice", "", "done")
    assert len(lines(audit)) == 6


def test_clients_that_were_refused_long_ago_take_no_lines_from_others(tmp_path):
    """Counts are kept of so many kinds; all beyond them shared a line a minute for good."""
    now = [0.0]
    audit = AuditLog(str(tmp_path / "audit.jsonl"), lambda: now[0], budgets_max=8)
    for number in range(12):
        for _ in range(3):
            audit.record({"do": "roll"}, f"subscriber {number}", "", "role")
    assert len(lines(audit)) == 8 + 1, "those beyond the eighth share one"
    now[0] += 61
    for _ in range(5):
        audit.record({"do": "lease"}, "subscriber nas", "", "done", is_client=True)
    assert [each["by"] for each in lines(audit)[9:]] == ["subscriber nas"] * 5
    audit.record({"do": "roll"}, "subscriber 1", "", "role")
    audit.budgets_max = 0
    audit.record({"do": "roll"}, "subscriber last", "", "role", is_client=True)
    assert lines(audit)[-1]["left_out"] == 8 * 2 + 4 * 3 - 1, "what was left out is said once"


def test_a_client_that_asks_again_and_again_takes_little_of_the_audit_log(tmp_path):
    """A subscriber with leases rotated away what operators had done, in 18 minutes."""
    now = [0.0]
    audit = AuditLog(str(tmp_path / "audit.jsonl"), lambda: now[0])
    for _ in range(1000):
        audit.record({"do": "lease"}, "subscriber spark", "", "done", is_client=True)
        audit.record({"do": "roll"}, "subscriber spark", "", "role", is_client=True)
    assert len(lines(audit)) == 60
    audit.record({"do": "lease"}, "subscriber nas", "", "done", is_client=True)
    audit.record({"do": "roll"}, "operator alice", "", "done")
    now[0] += 120
    for _ in range(5):
        audit.record({"do": "lease"}, "subscriber spark", "", "done", is_client=True)
    *_, nas, alice, first, second = lines(audit)
    assert (nas["by"], alice["by"]) == ("subscriber nas", "operator alice")
    assert first["left_out"] == 1000 - 59
    assert (second["by"], "left_out" in second) == ("subscriber spark", False)


def test_a_request_is_recorded_short_and_on_one_line(audit):
    """The log is read in terminals and by scripts; the request is a peer's."""
    hostile = {"do": "lease", "start": "\n\x1b[2J\u202e", "holder": "x" * 10_000, "n": 10**4000}
    hostile |= {f"k{n}": n for n in range(100)}
    audit.record(hostile, "subscriber spark", "", "misuse")
    with open(audit.path, "rb") as file:
        data = file.read()
    assert data.count(b"\n") == 1
    assert len(data) < 2000
    assert all(0x20 <= byte < 0x7F for byte in data[:-1])
    audit.record({f"{n}" + "\1" * 10_000: "\1" * 200 for n in range(16)}, "operator x", "", "done")
    assert os.path.getsize(audit.path) - len(data) < 5000


def test_a_full_audit_log_becomes_the_older_one(tmp_path):
    """It may fill no disk, and a day of it must be there."""
    audit = AuditLog(str(tmp_path / "audit.jsonl"), file_bytes_max=1000)
    for number in range(20):
        audit.record({"do": "roll", "n": number}, "operator alice", "", "done")
    assert os.path.getsize(audit.path) <= 1200
    with open(f"{audit.path}.1", encoding="utf-8") as file:
        older = [json.loads(line)["asked"]["n"] for line in file]
    assert [*older, *(each["asked"]["n"] for each in lines(audit))][-5:] == [15, 16, 17, 18, 19]


def test_an_audit_log_that_cannot_be_written_stops_no_decision(tmp_path, caplog):
    """A policy that frees the disk must get through on a full disk."""
    audit = AuditLog(str(tmp_path / "missing" / "audit.jsonl"))
    assert "policy" in ask_here(node_admin(audit), REQUESTS[1], ROLES["operator"])
    assert "a decision was not recorded" in caplog.text


@pytest.mark.parametrize("is_read", [False, True])
def test_an_audit_log_waits_for_no_planted_pipe(audit, caplog, is_read):
    """It is written under a lock: the first change would have stopped every other for good."""
    os.mkfifo(audit.path)
    reader = os.open(audit.path, os.O_RDONLY | os.O_NONBLOCK) if is_read else -1
    recording = threading.Thread(
        target=audit.record, args=({"do": "roll"}, "operator alice", "", "done"), daemon=True
    )
    recording.start()
    recording.join(60)
    if is_read:
        os.close(reader)
    assert not recording.is_alive()
    assert "a decision was not recorded" in caplog.text


def test_a_line_that_was_cut_short_takes_no_other_with_it(audit):
    """A full disk or a power cut leaves half a line, in which the next decision began."""
    audit.record({"do": "roll"}, "operator alice", "", "done")
    with open(audit.path, "ab") as file:
        file.write(b'{"time": "20')
    audit.record({"do": "roll"}, "operator bob", "", "done")
    with open(audit.path, encoding="utf-8") as file:
        assert json.loads(file.read().splitlines()[-1])["by"] == "operator bob"


def test_an_audit_log_follows_no_planted_link(tmp_path, caplog):
    """Anyone who can write beside it must not choose the file that we append to."""
    target = tmp_path / "target"
    target.touch()
    (tmp_path / "audit.jsonl").symlink_to(target)
    AuditLog(str(tmp_path / "audit.jsonl")).record({"do": "roll"}, "operator alice", "", "done")
    assert target.read_bytes() == b""
    assert "was not recorded" in caplog.text


def test_a_cluster_obeys_an_operator_and_records_it(tmp_path):
    """From the key to the line, over real connections and a real majority."""
    with ArchiveCluster(tmp_path, nodes=3) as cluster:
        certs = os.path.join(cluster.root, "certs")
        issue(certs, "n9", CertificateRole.NODE)
        wanted = {"do": "set-policy", "policy": {"time": 77}}
        assert cluster.ask(wanted, "operator")["policy"]["time"] == 77
        with pytest.raises(Refused, match="subscriber subscriber may not ask this"):
            cluster.ask(wanted, "subscriber")
        with pytest.raises(Refused, match="'n9' is not a node of this cluster"):
            cluster.ask({"do": "policy"}, "n9")
        with pytest.raises(Refused, match="'n9' is not a node of this cluster"):
            ask_status(cluster.addresses[0], cluster.contexts("n9"))
        paths = [node.directory.audit for node in cluster.nodes.values()]
        found = [each for path in paths for each in lines(AuditLog(path))]
    done = [each for each in found if each["outcome"] == "done"]
    assert [each["by"] for each in done] == ["operator operator"]
    assert done[0]["from"].startswith("127.0.0.1:")
    assert done[0]["by_instruction"] > done[0]["after"]
    assert "role" in {each["outcome"] for each in found}


def test_a_cluster_is_made_with_a_certificate_for_each_named_client(tmp_path):
    """A shared certificate for every session cannot be revoked for one publisher."""
    directory = str(tmp_path / "c")
    init_cluster(
        directory, "flights", ["localhost:1"], publishers=["jfk", "lga"], subscribers=["spark"]
    )
    names = {name.partition(".")[0] for name in os.listdir(f"{directory}/certs")}
    assert names == {"ca", "grants", "issued", "n1", "jfk", "lga", "spark", "operator"}
    table = read_grants(f"{directory}/certs/{GRANTS_NAME}")
    assert table[CertificateRole.PUBLISHER, "jfk"] == Grant(sessions=("jfk",))
    assert table[CertificateRole.SUBSCRIBER, "spark"] == Grant(streams=("flights",))
    with open(f"{directory}/clients.toml", "rb") as file:
        tables = tomllib.load(file)
    identities = {name: table.get("identity") for name, table in tables.items()}
    assert (identities["push"], identities["pull"]) == ("jfk", "spark")
    assert (identities["status"], identities["archive"]) == ("spark", "operator")


@pytest.mark.parametrize("names", [["n1"], ["operator"], ["ca"], ["a", "a"], ["../x"]])
def test_a_client_takes_no_name_of_another_holder(tmp_path, names):
    """A half-made cluster would be found by the next start, not by the one that was wrong."""
    with pytest.raises(Misuse):
        init_cluster(str(tmp_path / "c"), "flights", ["localhost:1"], publishers=names)
    assert not os.path.exists(tmp_path / "c")


def test_a_cluster_is_certified_by_an_authority_that_exists(tmp_path):
    """One authority for several clusters: peers of both are known by one ca.pem."""
    pki = str(tmp_path / "pki")
    init_authority(pki)
    layout = ClusterLayout(authority=pki)
    for name in ("one", "two"):
        places = init_cluster(str(tmp_path / name), "flights", ["a:1"], layout=layout)
        ca = (tmp_path / name / "certs" / "ca.pem").read_bytes()
        assert ca == (tmp_path / "pki" / "ca.pem").read_bytes()
        files = certificate_files(str(tmp_path / name / "certs"), places[0].name)
        own = load_certificate(files.cert)
        own.verify_directly_issued_by(load_certificate(files.ca))
    assert stat.S_IMODE(os.stat(tmp_path / "one" / "certs" / "ca.key").st_mode) == 0o600


def test_what_is_no_authority_certifies_nothing(tmp_path):
    """And leaves no half-made cluster that is in the way of the next attempt."""
    pki = tmp_path / "pki"
    init_authority(str(pki))
    issue(str(pki), "n1", CertificateRole.NODE, hosts=("a",))
    leaf = tmp_path / "leaf"
    leaf.mkdir(mode=0o700)
    for end in ("pem", "key"):
        (leaf / f"ca.{end}").write_bytes((pki / f"n1.{end}").read_bytes())
        (leaf / f"ca.{end}").chmod(0o600)
    for directory, words in ((leaf, "not an authority"), (tmp_path / "none", "no authority in")):
        with pytest.raises(Misuse, match=words):
            init_cluster(
                str(tmp_path / "c"), "flights", ["a:1"],
                layout=ClusterLayout(authority=str(directory)),
            )  # fmt: skip
        assert not (tmp_path / "c").exists()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--name", "x"], "1 names for 3 nodes"),
        (["--name", "x", "--name", "x", "--name", "y"], "give each a name of its own"),
        (["--name", "ca", "--name", "x", "--name", "y"], "cannot name a node here"),
        (["--name", "../x", "--name", "x", "--name", "y"], "not a"),
        (["--name", "a", "--name", "b", "--name", "c", "--publisher", "b"], "another holder"),
        (["--node-root", "data"], "is not an absolute path"),
        (["--node-root", "/data", "--address", "c:2"], "cannot share /data"),
    ],
)
def test_names_and_paths_that_cannot_be_are_refused_before_anything_is_written(
    tmp_path, options, words
):
    """A name becomes a file's name."""
    addresses = ["--address", "a:1", "--address", "b:1"]
    if "--address" not in options:
        addresses += ["--address", "c:1"]
    else:
        addresses[1] = "c:1"
    done = run("cluster", "init", tmp_path / "c", *addresses, *options)
    assert (done.exit_code, words in done.stderr) == (2, True), done.output
    assert not (tmp_path / "c").exists()
