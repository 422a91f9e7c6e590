"""What `rt doctor` finds on this machine: certificates, file descriptors, disks, a node's port."""

import os
import resource
import socket
import tempfile
import time
from collections.abc import Iterator
from typing import Final

from rt.amounts import duration_text, size_text
from rt.cli.look.diagnosis import Diagnosis, fine, problem, warning
from rt.errors import Misuse, spoken
from rt.net.authority.certificates import (
    CertificateFiles,
    certificate_files,
    check_own,
    days_left,
    load_certificate,
)
from rt.net.authority.identity import CertificateRole
from rt.net.authority.renewal import hosts_of
from rt.net.contexts import demand_private
from rt.node.settings.node import NodeSettings

_DESCRIPTORS: Final = 4096  # 512 connections, 1,024 sessions of one publisher, and a margin
_SYNCS: Final = 5
_SYNC_BYTES: Final = 4096
_SLOW_SYNC_S: Final = 0.1
_DAYS_WARNING: Final = 7.0
# Types of file systems, as in /proc/self/mounts: those that lose data at a restart, and those that
# sync over a network.
_MEMORY: Final = frozenset({"tmpfs", "ramfs"})
_NETWORK: Final = frozenset({"nfs", "nfs4", "cifs", "smb3", "fuse.sshfs", "9p", "ceph"})


def own_certificate(directory: str, name: str, *roles: CertificateRole) -> Iterator[Diagnosis]:
    """Check a local program's certificate and key, and that the role is in `roles`, if given."""
    files = certificate_files(directory, name)
    advice = f"rt certs issue {name}, where the authority's key is, and copy the files here"
    try:
        check_own(files, roles or tuple(CertificateRole))
        days, ca_days = days_left(files), days_left(CertificateFiles(files.ca, files.ca, files.key))
    except (Misuse, OSError) as error:
        yield problem("certificates", spoken(error), advice)
        return
    for path, left in ((files.cert, days), (files.ca, ca_days)):
        if left < _DAYS_WARNING:
            yield warning("certificates", f"{path} expires in {left:.1f} days",
                          "rt certs renew" if path == files.cert else "make another authority, and "
                          "issue every certificate again before that")  # fmt: skip
        else:
            yield fine("certificates", f"{path} lasts {left:.0f} days")
    yield from _key(files)


def _key(files: CertificateFiles) -> Iterator[Diagnosis]:
    try:
        demand_private(files.key)
    except OSError as error:
        yield problem("certificates", spoken(error), "copy the key that belongs to the certificate")
    except Misuse as error:  # any program would refuse it
        said, _, advice = str(error).partition("; ")
        yield problem("certificates", said, advice)


def descriptors(hard: int | None = None) -> Iterator[Diagnosis]:
    """Check that a program may have enough files open.

    Args:
        hard: The hard limit of open files; None for this process's own.
    """
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1] if hard is None else hard
    if hard != resource.RLIM_INFINITY and hard < _DESCRIPTORS:
        yield warning("descriptors", f"a process may have {hard:,} files open",
                      f"raise the hard limit to {_DESCRIPTORS} or more: LimitNOFILE= in a unit, "
                      "limits.conf elsewhere")  # fmt: skip
    else:
        count = "any number of" if hard == resource.RLIM_INFINITY else f"{hard:,}"
        yield fine("descriptors", f"a process may have {count} files open")


def node_findings(settings: NodeSettings, *, runs: bool) -> Iterator[Diagnosis]:
    """Check what a node on this machine needs.

    Args:
        settings: The node's settings.
        runs: Whether the node answers at its address.
    """
    yield from own_certificate(settings.certs, settings.name, CertificateRole.NODE)
    yield from _named_hosts(settings)
    yield from _listens(settings, runs=runs)
    yield from disk(settings.root)


