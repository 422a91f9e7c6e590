"""Revocation and renewal: what the files say, before any connection is made."""

import json
import os
import re
import stat
import time
from datetime import UTC, datetime

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.x509.oid import ExtendedKeyUsageOID

from rt.errors import Misuse
from rt.net.authority.certificates import (
    certificate_files,
    check_own,
    init_authority,
    issue,
    load_authority,
    load_certificate,
    renewal_warning,
)
from rt.net.authority.granting import adopt
from rt.net.authority.grants import Grants, grants_path
from rt.net.authority.identity import CertificateRole, read_identity
from rt.net.authority.issued import ISSUED_NAME, issued_to
from rt.net.authority.renewal import hosts_of, renew
from rt.net.authority.revocation import revoke, signed_list
from rt.net.authority.trust import Trust, read_revoked
from rt.net.tls import Contexts, server_context
from tests.forged_certificates import Authority

PUBLISHER, SUBSCRIBER, NODE = (
    CertificateRole.PUBLISHER,
    CertificateRole.SUBSCRIBER,
    CertificateRole.NODE,
)


def identity_in(files):
    """Return the identity that a peer reads out of a certificate."""
    der = load_certificate(files.cert).public_bytes(serialization.Encoding.DER)
    return read_identity(der, ExtendedKeyUsageOID.CLIENT_AUTH)


@pytest.mark.parametrize(
    ("role", "granted"),
    [
        (PUBLISHER, {"sessions": ["jfk", "jfk-*", "pair"]}),
        (SUBSCRIBER, {"streams": ["flights"]}),
        (NODE, {"hosts": ["n1.example.org", "10.0.0.7", "::1"]}),
    ],
)
def test_a_renewed_certificate_grants_what_the_old_one_did(authority, role, granted):
    """`issue --force` widened a subscriber to all streams and dropped a publisher's grants."""
    old = issue(authority, "x", role, days=7, **granted)
    with open(grants_path(old.ca), "rb") as file:
        grants = file.read()
    before, identity = load_certificate(old.cert), identity_in(old)
    with open(old.key, "rb") as file:
        key = file.read()
    new = renew(authority, "x")
    after = load_certificate(new.cert)
    assert new == old
    assert identity_in(new) == identity
    with open(grants_path(new.ca), "rb") as file:
        assert file.read() == grants
    assert hosts_of(after) == hosts_of(before)
    assert after.serial_number != before.serial_number
    with open(new.key, "rb") as file:
        assert file.read() != key
    assert 6.9 < (after.not_valid_after_utc - datetime.now(UTC)).total_seconds() / 86_400 <= 7


def test_renewed_files_can_be_read_by_the_same_group(authority):
    """An orchestrator gives an unprivileged program its key by a group."""
    files = issue(authority, "x", NODE)
    groups = [group for group in os.getgroups() if group != os.getegid()]
    group = 4242 if os.geteuid() == 0 else (groups or [os.getegid()])[0]
    os.chown(files.key, -1, group)
    os.chmod(files.key, 0o640)
    renew(authority, "x")
    status = os.stat(files.key)
    assert (status.st_gid, stat.S_IMODE(status.st_mode)) == (group, 0o640)


def test_an_expired_certificate_can_be_renewed(authority, tmp_path):
    """That is when most people think of it."""
    forger = Authority(str(tmp_path / "forger"))
    files = certificate_files(forger.directory, "jfk")
    forger.forge(files.cert.removesuffix(".pem"), start_days=-40)
    with pytest.raises(Misuse, match=r"first move it to grants\.toml"):
        renew(forger.directory, "jfk")
    assert adopt(forger.directory) == ["publisher jfk"]
    renew(forger.directory, "jfk")
    check_own(files, (PUBLISHER,), "jfk")
    granted = Grants(grants_path(files.ca)).granted(identity_in(files))
    assert granted.sessions == ("jfk",)
    assert adopt(forger.directory) == []


def test_a_certificate_of_another_authority_is_not_renewed(authority, tmp_path):
    """It would be exchanged for one that other peers trust, and these do not."""
    other = str(tmp_path / "other")
    init_authority(other)
    files = issue(other, "x", NODE)
    for path in (files.cert, files.key):
        os.link(path, os.path.join(authority, os.path.basename(path)))
    with pytest.raises(Misuse, match="another authority signed it"):
        renew(authority, "x")


def test_every_certificate_of_a_name_is_revoked(authority):
    """The stolen key may be the one before the last renewal, which is valid for weeks."""
    issue(authority, "x", NODE)
    serials = [load_certificate(f"{authority}/x.pem").serial_number]
    serials += [load_certificate(renew(authority, "x").cert).serial_number for _ in range(2)]
    kept = load_certificate(issue(authority, "y", NODE).cert).serial_number
    path, count = revoke(authority, "x")
    assert count == 3
    ca = load_certificate(os.path.join(authority, "ca.pem"))
    assert {serial for _, serial in read_revoked(path, (ca,))} == set(serials)
    assert kept not in serials
    assert revoke(authority, "x")[1] == 0


