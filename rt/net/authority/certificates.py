"""Certificates: a small authority of our own, and the short-lived certificates it issues.

Keys are P-256, not Ed25519: a mutual TLS 1.3 handshake costs 1.47 ms of processor time with P-256
and 1.55 ms with Ed25519 (both sides, OpenSSL 3.0), and browsers, which show a node's status page,
do not accept Ed25519. The private keys are not encrypted: a program must start
unattended, so a password would be stored alongside them. They are protected by their file mode and
their short life.
"""

import os
import re
import secrets
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from rt.errors import Misuse, spoken
from rt.log.files.disk import make_private_directory, sync_directory
from rt.names import parse_glob, parse_peer, shown
from rt.net.authority.files import alone, read_file, write_file
from rt.net.authority.granting import begin_grants, write_grant
from rt.net.authority.identity import (
    CLUSTER_SCHEME,
    PULLING,
    UNREADABLE,
    USAGES,
    CertificateRole,
    PeerIdentity,
    demand_readable,
    identity_of,
)
from rt.net.authority.issued import IssuedCertificate, record_issued

AUTHORITY: Final = "ca"
AUTHORITY_DAYS: Final = 3650
DAYS_DEFAULT: Final = 30
DAYS_MAX: Final = 90  # an unnoticed leak must expire
# a new certificate must work at once on hosts whose clocks are slightly slow
CLOCK_SKEW: Final = timedelta(minutes=5)
LOCAL_HOSTS: Final = ("localhost", "127.0.0.1", "::1")

CLUSTER_NAME: Final = "cluster"  # beside the authority: the id of the cluster that it certifies
_CLUSTER_ID: Final = re.compile("[A-Za-z0-9._-]{1,64}")
_OUR_NAMES: Final = frozenset({AUTHORITY, "crl"})  # crl.pem is the revocation list
_HOST: Final = re.compile(r"(?!-)[a-z0-9-]{1,63}(?:\.(?!-)[a-z0-9-]{1,63})*")
_HOST_LENGTH_MAX: Final = 253
_WARN_FRACTION: Final = 3  # of a certificate's lifetime: the last 10 of 30 days
_OTHERS_MODE: Final = 0o077
_DRAFT: Final = ".new"  # suffix of a key whose certificate is being written
_FILE_BYTES_MAX: Final = 1 << 20  # a certificate with 1,000 names has 50 KiB


@dataclass(frozen=True, slots=True)
class CertificateFiles:
    """Paths of the three files that one side of a connection needs.

    Attributes:
        ca: Certificates of the authorities that verify peers.
        cert: Our own certificate.
        key: The private key of that certificate.
    """

    ca: str
    cert: str
    key: str


def certificate_files(directory: str, name: str) -> CertificateFiles:
    """Return where `issue` puts the files of `name`; `Misuse` if the name is invalid."""
    stem = os.path.join(directory, parse_peer(name))
    authority = os.path.join(directory, AUTHORITY)
    return CertificateFiles(ca=f"{authority}.pem", cert=f"{stem}.pem", key=f"{stem}.key")


def init_authority(directory: str, *, force: bool = False) -> CertificateFiles:
    """Create a certificate authority, `ca.pem` and `ca.key` in `directory`, and a `grants.toml`.

    Args:
        directory: Created with mode 0700 if missing.
        force: Replace an existing authority; the certificates that it issued become worthless.

    Raises:
        Misuse: There is an authority and `force` is not set, or others may write to the directory.
    """
    files = certificate_files(directory, AUTHORITY)
    _make_private_directory(directory)
    _refuse_existing(files, force=force, consequence="every certificate it issued stops working")
    key = ec.generate_private_key(ec.SECP256R1())
    # Each authority has a different name, so that a peer of another cluster is recognised.
    subject = _common_name(f"rt authority {secrets.token_hex(4)}")
    builder = _builder(subject, key.public_key(), timedelta(days=AUTHORITY_DAYS))
    builder = builder.issuer_name(subject)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(_key_usage(signs_certificates=True), critical=True)
    _write_pair(files, builder.sign(key, hashes.SHA256()), key, force=force)
    begin_grants(directory)
    return files


