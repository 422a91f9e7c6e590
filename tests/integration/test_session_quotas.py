"""Nodes agree on how much publishers may push to a stream, and each node enforces it."""

import json
import logging
from pathlib import Path

import pytest

from replicator.limits.budgets import DaySessions
from replicator.limits.quotas import NO_QUOTA, Quota, Quotas
from replicator.push.client import PushClient
from replicator.serve.server import Server
from rt import Publisher
from rt.errors import Misuse, Refused
from rt.limits import MIB
from rt.log.notify.confirmations import Level
from rt.node.sessions.quotas import QUOTAS_NOTE, SessionQuotas, parse_quotas, quotas_of_notes
from tests.archive_cluster import ArchiveCluster
from tests.integration.test_session_ends import PATIENCE_S, decided
from tests.integration.test_session_owners import asked
from tests.replicator_host import STREAM, Certificates, DiskHost, eventually, only


class Held:
    """The quotas of a stream, by a clock and a quota that a test sets."""

    def __init__(self, **quota):
        self.now_s, self.quota = 100.0, Quota(**quota)
        self.quotas = Quotas(lambda name: self.quota if name == "jfk" else NO_QUOTA, self.clock)

    def clock(self):
        return self.now_s


def test_a_publisher_waits_for_what_it_sent_beyond_its_quota():
    """One second of it may be saved up; the others wait for nothing."""
    held = Held(bytes_s=2 * MIB)
    assert held.quotas.spend("jfk", 2 * MIB) == 0.0
    assert held.quotas.spend("jfk", MIB) == 0.5
    assert held.quotas.spend("lga", 1000 * MIB) == 0.0
    held.now_s += 0.25
    assert held.quotas.spend("jfk", 0) == 0.25


def test_what_was_spent_of_another_rate_is_forgiven():
    """A publisher that is given more need not first wait for what it owed."""
    held = Held(bytes_s=MIB)
    assert held.quotas.spend("jfk", 61 * MIB) == 60.0
    held.quota = Quota(bytes_s=2 * MIB)
    assert held.quotas.spend("jfk", MIB) == 0.5


def test_a_session_beyond_the_quota_is_refused_until_a_day_has_passed():
    """Sessions that are pushed already go on."""
    held = Held()
    for name in ("a", "b"):
        held.quotas.claim_session("jfk", name)
    held.quota = Quota(sessions=1)
    held.quotas.claim_session("jfk", "b")
    with pytest.raises(Refused, match="'jfk' pushes 2 sessions a day already") as caught:
        held.quotas.claim_session("jfk", "c")
    assert caught.value.code == "sessions"
    held.quotas.claim_session("lga", "c")
    held.now_s += 86_401
    held.quotas.claim_session("jfk", "c")


def test_sessions_of_earlier_days_are_forgotten_though_no_quota_counts_them():
    """A publisher with a new session for each request filled the memory of its nodes."""
    sessions = DaySessions()
    for day in range(5):
        for number in range(100):
            assert sessions.admit(f"{day}-{number}", 1000, day * 2 * 86_400.0)
    assert len(sessions.claimed_s) == 100


def test_one_publisher_has_limits_of_its_own_and_the_default_for_the_rest():
    """`none` is no limit, and `default` takes its own away again."""
    quotas = SessionQuotas().changed({"bytes_s": "10Mi", "sessions": "5"})
    quotas = quotas.changed({"sessions": "none"}, "jfk").changed({"bytes_s": "1Gi"}, "jfk")
    assert quotas.of("jfk") == Quota(1 << 30, None)
    assert quotas.of("lga") == Quota(10 * MIB, 5)
    assert parse_quotas(quotas.text()) == quotas
    quotas = quotas.changed({"bytes_s": "default", "sessions": "default"}, "jfk")
    assert quotas.of("jfk") == quotas.default
    assert quotas.changed({"bytes_s": "none", "sessions": "none"}).text() == ""


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"bytes_s": "lots"}, "bytes_s is 'lots'"), ({"bytes_s": "1Ki"}, "use at least 1Mi"),
        ({"sessions": "0"}, "sessions is 0"), ({"sessions": "5Ki"}, "use a number, such as 5"),
        ({"sessions": -1}, "sessions is"), ({"messages": 5}, "has no 'messages'"),
        ({"bytes_s": "default"}, "name the publisher"), ([], "is an object"),
    ],
)  # fmt: skip
def test_a_quota_that_makes_no_sense_is_refused(given, words):
    """A typing mistake must not stop a publisher."""
    with pytest.raises(Misuse, match=words):
        SessionQuotas().changed(given)


def test_more_publishers_than_fit_into_a_note_are_refused():
    """Every node keeps the note in memory and in its snapshots."""
    quotas = SessionQuotas()
    for number in range(100):
        quotas = quotas.changed({"sessions": 5}, f"publisher-{number}")
    assert parse_quotas(quotas.text()) == quotas
    for number in range(100, 200):
        quotas = quotas.changed({"sessions": 5}, f"publisher-{number}")
    with pytest.raises(Misuse, match="200 publishers have quotas of their own; that is too many"):
        quotas.text()


@pytest.mark.parametrize("text", ["{", "[]", '{"publishers":5}', '{"messages_s":5}'])
def test_quotas_of_a_newer_version_hold_no_one(text, caplog):
    """A node that ended over them would end again after each start; its log names them."""
    assert quotas_of_notes({QUOTAS_NOTE: text}) == SessionQuotas()
    assert "the note 'quotas' is unknown to this version" in caplog.text


def test_a_connected_publisher_is_held_to_a_quota_and_released_at_once(tmp_path, caplog):
    """An operator must not have to restart nodes or publishers to give one of them more."""
    certs, host = Certificates(str(tmp_path / "ca")), DiskHost(str(tmp_path / "node"))
    server = Server(("localhost", 0), certs.server(), only(host))
    server.start()
    host.quotas = Quota(bytes_s=MIB)
    with Publisher(str(tmp_path / "pub"), stream=STREAM, session="jfk") as publisher:
        for _ in range(30):  # as many seconds
            publisher.publish(bytes(MIB))
    client = PushClient(str(tmp_path / "pub"), STREAM, [server.address], certs.publisher("jfk"))
    try:
        client.start()
        assert eventually(lambda: "slowed down" in caplog.text, PATIENCE_S)
        host.quotas = NO_QUOTA
        assert client.stop(drain_s=60)
    finally:
        client.stop(), server.stop(), host.stop()
    lines = [each.message for each in caplog.records if "slowed down" in each.message]
    assert lines == ["publisher jfk is slowed down to 1.0 MiB a second"]


def test_all_nodes_agree_on_quotas_and_keep_them_over_a_restart(tmp_path):
    """The operator says it once; a setting of each node is easily forgotten on one."""
    with ArchiveCluster(tmp_path, nodes=3) as cluster:
        assert decided(cluster, "quota")["bytes_s"] is None
        decided(cluster, "quota", "--bytes", "20Mi", "--sessions", "5")
        answer = decided(cluster, "quota", "publisher", "--bytes", "none")
        assert answer == {
            "bytes_s": 20 * MIB, "sessions": 5, "publishers": {"publisher": {"bytes_s": None}},
        }  # fmt: skip
        nodes = cluster.nodes
        assert eventually(
            lambda: {each.quota("publisher") for each in nodes.values()} == {Quota(None, 5)}
        )
        assert {each.quota("jfk") for each in nodes.values()} == {Quota(20 * MIB, 5)}
        cluster.stop("n2")
        cluster.start("n2")
        assert decided(cluster, "quota") == answer
        assert eventually(lambda: nodes["n2"].quota("jfk").sessions == 5)
        code, output = asked(cluster, "quota")
        assert code == 0
        assert "a publisher may push 20.0 MiB a second and 5 sessions a day" in output
        assert "publisher may push 5 sessions a day" in output
        line, own = audited(nodes)
        assert line["asked"]["quota"] == '{"bytes_s": "20Mi", "sessions": "5"}'
        assert (own["asked"]["publisher"], own["by"]) == ("publisher", "operator operator")


def audited(nodes):
    """The changes of quotas in the audit logs of all nodes, in order."""
    paths = [Path(each.directory.audit) for each in nodes.values()]
    lines = [each for path in paths if path.exists() for each in path.read_text().splitlines()]
    done = [each for each in map(json.loads, lines) if each["outcome"] == "done"]
    return sorted(
        (each for each in done if each["asked"]["do"] == "set-session-quota"),
        key=lambda each: each["after"],
    )


def test_a_session_too_many_is_pushed_once_the_quota_allows_it(tmp_path):
    """Neither the node nor the publisher is restarted for it."""
    with ArchiveCluster(tmp_path) as cluster:
        decided(cluster, "quota", "--sessions", "1")
        cluster.push(refused_retry_s=0.2)
        first = cluster.publisher("first")
        first.publish(b"x")
        first.flush(Level.MERGED, PATIENCE_S)
        second = cluster.publisher("second")
        second.publish(b"y")
        words = "its quota allows no more (rt session quota)"
        assert eventually(lambda: words in second.shipping_note, PATIENCE_S)
        decided(cluster, "quota", "publisher", "--sessions", "2")
        second.flush(Level.MERGED, PATIENCE_S)


def test_wrong_quotas_are_refused_by_the_command(tmp_path, caplog):
    """Each with an exit code and a sentence, and only an operator may set any."""
    caplog.set_level(logging.ERROR)
    with ArchiveCluster(tmp_path) as cluster:
        for words in (
            ("--bytes", "1Ki"), ("--sessions", "many"), ("a/b", "--bytes", "2Mi"),
            ("", "--bytes", "2Mi"), ("a/b",),
        ):  # fmt: skip
            code, output = asked(cluster, "quota", *words)
            assert (code, "Traceback" in output) == (2, False), output
        assert asked(cluster, "quota", "--bytes", "2Mi", "--identity", "subscriber")[0] == 3
        assert (
            asked(cluster, "quota", "jfk")[1].strip() == "jfk may push as much as each node allows"
        )