def test_revoking_a_second_name_keeps_the_first(authority):
    """The list is replaced as a whole each time."""
    for name in ("x", "y"):
        issue(authority, name, NODE)
        path, _ = revoke(authority, name)
    ca = load_certificate(os.path.join(authority, "ca.pem"))
    first = read_revoked(path, (ca,))
    assert len(first) == 2
    renewed = issue(authority, "x", NODE, force=True)
    key = load_certificate(renewed.cert).issuer.public_bytes()
    assert (key, load_certificate(renewed.cert).serial_number) not in first


def test_a_revoked_certificate_is_not_renewed_by_routine(authority):
    """A timer that renews every week must not let a thief's name back in."""
    issue(authority, "x", NODE)
    revoke(authority, "x")
    with pytest.raises(Misuse, match="it was revoked"):
        renew(authority, "x")
    issue(authority, "x", NODE, force=True)
    renew(authority, "x")


def test_a_certificate_older_than_the_record_is_revoked_by_its_file(authority):
    """Authorities from before the record was kept go on working."""
    issue(authority, "x", NODE)
    os.unlink(os.path.join(authority, ISSUED_NAME))
    assert revoke(authority, "x")[1] == 1


@pytest.mark.parametrize(
    ("name", "words"), [("ghost", "no valid certificate"), ("ca", "not revoked"), ("../x", "name")]
)
def test_a_certificate_that_cannot_be_revoked_is_reported(authority, name, words):
    """Silence would be taken for success."""
    with pytest.raises(Misuse, match=words):
        revoke(authority, name)


def test_the_record_names_each_certificate_before_it_exists(authority):
    """A certificate that is not recorded could never be revoked by name."""
    issue(authority, "x", PUBLISHER, days=3)
    [line] = issued_to(authority, "x")
    assert line.number == load_certificate(f"{authority}/x.pem").serial_number
    assert (line.name, line.role) == ("x", "publisher")
    with open(os.path.join(authority, ISSUED_NAME), "a", encoding="utf-8") as file:
        file.write(json.dumps({"serial": "zz"}) + "\n")
    with pytest.raises(Misuse, match="line 2 is not a record"):
        revoke(authority, "x")


