"""Certificates and the identities in them: what is issued is what is read, and nothing more."""

import base64
import os
import random
import stat
from contextlib import suppress
from datetime import UTC, datetime

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.x509.oid import ExtendedKeyUsageOID

from rt.errors import Misuse, Refused
from rt.net.authority.certificates import (
    CertificateFiles,
    certificate_files,
    check_own,
    days_left,
    init_authority,
    issue,
    load_certificate,
    renewal_warning,
)
from rt.net.authority.grants import Grants, grants_path
from rt.net.authority.identity import (
    GLOBS_MAX,
    SERVING,
    CertificateRole,
    PeerIdentity,
    parse_identity,
    read_identity,
)
from rt.net.authority.trust import Trust

CLIENT = ExtendedKeyUsageOID.CLIENT_AUTH
SERVER = ExtendedKeyUsageOID.SERVER_AUTH


def identity_in(files, usage=CLIENT):
    """Return the identity that a peer would read out of an issued certificate."""
    der = load_certificate(files.cert).public_bytes(serialization.Encoding.DER)
    return read_identity(der, usage)


def granted_to(files):
    """Return what a node grants the holder of an issued certificate."""
    return Grants(grants_path(files.ca)).granted(identity_in(files))


def test_keys_are_for_their_owner_only_and_so_is_the_directory(authority):
    """A key that another user can read protects nothing."""
    files = issue(authority, "jfk", CertificateRole.PUBLISHER)
    assert stat.S_IMODE(os.stat(authority).st_mode) == 0o700
    for path in (files.key, files.cert, f"{authority}/ca.key"):
        assert stat.S_IMODE(os.stat(path).st_mode) == 0o600


def test_nothing_temporary_is_left_beside_the_files(authority):
    """A left-over copy of a key would outlive the key."""
    issue(authority, "jfk", CertificateRole.PUBLISHER)
    issue(authority, "jfk", CertificateRole.PUBLISHER, force=True)
    names = ["ca.key", "ca.pem", "grants.toml", "issued.jsonl", "jfk.key", "jfk.pem"]
    assert sorted(os.listdir(authority)) == names


def test_publisher_may_push_its_own_name_unless_told_otherwise(authority):
    """The safe default: one publisher, one session."""
    identity = granted_to(issue(authority, "jfk", CertificateRole.PUBLISHER))
    assert identity == PeerIdentity("jfk", CertificateRole.PUBLISHER, sessions=("jfk",))
    assert identity.may_push("jfk")
    assert not identity.may_push("lga")
    assert not identity.may_pull("flights")


def test_globs_come_back_as_they_were_issued(authority):
    """The file must carry every letter that a glob can have."""
    globs = ("jfk-*", "*.lga_1", "a-b.c_9", "*")
    files = issue(authority, "x.y", CertificateRole.PUBLISHER, sessions=globs)
    assert granted_to(files).sessions == globs


@pytest.mark.parametrize("role", CertificateRole)
@pytest.mark.parametrize("verb", ["push", "pull", "join"])
def test_each_role_may_do_its_own_verbs_only(role, verb):
    """A subscriber that can write, or a publisher that can vote, is a hole; a node relays."""
    identity = PeerIdentity("x", role, sessions=("*",), streams=("*",))
    allowed = {
        "push": identity.may_push("jfk"),
        "pull": identity.may_pull("flights"),
        "join": identity.is_node,
    }
    expected = {
        CertificateRole.NODE: {"push", "pull", "join"},
        CertificateRole.PUBLISHER: {"push"},
        CertificateRole.SUBSCRIBER: {"pull"},
        CertificateRole.MIRROR: {"pull"},
        CertificateRole.OPERATOR: set(),
    }
    assert allowed[verb] == (verb in expected[role])


@pytest.mark.parametrize("role", CertificateRole)
def test_identity_without_globs_may_do_nothing_but_its_role(role):
    """Default: nothing."""
    identity = PeerIdentity("x", role)
    assert identity.may_push("x") == (role is CertificateRole.NODE)  # it passes on what others lack
    assert identity.may_pull("x") == (role is CertificateRole.NODE)