def copy_authority(source: str, directory: str) -> CertificateFiles:
    """Copy an existing authority, so that one authority certifies several clusters.

    Args:
        source: the directory of the authority's `ca.pem` and `ca.key`.
        directory: receives copies of both, and a `grants.toml`; created with mode 0700 if missing.

    Raises:
        Misuse: the source is not an authority, has expired, or its key is accessible to others; or
            `directory` has an authority already.
        OSError: the source cannot be read.
    """
    certificate, key = load_authority(source)
    try:
        may_sign = certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    except x509.ExtensionNotFound:
        may_sign = False
    path = certificate_files(source, AUTHORITY).ca
    if not may_sign or certificate.issuer != certificate.subject:
        raise Misuse(f"{path}: not an authority that signs itself; use one of rt certs init")
    if certificate.not_valid_after_utc <= datetime.now(UTC):
        raise Misuse(f"{path}: expired; make another authority with rt certs init")
    files = certificate_files(directory, AUTHORITY)
    _make_private_directory(directory)
    _refuse_existing(files, force=False, consequence="every certificate it issued stops working")
    _write_pair(files, certificate, key, force=False)
    begin_grants(directory)
    return files


def issue(
    directory: str,
    name: str,
    role: CertificateRole,
    *,
    sessions: Sequence[str] = (),
    streams: Sequence[str] = (),
    leases: bool = False,
    hosts: Sequence[str] = (),
    days: int = DAYS_DEFAULT,
    force: bool = False,
    clusters: Sequence[str] | None = None,
) -> CertificateFiles:
    """Issue a key and a certificate: `NAME.key` and `NAME.pem` in the authority's directory.

    A publisher's or subscriber's grants are added to `grants.toml` in the same directory, unless
    that file has an entry for the name.

    Args:
        directory: Where `init_authority` created the authority.
        name: The peer's name.
        role: The peer's role, which determines the extended key usage.
        sessions: Globs of sessions that a publisher may push. If none are given and the file has no
            entry yet, the publisher's own name.
        streams: Globs of streams that a subscriber or mirror may pull. If none are given and the
            file has no entry yet, `*`, because an authority serves one cluster.
        leases: Whether a subscriber may hold leases.
        hosts: DNS names and addresses of a node or mirror; this machine's loopback if none.
        days: Days until the certificate expires, 1 to 90.
        force: Replace existing files of this name; `renew` replaces them, too, and keeps role,
            hosts and clusters.
        clusters: Ids of the clusters that a node may join; other clusters refuse the node. If None,
            the id that `remember_cluster` has recorded here, if any.

    Raises:
        Misuse: An argument is wrong, the authority is missing, the files exist, or `grants.toml`
            grants the holder something else.
    """
    identity = _holder(name, CertificateRole(role), sessions, streams, leases=leases)
    if clusters is None:
        clusters = remembered_cluster(directory) if identity.is_node else ()
    alternatives = _alternative_names(identity, hosts, clusters)
    if not 1 <= days <= DAYS_MAX:
        raise Misuse(f"cannot issue for {days} days: choose 1 to {DAYS_MAX} and renew in time")
    files = certificate_files(directory, name)
    issuer, issuer_key = load_authority(directory)
    _refuse_existing(files, force=force, consequence="its present key is replaced")
    write_grant(directory, identity)
    key = ec.generate_private_key(ec.SECP256R1())
    lifetime = timedelta(days=days)
    builder = _leaf(identity, key.public_key(), lifetime, issuer.subject, issuer_key.public_key())
    builder = builder.add_extension(alternatives, critical=False)
    certificate = builder.sign(issuer_key, hashes.SHA256())
    record_issued(directory, issued_of(certificate))
    _write_pair(files, certificate, key, force=force)
    return files


def remember_cluster(directory: str, cluster: str) -> None:
    """Record the id of the cluster that certificates issued here belong to."""
    line = f"{_cluster_id(cluster)}\n".encode()
    write_file(os.path.join(directory, CLUSTER_NAME), line, force=True)


def remembered_cluster(directory: str) -> tuple[str, ...]:
    """Return the cluster id recorded by `remember_cluster`, if any; `Misuse` if it is not valid."""
    try:
        data = read_file(os.path.join(directory, CLUSTER_NAME), _FILE_BYTES_MAX)
    except FileNotFoundError:
        return ()
    return (_cluster_id(data.decode(errors="replace").strip()),)


def _cluster_id(cluster: str) -> str:
    if not is_cluster_id(cluster):
        raise Misuse(f"{shown(cluster)} is not a cluster_id that a certificate can name")
    return cluster


def is_cluster_id(cluster: str) -> bool:
    """Whether a certificate can name this cluster."""
    return bool(_CLUSTER_ID.fullmatch(cluster))


def issued_of(certificate: x509.Certificate) -> IssuedCertificate:
    """Return the authority's record for a certificate."""
    holder, until = identity_of(certificate), certificate.not_valid_after_utc
    serial = f"{certificate.serial_number:x}"
    return IssuedCertificate(serial, holder.name, holder.role.value, until.isoformat())


