"""Renewal: replaces a name's key and certificate; its grants stay the same."""

from collections.abc import Sequence
from datetime import timedelta

from cryptography import x509

from rt.errors import Misuse
from rt.net.authority.certificates import (
    DAYS_MAX,
    CertificateFiles,
    certificate_files,
    issue,
    load_authority,
    load_certificate,
)
from rt.net.authority.granting import has_entry
from rt.net.authority.identity import identity_of, listed_by
from rt.net.authority.trust import crl_path, read_revoked


def renew(
    directory: str, name: str, *, days: int | None = None, clusters: Sequence[str] = ()
) -> CertificateFiles:
    """Replace `NAME.key` and `NAME.pem` in the authority's directory; return their paths.

    Role, hosts and clusters stay the same; so do the files' group and its right to read them. The
    holder's grants are in `grants.toml`. The old certificate stays valid until it expires;
    `revoke` ends it at once.

    Args:
        directory: Where the authority is.
        name: The peer's name.
        days: Days until the new certificate expires; as many as the old one had if None.
        clusters: Ids of the clusters that a node may join. If none are given, those of the old
            certificate; if that certificate names none, as for `issue`.

    Raises:
        Misuse: There is no certificate of this name, it was revoked, or another authority
            signed it; or it lists grants that were not moved to `grants.toml` yet.
    """
    files = certificate_files(directory, name)
    certificate, (authority, _) = load_certificate(files.cert), load_authority(directory)
    if certificate.issuer != authority.subject:
        raise Misuse(f"{files.cert}: another authority signed it; issue it here instead")
    revoked = read_revoked(crl_path(files.ca), (authority,))
    if (certificate.issuer.public_bytes(), certificate.serial_number) in revoked:
        words = "it was revoked; if its holder is trusted again, use rt certs issue --force"
        raise Misuse(f"{files.cert}: {words}")
    holder = listed_by(certificate)
    if (holder.sessions or holder.streams) and not has_entry(directory, holder):
        words = "what it grants counts no more and would be lost; first move it to grants.toml"
        raise Misuse(f"{files.cert}: {words}, with rt certs grants --from-certificates")
    lifetime = certificate.not_valid_after_utc - certificate.not_valid_before_utc
    return issue(
        directory, name, holder.role, force=True,
        hosts=hosts_of(certificate) if holder.is_dialled else (),
        clusters=clusters or identity_of(certificate).clusters or None,
        days=days or max(1, min(DAYS_MAX, lifetime // timedelta(days=1))),
    )  # fmt: skip


def hosts_of(certificate: x509.Certificate) -> list[str]:
    """Return the DNS names and addresses that a certificate is for."""
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    addresses = names.get_values_for_type(x509.IPAddress)
    return names.get_values_for_type(x509.DNSName) + [str(address) for address in addresses]