def _named_hosts(settings: NodeSettings) -> Iterator[Diagnosis]:
    """Check that the node's certificate names the address at which others dial it."""
    host = settings.addresses.get(settings.name, ("", 0))[0]
    files = certificate_files(settings.certs, settings.name)
    try:
        hosts = hosts_of(load_certificate(files.cert))
    except (Misuse, OSError):
        return  # reported already
    if host and host not in hosts:
        yield problem("certificates", f"{files.cert} does not name {host}, where others dial it",
                      f"rt certs issue {settings.name} --role node --host {host} --force"
                      )  # fmt: skip


def _listens(settings: NodeSettings, *, runs: bool) -> Iterator[Diagnosis]:
    host, port = settings.address
    if runs:
        yield fine("ports", f"the node runs and listens on {settings.listen}")
        return
    try:
        family, kind, _, _, address = socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with socket.socket(family, kind) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except OSError as error:
        yield problem("ports", f"{settings.listen} cannot be listened on: {spoken(error)}",
                      "end what listens there, or change the setting listen")  # fmt: skip
        return
    yield warning("ports", f"nothing listens on {settings.listen}",
                  f"start the node: rt node --config FILE, as {settings.name}")  # fmt: skip


def disk(root: str) -> Iterator[Diagnosis]:
    """Check the file system of a stream's directory, and how long a sync takes on it."""
    place = os.path.abspath(root)
    while not os.path.exists(place):
        place = os.path.dirname(place)
    yield from file_system(root, _file_system(place))
    try:
        taken_s = _sync_time(place)
    except OSError as error:
        yield problem("disks", f"{root} cannot be written: {spoken(error)}",
                      "correct owner and permissions, or run this as the node's user")  # fmt: skip
        return
    facts = os.statvfs(place)
    yield sync_time(root, facts.f_bavail * facts.f_frsize, taken_s)


def file_system(root: str, kind: str) -> Iterator[Diagnosis]:
    """Check the type of a file system, as /proc/self/mounts names it."""
    if kind in _MEMORY:
        yield problem("disks", f"{root} is in memory ({kind}); a restart of the machine loses it",
                      "use a disk")  # fmt: skip
    elif kind in _NETWORK:
        yield warning("disks", f"{root} is on a network ({kind})", "use a local disk: every "
                      "acknowledgement waits for a sync")  # fmt: skip


def sync_time(root: str, free: int, taken_s: float) -> Diagnosis:
    """Return a finding about a file system with `free` bytes, on which a sync took `taken_s`."""
    words = f"{root} has {size_text(free)} free; a sync takes "
    if taken_s > _SLOW_SYNC_S:
        return warning("disks", f"{words}{duration_text(taken_s)}", "look for another writer or a "
                       "failing disk: every acknowledgement waits for a sync")  # fmt: skip
    return fine("disks", f"{words}{duration_text(taken_s)}")


def _sync_time(place: str) -> float:
    """Return how many seconds syncing a small write takes: the median of five."""
    taken = []
    with tempfile.TemporaryFile(dir=place, prefix=".rt-doctor-") as file:
        for _ in range(_SYNCS):
            file.write(bytes(_SYNC_BYTES))
            file.flush()
            began_s = time.monotonic()
            os.fdatasync(file.fileno())
            taken.append(time.monotonic() - began_s)
    return sorted(taken)[_SYNCS // 2]


def _file_system(place: str) -> str:
    """Return the type of a directory's file system; "" if the system does not say."""
    try:
        with open("/proc/self/mounts", encoding="utf-8", errors="replace") as file:
            mounts = [line.split(" ") for line in file]
    except OSError:
        return ""
    real = os.path.realpath(place)
    kinds = [
        (len(fields[1]), number, fields[2])
        for number, fields in enumerate(mounts)
        if len(fields) > 2 and os.path.commonpath([real, _plain(fields[1])]) == _plain(fields[1])
    ]
    return max(kinds)[2] if kinds else ""


def _plain(mount: str) -> str:
    """Return a mount point of /proc/self/mounts with its octal escapes decoded."""
    return mount.encode("latin-1", "replace").decode("unicode_escape")