@pytest.mark.parametrize("damage", ["cut", "flipped", "empty", "stranger"])
def test_a_damaged_list_stops_a_start_and_not_a_running_program(authority, tmp_path, damage):
    """At a start an operator is there; later, the last good list is better than none."""
    issue(authority, "x", NODE)
    revoke(authority, "x")
    ca, path = os.path.join(authority, "ca.pem"), os.path.join(authority, "crl.pem")
    trust = Trust(ca)
    known = trust.facts.revoked
    with open(path, "rb") as file:
        data = bytearray(file.read())
    if damage == "stranger":
        other = str(tmp_path / "other")
        init_authority(other)
        issue(other, "x", NODE)
        with open(revoke(other, "x")[0], "rb") as file:
            data = bytearray(file.read())
    elif damage == "flipped":
        middle = len(data) // 2
        data[middle] = ord("A") if data[middle] != ord("A") else ord("B")
    else:
        del data[len(data) // 2 if damage == "cut" else 0 :]
    with open(path, "wb") as file:
        file.write(data)
    with pytest.raises(Misuse, match=r"crl\.pem"):
        Trust(ca)
    trust.refresh()
    assert trust.facts.revoked == known
    assert "crl.pem" in (trust.problem or "")


def test_a_list_that_disappears_stays_in_force(authority):
    """Deleting a file must not let a thief back in, unseen."""
    issue(authority, "x", NODE)
    path, _ = revoke(authority, "x")
    trust = Trust(os.path.join(authority, "ca.pem"))
    os.unlink(path)
    trust.refresh()
    assert trust.facts.revoked
    assert "disappeared" in (trust.problem or "")


def test_files_that_cannot_be_read_are_reported(authority):
    """The last good ones stay in use, and an operator has to learn that newer ones are not."""
    issue(authority, "x", NODE)
    contexts = Contexts(certificate_files(authority, "x"), server_context)
    assert contexts.warning() == ""
    with open(os.path.join(authority, "crl.pem"), "w", encoding="ascii") as file:
        file.write("half a list")
    contexts.current().trust.refresh()
    assert "crl.pem: not a list of revoked certificates" in contexts.warning()
    os.unlink(os.path.join(authority, "x.key"))
    assert "x.key" in contexts.warning()


def test_two_authorities_have_a_list_each(authority, tmp_path):
    """While an authority is replaced both are trusted, and both may revoke."""
    other = str(tmp_path / "other")
    init_authority(other)
    for directory in (authority, other):
        issue(directory, "x", NODE)
        revoke(directory, "x")
    for name in ("ca.pem", "crl.pem"):
        with open(os.path.join(other, name), "rb") as file:
            added = file.read()
        with open(os.path.join(authority, name), "ab") as file:
            file.write(added)
    trust = Trust(os.path.join(authority, "ca.pem"))
    assert len(trust.facts.authorities) == len(trust.facts.revoked) == 2


def test_an_authority_that_is_removed_counts_at_once_though_its_list_is_still_there(
    authority, tmp_path
):
    """Its list made the files unreadable as a whole, so what it had signed went on being good."""
    other = str(tmp_path / "other")
    init_authority(other)
    for directory in (authority, other):
        issue(directory, "x", NODE)
        revoke(directory, "x")
    theirs = load_certificate(issue(other, "y", NODE).cert)
    ca, crl = (os.path.join(authority, name) for name in ("ca.pem", "crl.pem"))
    with open(ca, "rb") as file:
        ours = file.read()
    for name, path in (("ca.pem", ca), ("crl.pem", crl)):
        with open(os.path.join(other, name), "rb") as there, open(path, "ab") as file:
            file.write(there.read())
    trust = Trust(ca)
    assert trust.objection(theirs) == ""
    with open(ca, "wb") as file:
        file.write(ours)
    trust.refresh()
    assert trust.objection(theirs) == "its authority is no longer trusted"
    assert "not signed by an authority of ca.pem" in (trust.problem or "")


def test_a_revocation_counts_while_the_authorities_cannot_be_read(authority):
    """Both files are copied by scripts; one that goes wrong must not keep a thief's key alive."""
    certificate = load_certificate(issue(authority, "x", NODE).cert)
    ca = os.path.join(authority, "ca.pem")
    trust = Trust(ca)
    revoke(authority, "x")
    with open(ca, "w", encoding="ascii") as file:
        file.write("half a certificate")
    trust.refresh()
    assert "it was revoked on" in trust.objection(certificate)
    assert "ca.pem: no certificate can be read" in (trust.problem or "")


def test_the_time_to_revoke_grows_with_the_list_and_not_with_its_square(authority):
    """With 80,000 entries it took 14 s, and with 400,000 it would have taken six minutes."""
    ca, key = load_authority(authority)
    at, taken = datetime.now(UTC).replace(microsecond=0), []
    for count in (5_000, 40_000):
        listed = {(1 << 150) + number: at for number in range(count)}
        began = time.process_time()
        signed_list(ca, key, listed)
        taken.append(time.process_time() - began)
    assert taken[1] < 20 * taken[0], taken  # 8 times as many; with its square, 50 times


def test_a_list_that_programs_would_not_read_is_not_written(authority):
    """The last good list would have stayed in force, and no node could have started."""
    for name in ("x", "y"):
        issue(authority, name, NODE)
    path, _ = revoke(authority, "x")
    with pytest.raises(Misuse, match="2 certificates would be on it, more than programs read"):
        revoke(authority, "y", bytes_max=os.path.getsize(path))
    assert len(read_revoked(path, (load_certificate(f"{authority}/ca.pem"),))) == 1


def test_a_record_that_a_crash_cut_short_is_written_again_from_there(authority):
    """The next record was glued to it, and then no name could be revoked any more."""
    issue(authority, "x", NODE)
    path = os.path.join(authority, ISSUED_NAME)
    with open(path, "rb") as file:
        whole = file.read()
    with open(path, "ab") as file:
        file.write(whole[:40])
    assert revoke(authority, "x")[1] == 1
    issue(authority, "y", NODE)
    with open(path, "rb") as file:
        assert file.read().startswith(whole + b'{"serial"')
    assert revoke(authority, "y")[1] == 1


@pytest.mark.parametrize(
    ("start_days", "days", "words"),
    [
        (-19, 30, ""),
        (-21, 30, "expires on .* in 9.0 days; renew it with rt certs renew"),
        (-40, 30, "expired on .*; renew it with rt certs renew"),
    ],
)
def test_the_last_third_of_a_life_is_warned_about(tmp_path, start_days, days, words):
    """A certificate that was forgotten stops a cluster at night."""
    forger = Authority(str(tmp_path / "certs"))
    files = forger.forge(str(tmp_path / "x"), start_days=start_days, days=days)
    warning = renewal_warning(files)
    assert bool(warning) == bool(words)
    if words:
        assert re.search(words, warning), warning


def test_x509_tools_of_others_can_read_the_list(authority):
    """An auditor has openssl, and not us."""
    issue(authority, "x", NODE)
    path, _ = revoke(authority, "x")
    with open(path, "rb") as file:
        listed = x509.load_pem_x509_crl(file.read())
    ca = load_certificate(os.path.join(authority, "ca.pem"))
    assert listed.is_signature_valid(ca.public_key())
    assert listed.next_update_utc == ca.not_valid_after_utc
