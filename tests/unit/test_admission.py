"""Admission: places on a server, counted without sockets."""

import pytest

from replicator.limits.admission import Admission, ServerLimits
from rt.errors import Misuse, Refused
from rt.limits import MIB
from rt.net.authority.identity import CertificateRole, PeerIdentity

LIMITS = ServerLimits(
    connections=10,
    reserved=2,
    identity_connections=5,
    identity_connects_s=4,
    identity_sessions=3,
    handshakes=6,
    address_handshakes=4,
)


def publisher(name):
    """Return a publisher's identity."""
    return PeerIdentity(name, CertificateRole.PUBLISHER)


def node(name):
    """Return a node's identity."""
    return PeerIdentity(name, CertificateRole.NODE)


@pytest.fixture
def clock():
    """Return a clock that a test sets."""
    return [0.0]


@pytest.fixture
def admission(clock):
    """Return an empty server's places."""
    return Admission(LIMITS, lambda: clock[0])


def enter(admission, key, identity):
    """Take a place, or say why there is none."""
    admission.knock(key, "10.0.0.1")
    try:
        admission.admit(key, identity)
    except Refused as error:
        admission.leave(key)
        return str(error)
    return ""


def test_an_address_with_too_many_handshakes_loses_its_oldest(admission):
    """A flood from one address pushes out its own handshakes only."""
    assert admission.knock("genuine", "10.0.0.2") is None
    assert [admission.knock(n, "10.0.0.1") for n in range(6)] == [None] * 4 + [0, 1]


def test_a_flood_from_many_addresses_loses_the_oldest_of_the_busiest(admission):
    """A newcomer always gets a slot, at the cost of the address that has most of them."""
    for key, host in enumerate(["10.0.0.1", "10.0.0.2", "10.0.0.2", "10.0.0.3", "10.0.0.4"]):
        admission.knock(key, host)
    assert admission.knock("sixth", "10.0.0.5") is None
    assert admission.knock("seventh", "10.0.0.6") == 1


def test_addresses_of_one_ipv6_network_are_one(admission):
    """Its holder has 2^64 of them."""
    hosts = [f"2001:db8::{n}" for n in range(4)]
    assert [admission.knock(host, host) for host in hosts] == [None] * 4
    assert admission.knock("fifth", "2001:db8::ffff%eth0") == hosts[0]
    assert admission.knock("other", "2001:db8:0:1::1") is None


def test_a_displaced_handshake_is_not_admitted(admission):
    """It may finish an instant after its slot went to another."""
    for key in range(5):
        admission.knock(key, "10.0.0.1")
    with pytest.raises(Refused, match="ended for a newer one") as caught:
        admission.admit(0, publisher("jfk"))
    assert caught.value.code == "displaced"


def test_one_name_gets_its_share_and_no_more(admission, clock):
    """One leaked certificate must not lock everyone out."""
    assert [enter(admission, n, publisher("jfk")) for n in range(5)] == [""] * 5
    assert "'jfk' has 5 connections already" in enter(admission, "sixth", publisher("jfk"))
    assert enter(admission, "other", publisher("lga")) == ""
    admission.leave(3)
    assert enter(admission, "again", publisher("jfk")) == ""


def test_places_are_reserved_for_nodes(admission):
    """A cluster whose members cannot reach each other merges nothing."""
    for number in range(8):
        assert enter(admission, number, publisher(f"p{number // 4}")) == ""
    assert "no place is left for 'late'" in enter(admission, "late", publisher("late"))
    assert enter(admission, "n1", node("n1")) == ""
    assert enter(admission, "n2", node("n2")) == ""
    assert "no place is left for 'n3'" in enter(admission, "n3", node("n3"))


def test_a_name_that_connects_too_often_waits(admission, clock):
    """Each connection costs a handshake, and a status request a few milliseconds."""
    taken = 0
    while not (words := enter(admission, taken, publisher("jfk"))):
        admission.leave(taken)
        taken += 1
    assert taken == 40
    assert "'jfk' connects more than 4 times a second" in words
    assert enter(admission, "other", publisher("lga")) == ""
    clock[0] += 0.3
    assert enter(admission, "later", publisher("jfk")) == ""