def load_certificate(path: str) -> x509.Certificate:
    """Return the first certificate in a PEM file.

    Raises:
        Misuse: The file is missing or contains no certificate.
    """
    try:
        return demand_readable(x509.load_pem_x509_certificate(read_file(path, _FILE_BYTES_MAX)))
    except FileNotFoundError as error:
        raise Misuse(f"{path}: no such certificate; make one with rt certs issue") from error
    except UNREADABLE as error:
        raise Misuse(f"{path}: not a certificate in PEM form; issue it again") from error


def expires_s(path: str) -> float:
    """Return when a certificate expires, in seconds since the epoch; NaN if it cannot be read."""
    try:
        return load_certificate(path).not_valid_after_utc.timestamp()
    except (Misuse, OSError):
        return float("nan")


def check_own(files: CertificateFiles, roles: Collection[CertificateRole], name: str = "") -> None:
    """Check our own certificate at startup, so that a bad one is noticed before a peer sees it.

    Args:
        files: our certificate files.
        roles: the roles that the certificate may have.
        name: the holder that the certificate must name; "" for any holder.

    Raises:
        Misuse: the certificate has expired, is not valid yet, or has another role or holder.
    """
    certificate = load_certificate(files.cert)
    begins, ends = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    now = datetime.now(UTC)
    if now < begins:
        raise Misuse(
            f"{files.cert}: not valid before {begins:%Y-%m-%d %H:%M} UTC, and here it is "
            f"{now:%Y-%m-%d %H:%M}; set the clock of this machine, or issue the certificate again"
        )
    if ends <= now:
        raise Misuse(
            f"{files.cert}: expired on {ends:%Y-%m-%d %H:%M} UTC; renew it with rt certs renew"
        )
    holder = identity_of(certificate)
    if holder.role not in roles:
        wanted = " or ".join(f"{each}'s" for each in roles)
        raise Misuse(f"{files.cert}: it is a {holder.role}'s; a {wanted} is wanted")
    if name and holder.name != name:
        raise Misuse(f"{files.cert}: it is of {holder.name!r}, this is {name!r}")


def days_left(files: CertificateFiles) -> float:
    """Return the days until a certificate expires; negative after that.

    Raises:
        Misuse: the file is missing or contains no certificate.
        OSError: the file cannot be read.
    """
    ends = load_certificate(files.cert).not_valid_after_utc
    return (ends - datetime.now(UTC)) / timedelta(days=1)


def renewal_warning(files: CertificateFiles) -> str:
    """Return a warning if under a third of a certificate's lifetime is left; "" otherwise.

    If the certificate cannot be read, the warning says why.
    """
    try:
        certificate = load_certificate(files.cert)
    except (Misuse, OSError) as error:
        return spoken(error)
    return renewal_words(files.cert, certificate)


def renewal_words(path: str, certificate: x509.Certificate) -> str:
    """Return the text of `renewal_warning` for a certificate that was read from `path`."""
    begins, ends = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    left = ends - datetime.now(UTC)
    if left >= (ends - begins) / _WARN_FRACTION:
        return ""
    when = f"{ends:%Y-%m-%d %H:%M} UTC"
    if left <= timedelta(0):
        return f"{path}: expired on {when}; renew it with rt certs renew"
    days = left / timedelta(days=1)
    return f"{path}: expires on {when}, in {days:.1f} days; renew it with rt certs renew"


def _holder(
    name: str,
    role: CertificateRole,
    sessions: Sequence[str],
    streams: Sequence[str],
    *,
    leases: bool,
) -> PeerIdentity:
    if sessions and role is not CertificateRole.PUBLISHER:
        raise Misuse(f"a {role} pushes no sessions: drop the session globs or choose publisher")
    if streams and role not in PULLING:
        raise Misuse(f"a {role} needs no stream globs: drop them or choose subscriber")
    if leases and role is not CertificateRole.SUBSCRIBER:
        raise Misuse(f"only a subscriber is granted leases, not a certificate of role {role}")
    peer = parse_peer(name)
    if peer in _OUR_NAMES:
        raise Misuse(f"{shown(name)} names a file of the authority itself; choose another")
    return PeerIdentity(
        peer, role, tuple(map(parse_glob, sessions)), tuple(map(parse_glob, streams)), leases
    )


def _alternative_names(
    identity: PeerIdentity, hosts: Sequence[str], clusters: Sequence[str]
) -> x509.SubjectAlternativeName:
    if clusters and not identity.is_node:
        raise Misuse(f"a {identity.role} is of no cluster: drop the id or choose node")
    if hosts and not identity.is_dialled:
        raise Misuse(f"a {identity.role} is never dialled: drop the hosts or choose node")
    named = (hosts or LOCAL_HOSTS) if identity.is_dialled else ()
    uris = [identity.uri, *(CLUSTER_SCHEME + _cluster_id(each) for each in clusters)]
    names: list[x509.GeneralName] = [x509.UniformResourceIdentifier(uri) for uri in uris]
    return x509.SubjectAlternativeName(names + [host_name(host) for host in named])


