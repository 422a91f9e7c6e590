"""Granting: appends entries to the grants file; changing entries is left to an editor."""

import os
from dataclasses import replace
from typing import Final

from cryptography import x509

from rt.errors import Misuse, Refused
from rt.names import parse_glob
from rt.net.authority.files import alone, read_file, write_file
from rt.net.authority.grants import GRANTS_NAME, Grant, parse_grants, read_grants
from rt.net.authority.identity import (
    PULLING,
    UNREADABLE,
    CertificateRole,
    PeerIdentity,
    demand_readable,
    listed_by,
)

_GRANTED_ROLES: Final = (CertificateRole.PUBLISHER, *PULLING)
_FILE_BYTES_MAX: Final = 1 << 20
_GRANTS_BYTES_MAX: Final = 4 << 20  # the largest file that nodes read
_HEAD: Final = """\
# What each publisher and subscriber may do; what is not granted here is refused. Nodes read this
# file from the directory of their ca.pem, again within a second of a change.
"""


def begin_grants(directory: str) -> None:
    """Create a grants file that grants nothing, unless there is one."""
    path = os.path.join(directory, GRANTS_NAME)
    with alone(directory):
        if not os.path.lexists(path):
            write_file(path, _HEAD.encode(), force=False)


def write_grant(directory: str, holder: PeerIdentity) -> bool:
    """Append a holder's grants, unless the file already has an entry for it.

    Args:
        directory: the directory of the authority; the file is copied to the nodes like `ca.pem`.
        holder: the holder with the requested grants; without any, the default of its role is
            granted.

    Returns:
        Whether an entry was added; nodes and operators need none.

    Raises:
        Misuse: the file grants this holder something else, or cannot be read.
    """
    if holder.role not in _GRANTED_ROLES:
        return False
    path = os.path.join(directory, GRANTS_NAME)
    asked = Grant(holder.sessions, holder.streams, holder.leases)
    with alone(directory):
        there = read_grants(path).get((holder.role, holder.name))
        if there is not None:
            if asked not in (Grant(), there):
                words = f"it has an entry for {holder.title} that says something else"
                raise Misuse(f"{path}: {words}; edit it there")
            return False
        granted = asked if asked.sessions or asked.streams else _default(holder)
        if holder.role is CertificateRole.PUBLISHER and not granted.sessions:
            granted = replace(granted, sessions=_default(holder).sessions)
        text = _text(path) + entry_text(holder.role, holder.name, granted)
        parse_grants(text.encode(), path)  # never write what a node would refuse
        write_file(path, text.encode(), force=True)
    return True


def has_entry(directory: str, holder: PeerIdentity) -> bool:
    """Whether a directory's grants file has an entry for a holder; errors as for `read_grants`."""
    return (holder.role, holder.name) in read_grants(os.path.join(directory, GRANTS_NAME))


def adopt(directory: str) -> list[str]:
    """Add the grants listed in old certificates to the grants file; return their holders.

    Grants were listed in certificates before there was a grants file. Existing entries are left
    alone.

    Raises:
        Misuse: the file cannot be read.
    """
    adopted = []
    for name in sorted(os.listdir(directory)):
        holder = _listed(os.path.join(directory, name)) if name.endswith(".pem") else None
        if (
            holder is not None
            and not has_entry(directory, holder)
            and write_grant(directory, holder)
        ):
            adopted.append(holder.title)
    return adopted


def _listed(path: str) -> PeerIdentity | None:
    """Return the holder of a certificate that lists grants; None for any other file."""
    try:
        data = read_file(path, _FILE_BYTES_MAX)
        holder = listed_by(demand_readable(x509.load_pem_x509_certificate(data)))
    except (*UNREADABLE, Refused, Misuse):  # a revocation list, or an authority's certificate
        return None
    return holder if holder.sessions or holder.streams else None


def entry_text(role: CertificateRole, name: str, grant: Grant) -> str:
    """Return an entry of a grants file as text, which begins with an empty line."""
    lines = ["", f'[{role}."{name}"]' if "." in name else f"[{role}.{name}]"]
    for key, globs in (("sessions", grant.sessions), ("streams", grant.streams)):
        if globs:
            quoted = ", ".join(f'"{glob}"' for glob in globs)
            lines.append(f"{key} = [{quoted}]")
    if grant.leases:
        lines.append("leases = true")
    return "\n".join(lines) + "\n"


def _default(holder: PeerIdentity) -> Grant:
    if holder.role is CertificateRole.PUBLISHER:
        return Grant(sessions=(parse_glob(holder.name),))
    return Grant(streams=(parse_glob("*"),), leases=holder.leases)


def _text(path: str) -> str:
    """Return the text of a grants file, or the explanatory header if there is no file."""
    try:
        text = read_file(path, _GRANTS_BYTES_MAX).decode()
    except FileNotFoundError:
        return _HEAD
    return text if text.endswith("\n") or not text else f"{text}\n"