@pytest.mark.parametrize("role", CertificateRole)
def test_only_a_node_or_a_mirror_may_answer_a_call(authority, role):
    """A publisher's stolen key must not let its thief pose as a node, and no mirror is one."""
    files = issue(authority, "x", role)
    assert identity_in(files).role is role
    if role in SERVING:
        assert identity_in(files, SERVER).is_node == (role is CertificateRole.NODE)
    else:
        with pytest.raises(Refused, match="lacks server authentication"):
            identity_in(files, SERVER)


def test_node_answers_to_this_machine_unless_hosts_are_given(authority):
    """The demo and the tests must work without thinking about names."""
    local = alternative_names(issue(authority, "a", CertificateRole.NODE))
    assert [str(name.value) for name in local[1:]] == ["localhost", "127.0.0.1", "::1"]
    given = alternative_names(
        issue(authority, "b", CertificateRole.NODE, hosts=["b.example.org", "10.0.0.2"])
    )
    assert [str(name.value) for name in given[1:]] == ["b.example.org", "10.0.0.2"]


def alternative_names(files):
    """Return the subject alternative names of an issued certificate, in order."""
    extensions = load_certificate(files.cert).extensions
    return list(extensions.get_extension_for_class(x509.SubjectAlternativeName).value)


@pytest.mark.parametrize("days", [1, 30, 90])
def test_certificate_expires_on_the_requested_date(authority, days):
    """The date is the end of a leaked key that was not noticed."""
    certificate = load_certificate(issue(authority, "x", CertificateRole.NODE, days=days).cert)
    left = certificate.not_valid_after_utc - datetime.now(UTC)
    assert days * 86_400 - 60 < left.total_seconds() <= days * 86_400


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"name": "../jfk"}, "not a peer name"),
        ({"name": "ca"}, "names a file of the authority itself"),
        ({"name": "crl", "force": True}, "names a file of the authority itself"),
        ({"days": 0}, "choose 1 to 90"),
        ({"days": 91}, "choose 1 to 90"),
        ({"role": CertificateRole.NODE, "sessions": ["a"]}, "a node pushes no sessions"),
        (
            {"role": CertificateRole.SUBSCRIBER, "sessions": ["a"]},
            "a subscriber pushes no sessions",
        ),
        ({"streams": ["a"]}, "a publisher needs no stream globs"),
        ({"leases": True}, "only a subscriber is granted leases"),
        ({"hosts": ["localhost"]}, "a publisher is never dialled"),
        ({"role": CertificateRole.NODE, "hosts": ["*.example.org"]}, "not a host"),
        ({"role": CertificateRole.NODE, "hosts": ["a\n"]}, "not a host"),
        ({"role": CertificateRole.NODE, "hosts": ["a." * 127 + "a"]}, "not a host"),
        ({"sessions": ["a/*"]}, "not a glob"),
        ({"sessions": ["a"] * (GLOBS_MAX + 1)}, "at most 256 are read"),
    ],
)
def test_wrong_request_is_refused_and_leaves_no_file(authority, change, words):
    """A half-made pair of files would be found by the next start, long after the mistake."""
    with pytest.raises(Misuse, match=words):
        issue(authority, **({"name": "jfk", "role": CertificateRole.PUBLISHER} | change))
    assert sorted(os.listdir(authority)) == ["ca.key", "ca.pem", "grants.toml"]


def test_existing_files_are_replaced_by_force_only(authority):
    """A second init would cut off every peer of the first."""
    first = issue(authority, "jfk", CertificateRole.PUBLISHER)
    before = load_certificate(first.cert)
    with pytest.raises(Misuse, match=r"jfk\.pem exists already: use force"):
        issue(authority, "jfk", CertificateRole.PUBLISHER)
    with pytest.raises(Misuse, match=r"ca\.pem exists already.*stops working"):
        init_authority(authority)
    assert load_certificate(first.cert) == before
    issue(authority, "jfk", CertificateRole.PUBLISHER, force=True)
    assert load_certificate(first.cert) != before


def test_issue_without_an_authority_says_how_to_make_one(tmp_path):
    """The most likely first mistake."""
    with pytest.raises(Misuse, match="make one with rt certs init"):
        issue(str(tmp_path), "jfk", CertificateRole.PUBLISHER)