def test_a_name_pushes_a_bounded_number_of_sessions_a_day(admission, clock):
    """Each costs a node a directory and descriptors, also after its connection has ended."""
    jfk = publisher("jfk")
    for name in ("a", "b", "c", "b"):
        admission.claim_session(jfk, name)
    with pytest.raises(Refused, match="'jfk' pushes 3 sessions a day already") as caught:
        admission.claim_session(jfk, "d")
    assert caught.value.code == "sessions"
    admission.claim_session(publisher("lga"), "d")
    clock[0] += 86_401
    admission.claim_session(jfk, "d")


def test_a_node_passes_on_any_number_of_sessions(admission):
    """They were granted to publishers, and are needed here."""
    for number in range(100):
        admission.claim_session(node("n1"), f"s{number}")
    for number in range(3):
        admission.claim_session(publisher("jfk"), f"s{number}")
    with pytest.raises(Refused, match="sessions a day"):
        admission.claim_session(publisher("jfk"), "s3")


def test_leaving_twice_gives_back_one_place(admission):
    """A count that drifts removes the limit, or leaves the server full for ever."""
    for _ in range(3):
        enter(admission, "a", publisher("jfk"))
        admission.leave("a")
        admission.leave("a")
    assert [enter(admission, n, publisher("jfk")) for n in range(5)] == [""] * 5
    assert enter(admission, "sixth", publisher("jfk"))


@pytest.mark.parametrize(
    "values", [{"connections": 0}, {"handshake_s": 0}, {"reserved": 512}, {"identity_sessions": -1}]
)
def test_limits_that_would_lock_everyone_out_are_refused(values):
    """A typing error in a settings file must not become a silent lock-out."""
    with pytest.raises(Misuse, match=next(iter(values))):
        ServerLimits(**values)


def test_bytes_are_spent_by_a_name_over_all_of_its_connections():
    """A subscriber that loads a year of history must leave the line to the others."""
    now = [0.0]
    admission = Admission(ServerLimits(identity_bytes_s=2 * MIB), lambda: now[0])
    assert admission.spend(publisher("jfk"), 0, 0) == 0.0
    now[0] = 1.0
    assert admission.spend(publisher("jfk"), 2 * MIB, 0) == 0.0
    assert admission.spend(publisher("jfk"), MIB, 0) == 0.5
    assert admission.spend(publisher("lga"), 0, 0) == 0.0
    now[0] = 1.25
    assert admission.spend(publisher("jfk"), 0, 0) == 0.25
    now[0] = 100.0
    assert (
        admission.spend(publisher("jfk"), 2 * MIB, 0) == 0.0
    )  # no more than a second's is saved up
    assert admission.spend(publisher("jfk"), 2 * MIB, 0) == 1.0
    assert admission.spend(node("n2"), 1000 * MIB, 0) == 0.0


def test_messages_are_spent_like_bytes_and_the_dearer_of_both_counts():
    """Heartbeats as fast as a line takes them kept a node's interpreter from all others."""
    admission = Admission(ServerLimits(identity_messages_s=1000), lambda: 0.0)
    assert admission.spend(publisher("jfk"), 5000, 1000) == 1.0
    assert admission.spend(publisher("jfk"), 0, 500) == 1.5


def test_a_node_may_send_five_times_as_many_messages_as_others():
    """It relays what publishers send; a hostile one must not take the interpreter for itself."""
    admission = Admission(ServerLimits(identity_messages_s=1000), lambda: 0.0)
    assert admission.spend(node("n2"), 5000 * MIB, 5000) == 1.0
    assert admission.spend(node("n2"), 0, 2500) == 1.5


def test_a_budget_of_bytes_that_no_turn_fits_into_is_refused():
    """A connection would be held for longer than its peer waits for a heartbeat."""
    with pytest.raises(Misuse, match="use at least 1Mi"):
        ServerLimits(identity_bytes_s=MIB - 1)


def test_requests_on_kept_connections_take_an_eighth_of_a_connection(admission, clock):
    """Nothing else bounds them; they are held back, not refused, so that no work is lost."""
    etl = publisher("etl")
    assert enter(admission, "kept", etl) == ""
    assert [admission.request(etl) for _ in range(8 * 39)] == [0.0] * (8 * 39)  # a burst of 10 s
    assert admission.request(etl) == pytest.approx(0.125 / 4)
    assert "connects more than 4 times a second" in enter(admission, "new", etl)
    clock[0] += 10
    assert admission.request(etl) == 0.0