def host_name(host: str) -> x509.GeneralName:
    """Return a DNS name or IP address as a certificate entry; `Misuse` if `host` is neither."""
    try:
        return x509.IPAddress(ip_address(host))
    except ValueError:
        pass  # so it must be a DNS name
    if len(host) > _HOST_LENGTH_MAX or not _HOST.fullmatch(host):
        raise Misuse(f"not a host: {shown(host)}; give a lower-case DNS name or an IP address")
    return x509.DNSName(host)


def _leaf(
    identity: PeerIdentity,
    public_key: ec.EllipticCurvePublicKey,
    lifetime: timedelta,
    issuer: x509.Name,
    issuer_key: ec.EllipticCurvePublicKey,
) -> x509.CertificateBuilder:
    # The subject is for people who use other tools; our verification ignores it.
    builder = _builder(_common_name(identity.name), public_key, lifetime)
    return (
        builder.issuer_name(issuer)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_key_usage(signs_certificates=False), critical=True)
        .add_extension(
            x509.ExtendedKeyUsage(sorted(USAGES[identity.role], key=str)), critical=False
        )
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key),
            critical=False,
        )
    )


def _builder(
    subject: x509.Name, public_key: ec.EllipticCurvePublicKey, lifetime: timedelta
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .public_key(public_key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCK_SKEW)
        .not_valid_after(now + lifetime)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public_key), critical=False)
    )


def _common_name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _key_usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def load_authority(directory: str) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    """Return an authority's certificate and key.

    Raises:
        Misuse: there is no authority, the two do not belong together, or others may read the key.
    """
    files = certificate_files(directory, AUTHORITY)
    if not os.path.exists(files.ca):
        raise Misuse(f"no authority in {directory}: make one with rt certs init {directory}")
    certificate = load_certificate(files.ca)
    try:
        data = read_file(files.key, _FILE_BYTES_MAX)
        key = serialization.load_pem_private_key(data, password=None)
    except (FileNotFoundError, ValueError, TypeError) as error:
        raise Misuse(f"{files.key}: not a readable private key; restore it and retry") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise Misuse(f"{files.key}: not an elliptic curve key; use an authority of rt certs init")
    if key.public_key() != certificate.public_key():
        raise Misuse(f"{files.key} does not belong to {files.ca}; restore the one that does")
    if os.stat(files.key).st_mode & _OTHERS_MODE:
        raise Misuse(f"{files.key}: others may use this key; chmod 600 it, or make a new authority")
    return certificate, key


def _make_private_directory(directory: str) -> None:
    make_private_directory(directory)
    if os.stat(directory).st_mode & 0o022:
        raise Misuse(f"{directory}: others may write into it; run chmod 700 {directory}")


def _refuse_existing(files: CertificateFiles, *, force: bool, consequence: str) -> None:
    _finish_pair(files)
    for path in (files.cert, files.key):
        if not force and os.path.lexists(path):
            raise Misuse(f"{path} exists already: use force to replace it, and {consequence}")


def _write_pair(
    files: CertificateFiles,
    certificate: x509.Certificate,
    key: ec.EllipticCurvePrivateKey,
    *,
    force: bool,
) -> None:
    secret = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    draft, directory = files.key + _DRAFT, os.path.dirname(files.cert)
    with alone(directory):
        write_file(draft, secret, force=True, heir=files.key)
        try:
            text = certificate.public_bytes(serialization.Encoding.PEM)
            write_file(files.cert, text, force=force)
        except (Misuse, OSError):
            os.unlink(draft)
            raise
        os.replace(draft, files.key)
        sync_directory(directory)


def _finish_pair(files: CertificateFiles) -> None:
    """Complete or undo an interrupted write of a key and its certificate.

    If the certificate was written, the draft of its key is put in place; otherwise the draft is
    removed.
    """
    draft = files.key + _DRAFT
    if not os.path.exists(draft):
        return
    with alone(os.path.dirname(draft)), suppress(FileNotFoundError):
        key = serialization.load_pem_private_key(read_file(draft, _FILE_BYTES_MAX), None)
        is_issued = os.path.exists(files.cert)
        if is_issued and load_certificate(files.cert).public_key() == key.public_key():
            os.replace(draft, files.key)
        else:
            os.unlink(draft)