@pytest.mark.parametrize("damage", ["missing", "empty", "other"])
def test_damaged_authority_is_named(authority, tmp_path, damage):
    """A certificate signed by the wrong key would be refused far away, by every peer."""
    key = f"{authority}/ca.key"
    os.unlink(key)
    if damage == "empty":
        open(key, "w").close()
    elif damage == "other":
        os.link(init_authority(str(tmp_path / "other")).key, key)
    with pytest.raises(Misuse, match=r"ca\.key"):
        issue(authority, "jfk", CertificateRole.PUBLISHER)


def test_directory_that_others_may_write_is_refused(tmp_path):
    """A user who can rename files there can substitute an authority."""
    tmp_path.chmod(0o777)
    with pytest.raises(Misuse, match="chmod 700"):
        init_authority(str(tmp_path))


@pytest.mark.parametrize(
    ("uris", "words"),
    [
        ([], "no role"),
        (["https://example.org/"], "no role"),
        (["rt://session/a"], "no role"),
        (["rt://publisher/a", "rt://node/a"], "more than one role"),
        (["rt://node/a", "rt://node/b"], "more than one role"),
        (["rt://admin/a"], "none of"),
        (["rt://"], "none of"),
        (["rt://node"], "is empty"),
        (["rt://node/"], "is empty"),
        (["rt://node/A"], "upper-case"),
        (["rt://node/a/b"], "not a peer name"),
        (["rt://node/a?b"], "not a peer name"),
        (["rt://publisher/a", "rt://session/a%2A"], "not a name or glob"),
        (["rt://publisher/a", "rt://stream/../*"], "not a glob"),
        (["rt://publisher/a"] + ["rt://session/b"] * (GLOBS_MAX + 1), "at most 257"),
    ],
)
def test_identity_that_cannot_be_read_whole_is_refused_whole(uris, words):
    """Half an identity is a guess about what somebody may do."""
    with pytest.raises(Refused, match=words) as caught:
        parse_identity(uris)
    assert caught.value.code == "certificate"


def test_uris_of_others_are_passed_over():
    """A certificate may also serve another system, such as SPIFFE."""
    identity = parse_identity(["spiffe://x/y", "rt://node/a"])
    assert identity.uri == "rt://node/a"
    assert parse_identity([identity.uri]) == identity


def test_bytes_that_are_not_a_certificate_are_refused_by_name():
    """The reader of hostile bytes ends in one named error."""
    with pytest.raises(Refused, match="cannot be read"):
        read_identity(b"\x30\x03abc", CLIENT)


def test_the_days_that_are_left_are_a_number_for_monitoring(authority):
    """An alarm compares it; a sentence can only be read."""
    files = issue(authority, "x", CertificateRole.NODE, days=7)
    assert 6.99 < days_left(files) <= 7
    with pytest.raises(Misuse, match="no such certificate"):
        days_left(certificate_files(authority, "y"))


def test_a_damaged_certificate_ends_in_one_sentence(tmp_path):
    """The parser looks at most parts only when they are asked for, long after the file was read."""
    directory = str(tmp_path / "certs")
    init_authority(directory)
    files = issue(directory, "x", CertificateRole.NODE)
    der = load_certificate(files.cert).public_bytes(serialization.Encoding.DER)
    damaged = CertificateFiles(files.ca, str(tmp_path / "y.pem"), files.key)
    chance = random.Random(1)
    own = authorities = 0
    for _ in range(500):
        flipped = bytearray(der)
        flipped[chance.randrange(len(der))] ^= 1 << chance.randrange(8)
        with open(damaged.cert, "wb") as file:
            file.write(b"-----BEGIN CERTIFICATE-----\n" + base64.encodebytes(flipped))
            file.write(b"-----END CERTIFICATE-----\n")
        with suppress(Misuse, Refused):
            check_own(damaged, list(CertificateRole))
            own += 1
        assert renewal_warning(damaged) is not None
        with suppress(Misuse):
            Trust(damaged.cert)
            authorities += 1
    assert 0 < own < 500  # some flips are noticed by the parser, the others by a signature
    assert 0 < authorities < 500
