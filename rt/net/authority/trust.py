"""Trust: the authorities that verify peers, and the certificates that they have revoked.

Both are files that may change at any time: `ca.pem`, and `crl.pem` next to it. OpenSSL could check
revocation lists too, but requires one from every authority, with an expiry date, so that a
forgotten list would stop a cluster. Here a missing list means that nothing was revoked.
"""

import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final
from weakref import WeakValueDictionary

from cryptography import x509
from cryptography.exceptions import InvalidSignature

from rt.errors import Misuse, spoken
from rt.net.authority.files import read_file
from rt.net.authority.identity import UNREADABLE, demand_readable

CRL_NAME: Final = "crl.pem"
_FILE_BYTES_MAX: Final = 1 << 20  # a thousand authorities
CRL_BYTES_MAX: Final = 24 << 20  # 470,000 revoked certificates of 53 bytes each
_ADVICE: Final = "copy it again, or move it away and run rt certs revoke for each name that it had"
_CRL_BEGINS: Final = b"-----BEGIN X509 CRL-----"
_CRL_ENDS: Final = b"-----END X509 CRL-----"

FileStamp = tuple[int, int, int] | None
Revoked = tuple[bytes, int]  # issuer's name, serial number


@dataclass(frozen=True, slots=True)
class TrustFacts:
    """What `ca.pem` and `crl.pem` said when they were last read.

    Attributes:
        authorities: the certificates in `ca.pem`.
        revoked: when each revoked certificate was revoked.
    """

    authorities: tuple[x509.Certificate, ...]
    revoked: Mapping[Revoked, datetime]


class Trust:
    """The authorities and revocations in one directory, reread when they change.

    Threads: any thread may call any method. `_lock` guards `_stamps`, and reading the files;
    `facts` and `problem` are replaced as a whole and may be read without it.
    """

    def __init__(self, ca_path: str) -> None:
        """Read the files; `Misuse` if `ca.pem` or `crl.pem` cannot be read."""
        self._paths = ca_path, crl_path(ca_path)
        self._lock = threading.Lock()
        self._stamps = self._look()
        authorities = _authorities(ca_path)
        self.facts = TrustFacts(authorities, read_revoked(self._paths[1], authorities))
        self.problem: str | None = None  # why the last good files are still in force

    def refresh(self) -> None:
        """Read the files again if they have changed.

        If a file cannot be read, or a list has disappeared, what was known stays in force: a
        mistake must neither turn every peer away nor let a revoked one in.
        """
        with self._lock:
            stamps = self._look()
            if stamps == self._stamps:
                self.problem = None  # the file is good again
                return
            problems = [self._read_authorities(), self._read_revoked(stamps[1])]
            self.problem = "; ".join(filter(None, problems)) or None
            if self.problem is None:
                self._stamps = stamps

    def _read_authorities(self) -> str:
        """Read `ca.pem` again; return why it could not be read, or "".

        `ca.pem` and `crl.pem` are read separately: if one cannot be used, changes of the other take
        effect anyway.
        """
        try:
            authorities = _authorities(self._paths[0])
        except (Misuse, OSError) as error:
            return spoken(error)
        if authorities != self.facts.authorities:
            self.facts = TrustFacts(authorities, self.facts.revoked)
        return ""

    def _read_revoked(self, stamp: FileStamp) -> str:
        """Read `crl.pem` again; return why it could not be used, or "".

        It is not used if no authority that is trusted now has signed it, or if it is missing
        (`stamp` is None) although it listed revocations before. The known revocations then stay in
        force.
        """
        facts, path = self.facts, self._paths[1]
        if facts.revoked and stamp is None:
            return f"{path} has disappeared; its revocations stay in force"
        try:
            self.facts = TrustFacts(facts.authorities, read_revoked(path, facts.authorities))
        except (Misuse, OSError) as error:
            return spoken(error)
        return ""

    def objection(self, certificate: x509.Certificate) -> str:
        """Return why a verified certificate is no longer accepted; "" if it is accepted."""
        facts = self.facts
        if not any(_is_issued_by(certificate, each) for each in facts.authorities):
            return "its authority is no longer trusted"
        return self.revocation(certificate)

    def revocation(self, certificate: x509.Certificate) -> str:
        """Return a phrase that says when a certificate was revoked; "" if it was not."""
        key = certificate.issuer.public_bytes(), certificate.serial_number
        at = self.facts.revoked.get(key)
        return "" if at is None else f"it was revoked on {at:%Y-%m-%d %H:%M} UTC"

    def _look(self) -> tuple[FileStamp, FileStamp]:
        return file_stamp(self._paths[0]), file_stamp(self._paths[1])


_trusts: WeakValueDictionary[str, Trust] = WeakValueDictionary()
_trusts_lock = threading.Lock()


def trust_of(ca_path: str) -> Trust:
    """Return the process's shared `Trust` for an authority file; errors as for `Trust`."""
    path = os.path.abspath(ca_path)
    with _trusts_lock:
        trust = _trusts.get(path)
        if trust is None:
            trust = _trusts[path] = Trust(path)
        return trust


def crl_path(ca_path: str) -> str:
    """Return the path of an authority's revocation list."""
    return os.path.join(os.path.dirname(ca_path), CRL_NAME)


def read_revoked(path: str, authorities: tuple[x509.Certificate, ...]) -> dict[Revoked, datetime]:
    """Return the certificates that the lists in a file revoke, and when; none without a file.

    Raises:
        Misuse: a list cannot be read, or none of these authorities signed it.
    """
    try:
        data = read_file(path, CRL_BYTES_MAX)
    except FileNotFoundError:
        return {}
    blocks = data.split(_CRL_BEGINS)[1:]
    if not blocks:
        raise Misuse(f"{path}: not a list of revoked certificates; {_ADVICE}")
    revoked: dict[Revoked, datetime] = {}
    for block in blocks:
        pem = _CRL_BEGINS + block.partition(_CRL_ENDS)[0] + _CRL_ENDS + b"\n"
        revoked |= _revoked_by(pem, path, authorities)
    return revoked


def _revoked_by(
    pem: bytes, path: str, authorities: tuple[x509.Certificate, ...]
) -> dict[Revoked, datetime]:
    try:
        listed = x509.load_pem_x509_crl(pem)
        issuer = listed.issuer.public_bytes()
        found = {(issuer, each.serial_number): each.revocation_date_utc for each in listed}
        keys = [each.public_key() for each in authorities if each.subject == listed.issuer]
        is_signed = any(listed.is_signature_valid(key) for key in keys)  # type: ignore[arg-type]
    except (*UNREADABLE, TypeError) as error:
        words = f"{path}: a list of revoked certificates is damaged: {error}; {_ADVICE}"
        raise Misuse(words) from error
    if not is_signed:
        raise Misuse(f"{path}: a list was not signed by an authority of ca.pem; {_ADVICE}")
    return found


def _authorities(path: str) -> tuple[x509.Certificate, ...]:
    data = read_file(path, _FILE_BYTES_MAX)
    try:
        return tuple(map(demand_readable, x509.load_pem_x509_certificates(data)))
    except UNREADABLE as error:
        raise Misuse(f"{path}: no certificate can be read from it; copy ca.pem here") from error


def _is_issued_by(certificate: x509.Certificate, authority: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(authority)
    except (*UNREADABLE, TypeError, InvalidSignature):
        return False
    return True


def file_stamp(path: str) -> FileStamp:
    """Return a value that changes when the file is written or replaced; None if `stat` fails.

    An error is not raised here, where it would end the watching thread; reading the file reports
    it.
    """
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino
