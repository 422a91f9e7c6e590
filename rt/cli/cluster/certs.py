"""`rt certs`: creates an authority; issues, renews, revokes and shows certificates and grants."""

import os
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

import click
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.x509.oid import ExtendedKeyUsageOID

from rt.cli.common.command_group import CommandGroup
from rt.cli.common.console import print_json, show_outcome
from rt.cli.common.options import flag, json_option
from rt.errors import Misuse, RtError, spoken
from rt.net.authority import certificates, granting, renewal, revocation, trust
from rt.net.authority.grants import GRANTS_NAME, Grant, GrantTable, read_grants
from rt.net.authority.identity import CertificateRole, read_identity
from rt.text import counted

DIRECTORY = "certs"


def _directory() -> str:
    """Return the certificate directory set in the file of RT_CONFIG; `certs` without a file."""
    path = os.environ.get("RT_CONFIG")
    if not path:
        return DIRECTORY
    from rt.client.readers.settings import ConnectionSettings  # noqa: PLC0415 - only with a file
    from rt.config.settings import load  # noqa: PLC0415

    try:
        return load(ConnectionSettings, path, "pull", environment={}).certs
    except (RtError, OSError) as error:
        raise click.UsageError(f"{spoken(error)}; or name the directory with --dir") from error


_directory_option = click.option(
    "--dir", "directory", metavar="DIR", default=_directory, envvar="RT_CERTS",
    show_default="that of RT_CONFIG, or certs", show_envvar=True,
    help="Directory of the authority.",
)  # fmt: skip

_cluster_option = click.option(
    "--cluster",
    "clusters",
    metavar="ID",
    multiple=True,
    help="Restrict a node to the cluster with this cluster_id; repeat for more.  "
    "[default: that of the old certificate, or of the cluster that was made with DIR]",
)


@click.group(cls=CommandGroup)
def certs() -> None:
    """Manage the keys and certificates with which all peers authenticate each other.

    \b
    rt certs init certs
    rt certs issue node-1 --role node --host node-1.example.org
    rt certs issue jfk --role publisher --session 'jfk-*'
    rt certs issue spark --role subscriber
    rt certs show certs/jfk.pem
    rt certs grants
    rt certs renew jfk
    rt certs revoke jfk
    """  # noqa: D301 - click reads the backspace character


@certs.command()
@click.argument("directory", metavar="DIR", default=DIRECTORY)
@flag("--force", help="Replace the existing authority; certificates that it issued stop working.")
def init(directory: str, *, force: bool) -> None:
    """Make a certificate authority in DIR (default: certs).

    \b
    rt certs init certs

    Keep DIR/ca.key where certificates are issued; programs need DIR/ca.pem only.
    """  # noqa: D301 - click reads the backspace character
    files = certificates.init_authority(directory, force=force)
    click.echo(f"made {files.cert} and {files.key}; keep the key to yourself")


@certs.command()
@click.argument("name")
@click.option(
    "--role", type=click.Choice([role.value for role in CertificateRole]), required=True,
    help="Role of the holder.",
)  # fmt: skip
@click.option(
    "--session", "sessions", metavar="GLOB", multiple=True,
    help="Grant a publisher these sessions and groups; repeat for more.  [default: NAME]",
)  # fmt: skip
@click.option(
    "--stream",
    "streams",
    metavar="GLOB",
    multiple=True,
    help="Grant a subscriber or mirror these streams, or let a publisher push to them; repeat for "
    "more.  [default: *; for a publisher, each node's own stream]",
)
@flag("--leases", help="Let a subscriber take leases, which keep files from being archived.")
@click.option(
    "--host", "hosts", metavar="HOST", multiple=True,
    help="Host name or IP address of a node or mirror; repeat for more.  [default: loopback]",
)  # fmt: skip
@click.option(
    "--days", type=click.IntRange(1, certificates.DAYS_MAX), default=certificates.DAYS_DEFAULT,
    show_default=True, help="Days until the certificate expires.",
)  # fmt: skip
@_cluster_option
@_directory_option
@flag("--force", help="Replace the existing certificate and key of NAME.")
@json_option("what was issued")
def issue(
    name: str, directory: str, *, clusters: tuple[str, ...], as_json: bool, **request: Any
) -> None:
    """Issue a key and a certificate for NAME: DIR/NAME.key and DIR/NAME.pem.

    \b
    rt certs issue node-1 --role node --host node-1.example.org --host 10.0.0.7
    rt certs issue jfk --role publisher --session jfk --session 'jfk-*' --days 7
    rt certs issue spark --role subscriber --stream flights
    rt certs issue edge --role mirror --host edge.example.org

    Also writes what NAME may do to DIR/grants.toml, unless that file has an entry for NAME already.
    To replace the files before they expire, use rt certs renew, which keeps the role and the hosts.
    """  # noqa: D301 - click reads the backspace character
    files = certificates.issue(directory, name, clusters=clusters or None, **request)
    _say_made("issued", files, as_json=as_json)


@certs.command()
@click.argument("name")
@click.option(
    "--days",
    type=click.IntRange(1, certificates.DAYS_MAX),
    help="Days until the certificate expires.  [default: as many as before]",
)
@_cluster_option
@_directory_option
@json_option("what was issued")
def renew(
    name: str, directory: str, *, days: int | None, clusters: tuple[str, ...], as_json: bool
) -> None:
    """Replace the key and certificate of NAME; its role and its grants stay the same.

    \b
    rt certs renew jfk
    rt certs renew node-1 --days 30

    Running programs notice the new files and reconnect with them.
    """  # noqa: D301 - click reads the backspace character
    files = renewal.renew(directory, name, days=days, clusters=clusters)
    _say_made("renewed", files, as_json=as_json)


@certs.command()
@click.argument("name")
@_directory_option
@json_option("what was revoked")
def revoke(name: str, directory: str, *, as_json: bool) -> None:
    """Revoke every certificate of NAME, by adding it to DIR/crl.pem.

    \b
    rt certs revoke jfk

    Copy crl.pem into the directory of every program, beside ca.pem: connections that
    use a revoked certificate end within a second, and new ones are refused.
    """  # noqa: D301 - click reads the backspace character
    path, count = revocation.revoke(directory, name)
    said = counted(count, "certificate") if count else "no further certificate"
    words = f"revoked {said} of {name}; copy {path} beside every ca.pem"
    show_outcome({"name": name, "revoked": count, "crl": path}, words, as_json=as_json)


@certs.command()
@click.argument("path", metavar="FILE")
@json_option("the certificate")
def show(path: str, *, as_json: bool) -> None:
    """Show a certificate's holder, its expiry, and what its holder may do.

    \b
    rt certs show certs/jfk.pem
    rt certs show certs/jfk.pem --json
    """  # noqa: D301 - click reads the backspace character
    facts = _facts(path)
    if as_json:
        print_json(facts)
    else:
        click.echo(_table(facts))


@certs.command()
@flag(
    "--from-certificates", "adopt", help="First add the grants of certificates in DIR to the file.",
)  # fmt: skip
@_directory_option
@json_option("the grants")
def grants(directory: str, *, adopt: bool, as_json: bool) -> None:
    """Check DIR/grants.toml and show what each publisher and subscriber may do.

    \b
    rt certs grants
    rt certs grants --dir /etc/rt/certs --json

    To change a grant, edit the file and copy it beside every node's ca.pem: a running node reads it
    again and ends the connections of each peer whose grant has changed.
    """  # noqa: D301 - click reads the backspace character
    path = os.path.join(directory, GRANTS_NAME)
    adopted = granting.adopt(directory) if adopt else []
    if not os.path.exists(path):
        raise Misuse(f"{path}: no such file; rt certs issue writes it")
    table = read_grants(path)
    if as_json:
        print_json({"path": path, "added": adopted, "grants": _entries(table)})
        return
    for title in adopted:
        click.echo(f"added {title}, by its certificate")
    for (role, name), grant in sorted(table.items()):
        click.echo(f"{role} {name}: {_granted(grant)}")


def _entries(table: GrantTable) -> list[dict[str, Any]]:
    return [
        {"role": role.value, "name": name, **asdict(grant)}
        for (role, name), grant in sorted(table.items())
    ]


def _granted(grant: Grant) -> str:
    parts = [
        f"{key} {', '.join(globs)}"
        for key, globs in (("sessions", grant.sessions), ("streams", grant.streams))
        if globs
    ]
    return "; ".join([*parts, *(["leases"] if grant.leases else [])]) or "nothing"


def _say_made(verb: str, files: certificates.CertificateFiles, *, as_json: bool) -> None:
    """Print the paths of a certificate and its key, with the holder's role and the expiry."""
    facts = _facts(files.cert)
    until = _zulu(facts["until"])
    words = f"{verb} {files.cert} and {files.key}: {facts['role']}, until {until}"
    show_outcome({"cert": files.cert, "key": files.key, **facts}, words, as_json=as_json)


def _facts(path: str) -> dict[str, Any]:
    certificate = certificates.load_certificate(path)
    left = certificate.not_valid_after_utc - datetime.now(UTC)
    return {
        **_holder(path, certificate), "since": certificate.not_valid_before_utc.isoformat(),
        "until": certificate.not_valid_after_utc.isoformat(),
        "days_left": round(left.total_seconds() / 86_400, 1),
        "revoked": _revoked_at(path, certificate), "serial": f"{certificate.serial_number:x}",
        "sha256": certificate.fingerprint(hashes.SHA256()).hex(),
    }  # fmt: skip


def _holder(path: str, certificate: x509.Certificate) -> dict[str, Any]:
    if certificate.subject == certificate.issuer:
        return {"name": certificates.AUTHORITY, "role": "authority"}
    # Every role opens connections, so check the certificate as a client's, as a node does.
    der = certificate.public_bytes(serialization.Encoding.DER)
    identity = read_identity(der, ExtendedKeyUsageOID.CLIENT_AUTH)
    table = read_grants(os.path.join(os.path.dirname(path), GRANTS_NAME))
    grant = table.get((identity.role, identity.name), Grant())
    return {
        "name": identity.name, "role": identity.role.value, "sessions": list(grant.sessions),
        "streams": list(grant.streams), "leases": grant.leases or None,
        "hosts": renewal.hosts_of(certificate), "clusters": list(identity.clusters),
    }  # fmt: skip


def _revoked_at(path: str, certificate: x509.Certificate) -> str | None:
    """Return when a certificate was revoked, in ISO 8601; None if it was not.

    Reads the crl.pem in the certificate's directory.
    """
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
    rows |= {key: _zulu(rows[key]) for key in ("since", "until", "revoked") if key in rows}
    if facts["days_left"] < 0:
        rows["days left"] = "expired; renew it with rt certs renew"
    return "\n".join(f"{key:<10} {value}" for key, value in rows.items())


def _zulu(time: str) -> str:
    """Return an ISO 8601 time in UTC with its zone written as Z, as in all other times of rt."""
    return time.replace("+00:00", "Z")
