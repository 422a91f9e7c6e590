"""Revocation: revokes every certificate of a name in a list signed by the authority."""

import os
from datetime import UTC, datetime

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from rt.errors import Misuse
from rt.log.files.disk import sync_directory
from rt.names import parse_peer
from rt.net.authority.certificates import (
    AUTHORITY,
    certificate_files,
    issued_of,
    load_authority,
    load_certificate,
)
from rt.net.authority.files import alone, write_file
from rt.net.authority.issued import issued_to
from rt.net.authority.trust import CRL_BYTES_MAX, crl_path, read_revoked


def revoke(directory: str, name: str, *, bytes_max: int = CRL_BYTES_MAX) -> tuple[str, int]:
    """Revoke every certificate of a name that has not expired.

    Args:
        directory: Where the authority is. The list is `crl.pem` there; copy it to each program's
            directory, as you do with `ca.pem`.
        name: The peer's name.
        bytes_max: The longest list that programs read.

    Returns:
        The path of the list, and how many certificates this call added to it.

    Raises:
        Misuse: No valid certificate was issued to the name, the existing list is damaged, or the
            new one would be longer than programs read.
    """
    if parse_peer(name) == AUTHORITY:
        raise Misuse("an authority is not revoked: remove its ca.pem from every directory instead")
    authority, key = load_authority(directory)
    path = crl_path(certificate_files(directory, AUTHORITY).ca)
    with alone(directory):
        revoked = {serial: at for (_, serial), at in read_revoked(path, (authority,)).items()}
        serials = _serials(directory, name, authority)
        if not serials:
            raise Misuse(f"{directory}: no valid certificate was issued to {name!r}")
        added = serials - revoked.keys()
        revoked |= dict.fromkeys(added, datetime.now(UTC).replace(microsecond=0))
        content = signed_list(authority, key, revoked)
        if len(content) > bytes_max:  # every node would refuse it
            words = f"{len(revoked)} certificates would be on it, more than programs read"
            raise Misuse(f"{path}: {words}; replace the authority instead")
        write_file(path, content, force=True)
        sync_directory(directory)
    return path, len(added)


def _serials(directory: str, name: str, authority: x509.Certificate) -> set[int]:
    """Return the serial numbers of a name's valid certificates that are recorded here."""
    serials = {each.number for each in issued_to(directory, name)}
    path = certificate_files(directory, name).cert
    if os.path.exists(path):  # the file may be older than the record of issued certificates
        certificate = load_certificate(path)
        is_valid = certificate.not_valid_after_utc > datetime.now(UTC)
        if is_valid and certificate.issuer == authority.subject:
            serials.add(issued_of(certificate).number)
    return serials


def signed_list(
    authority: x509.Certificate,
    key: ec.EllipticCurvePrivateKey,
    revoked: dict[int, datetime],
) -> bytes:
    """Return a signed revocation list in PEM; `revoked` has each serial number and its time."""
    now = datetime.now(UTC)
    # All at once: `add_revoked_certificate` would copy all earlier entries, up to 400,000, each
    # time.
    entries = [_entry(serial, at) for serial, at in sorted(revoked.items())]
    builder = (
        x509.CertificateRevocationListBuilder(revoked_certificates=entries)
        .issuer_name(authority.subject)
        .last_update(now)
        .next_update(authority.not_valid_after_utc)  # valid until it is replaced
        .add_extension(x509.CRLNumber(int(now.timestamp() * 1000)), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(key.public_key()), critical=False
        )
    )
    return builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def _entry(serial: int, at: datetime) -> x509.RevokedCertificate:
    return x509.RevokedCertificateBuilder().serial_number(serial).revocation_date(at).build()
