"""`rt certs`: make an authority; issue, renew, revoke and show certificates."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import click
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.x509.oid import ExtendedKeyUsageOID

from rt.cli.groups import CommandGroup
from rt.errors import RtError, spoken
from rt.net import certificates, renewal, revocation, trust
from rt.net.identity import CertificateRole, read_identity

DIRECTORY = "certs"

_directory_option = click.option(
    "--dir",
    "directory",
    metavar="DIR",
    default=DIRECTORY,
    envvar="RT_CERTS",
    show_default=True,
    show_envvar=True,
    help="Directory of the authority.",
)


@click.group(cls=CommandGroup)
def certs() -> None:
    """Manage the keys and certificates by which all peers recognise each other.

    \b
    rt certs init certs
    rt certs issue node-1 --role node --host node-1.example.org
    rt certs issue jfk --role publisher --session 'jfk-*'
    rt certs issue spark --role subscriber
    rt certs show certs/jfk.pem
    rt certs renew jfk
    rt certs revoke jfk
    """  # noqa: D301 - click reads the backspace character


@certs.command()
@click.argument("directory", metavar="DIR", default=DIRECTORY)
@click.option("--force", is_flag=True, help="Replace an authority; its certificates stop working.")
def init(directory: str, *, force: bool) -> None:
    """Make a certificate authority in DIR (default: certs).

    \b
    rt certs init certs

    Keep DIR/ca.key where certificates are issued; programs need DIR/ca.pem only.
    """  # noqa: D301 - click reads the backspace character
    with _one_line_errors():
        files = certificates.init_authority(directory, force=force)
    click.echo(f"made {files.cert} and {files.key}; keep the key to yourself")


@certs.command()
@click.argument("name")
@click.option(
    "--role",
    type=click.Choice([role.value for role in CertificateRole]),
    required=True,
    help="Role of the holder.",
)
@click.option(
    "--session",
    "sessions",
    metavar="GLOB",
    multiple=True,
    help="A publisher's: sessions and groups it may push; repeat for more.  [default: NAME]",
)
@click.option(
    "--stream",
    "streams",
    metavar="GLOB",
    multiple=True,
    help="A subscriber's: streams it may pull; repeat for more.  [default: *]",
)
@click.option(
    "--host",
    "hosts",
    metavar="HOST",
    multiple=True,
    help="A node's: DNS name or address it is dialled at; repeat for more.  [default: loopback]",
)
@click.option(
    "--days",
    type=click.IntRange(1, certificates.DAYS_MAX),
    default=certificates.DAYS_DEFAULT,
    show_default=True,
    help="Days until it expires.",
)
@_directory_option
@click.option("--force", is_flag=True, help="Replace the files of NAME, whatever they granted.")
def issue(name: str, directory: str, **request: Any) -> None:
    """Issue a key and a certificate for NAME: DIR/NAME.key and DIR/NAME.pem.

    \b
    rt certs issue node-1 --role node --host node-1.example.org --host 10.0.0.7
    rt certs issue jfk --role publisher --session jfk --session 'jfk-*' --days 7
    rt certs issue spark --role subscriber --stream flights

    To replace files before they expire use `rt certs renew`, which keeps what they grant.
    """  # noqa: D301 - click reads the backspace character
    with _one_line_errors():
        files = certificates.issue(directory, name, **request)
        facts = _facts(files.cert)
    click.echo(f"issued {files.cert} and {files.key}: {facts['role']}, until {facts['until']}")


@certs.command()
@click.argument("name")
@click.option(
    "--days",
    type=click.IntRange(1, certificates.DAYS_MAX),
    help="Days until it expires.  [default: as many as before]",
)
@_directory_option
def renew(name: str, directory: str, *, days: int | None) -> None:
    """Replace the key and certificate of NAME; what they grant stays the same.

    \b
    rt certs renew jfk
    rt certs renew node-1 --days 30

    Running programs notice the new files and reconnect with them.
    """  # noqa: D301 - click reads the backspace character
    with _one_line_errors():
        files = renewal.renew(directory, name, days=days)
        facts = _facts(files.cert)
    click.echo(f"renewed {files.cert} and {files.key}: {facts['role']}, until {facts['until']}")


@certs.command()
@click.argument("name")
@_directory_option
def revoke(name: str, directory: str) -> None:
    """End every certificate of NAME, by DIR/crl.pem.

    \b
    rt certs revoke jfk

    Copy crl.pem into the directory of every program, beside ca.pem: connections of a revoked
    certificate end within a second, and new ones are refused.
    """  # noqa: D301 - click reads the backspace character
    with _one_line_errors():
        path, count = revocation.revoke(directory, name)
    said = f"{count} certificate{'' if count == 1 else 's'}" if count else "no further certificate"
    click.echo(f"revoked {said} of {name}; copy {path} beside every ca.pem")


@certs.command()
@click.argument("path", metavar="FILE")
@click.option("--json", "as_json", is_flag=True, help="As one JSON object.")
def show(path: str, *, as_json: bool) -> None:
    """Show the holder of a certificate, what it grants, and until when.

    \b
    rt certs show certs/jfk.pem
    rt certs show certs/jfk.pem --json
    """  # noqa: D301 - click reads the backspace character
    with _one_line_errors():
        facts = _facts(path)
    click.echo(json.dumps(facts) if as_json else _table(facts))


@contextmanager
def _one_line_errors() -> Iterator[None]:
    try:
        yield
    except (RtError, OSError) as error:
        raise click.ClickException(spoken(error)) from error


def _facts(path: str) -> dict[str, Any]:
    certificate = certificates.load_certificate(path)
    left = certificate.not_valid_after_utc - datetime.now(UTC)
    return {
        **_holder(certificate),
        "since": certificate.not_valid_before_utc.isoformat(),
        "until": certificate.not_valid_after_utc.isoformat(),
        "days_left": round(left.total_seconds() / 86_400, 1),
        "revoked": _revoked_at(path, certificate),
        "serial": f"{certificate.serial_number:x}",
        "sha256": certificate.fingerprint(hashes.SHA256()).hex(),
    }


def _holder(certificate: x509.Certificate) -> dict[str, Any]:
    if certificate.subject == certificate.issuer:
        return {"name": certificates.AUTHORITY, "role": "authority"}
    # Every role dials, so this is the check that a node makes.
    der = certificate.public_bytes(serialization.Encoding.DER)
    identity = read_identity(der, ExtendedKeyUsageOID.CLIENT_AUTH)
    return {
        "name": identity.name,
        "role": identity.role.value,
        "sessions": list(identity.sessions),
        "streams": list(identity.streams),
        "hosts": renewal.hosts_of(certificate),
    }


def _revoked_at(path: str, certificate: x509.Certificate) -> str | None:
    """Return when a certificate was revoked, by the list of the directory it is in."""
    ca = os.path.join(os.path.dirname(path), f"{certificates.AUTHORITY}.pem")
    if not os.path.exists(ca):
        return None
    revoked = trust.read_revoked(trust.crl_path(ca), (certificates.load_certificate(ca),))
    at = revoked.get((certificate.issuer.public_bytes(), certificate.serial_number))
    return None if at is None else at.isoformat()


def _table(facts: dict[str, Any]) -> str:
    rows = {
        key.replace("_", " "): ", ".join(value) if isinstance(value, list) else str(value)
        for key, value in facts.items()
        if value not in ([], None)
    }
    if facts["days_left"] < 0:
        rows["days left"] = "expired; renew it with rt certs renew"
    return "\n".join(f"{key:<10} {value}" for key, value in rows.items())
