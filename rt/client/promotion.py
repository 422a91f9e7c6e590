"""Promotion: says, beside a standby's copy, which log continues it; then the copy takes no more."""

import getpass
import os
import secrets
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Final

from rt.client.readers.settings import ConnectionSettings
from rt.errors import Misuse
from rt.log.files.directory import LogDirectory
from rt.log.files.disk import sync_directory
from rt.log.files.identity import read_identity
from rt.log.files.lock import whole_lock
from rt.log.read.proof import last_proof
from rt.names import merged_directory, stream_directory
from rt.net.authority.certificates import AUTHORITY, certificate_files
from rt.net.authority.files import read_file, write_file
from rt.net.authority.succession import (
    SUCCESSION_BYTES_MAX,
    Succession,
    parse_succession,
    said_in,
)
from rt.net.authority.trust import trust_of

SUCCESSION_NAME: Final = "standby.succession"
_DRAFT: Final = ".new"  # until the new cluster's files are written
_CONFIG_BYTES_MAX: Final = 1 << 20


def succession_path(settings: ConnectionSettings) -> str:
    """Return where a promotion writes who continues the log of a copy."""
    return _path(settings.root, settings.stream)


def _path(root: str, stream: str) -> str:
    return os.path.join(stream_directory(root, stream), SUCCESSION_NAME)


def read_succession(path: str, certs: str) -> tuple[Succession, str]:
    """Return a succession and its text, which the authority in `certs` signed.

    Raises:
        Misuse: there is none, or it is malformed.
        Refused: another authority signed it.
    """
    try:
        text = read_file(path, SUCCESSION_BYTES_MAX).decode()
    except FileNotFoundError:
        words = "rt standby promote --now --authority DIR writes it"
        raise Misuse(f"{path} does not exist; {words}") from None
    except UnicodeDecodeError:
        raise Misuse(f"{path} is not UTF-8; copy it again") from None
    trust = trust_of(certificate_files(certs, AUTHORITY).ca)
    return parse_succession(text, trust.facts.authorities), text


def promoted_to(root: str, stream: str) -> str:
    """Return where the log of a copy continues, if the copy was promoted; "" if it was not.

    Raises:
        Misuse: what says so cannot be read.
        ManifestError: the copy's manifest is damaged.
    """
    try:
        found = said_in(read_file(_path(root, stream), SUCCESSION_BYTES_MAX))
    except FileNotFoundError:
        return ""
    identity = read_identity(merged_directory(root, stream))
    return found.moved_to if identity is not None and identity.id == found.old else ""


def demand_current(root: str, stream: str) -> None:
    """Raise `Misuse` if a copy was promoted: it must not grow."""
    if moved_to := promoted_to(root, stream):
        path = merged_directory(root, stream)
        raise Misuse(
            f"{path} takes nothing more: it was promoted, and its log continues at {moved_to}; rt "
            "standby rejoin makes it a copy of that"
        )


@contextmanager
def succession(
    settings: ConnectionSettings, old: str, addresses: Sequence[str], authority: str
) -> Iterator[str]:
    """Have an authority say that a new log goes on where a copy ends; yield the new log's id.

    The caller writes the new cluster's files meanwhile. If it fails, nothing was said.

    Args:
        settings: where the copy is.
        old: the id of its log.
        addresses: those of the new cluster's nodes.
        authority: the directory of the authority, which the old cluster trusts.

    Raises:
        Misuse: the copy is being written, was promoted before, or there is no such authority.
        CorruptLog: the copy is damaged.
    """
    path, target = merged_directory(settings.root, settings.stream), succession_path(settings)
    words = "a promoted copy must not grow: stop rt pull --standby"
    with whole_lock(path, f"{path} is being written; {words}"):
        if os.path.exists(target):
            words = "this copy was promoted before, and two clusters must not continue one log"
            raise Misuse(f"{target} is there: {words}; move it away if that one never ran")
        with closing(LogDirectory(path)) as log:
            log.refresh()
            cut, proof = last_proof(log)
        made = Succession(
            settings.stream, old, secrets.token_hex(16), str(cut), proof.number,
            proof.digest.hex(), moved_to=",".join(addresses),
            by=f"{getpass.getuser()}@{socket.gethostname()}", at_ns=time.time_ns(),
        )  # fmt: skip
        write_file(target + _DRAFT, made.signed(authority).encode(), force=True)
        yield made.new
        _complete(target)


def complete_succession(settings: ConnectionSettings, directory: str) -> bool:
    """Complete a promotion that was killed after it had written a cluster's files.

    Returns:
        Whether there was one, with these files.
    """
    target = succession_path(settings)
    if os.path.exists(target) or not os.path.exists(target + _DRAFT):
        return False
    found, _ = read_succession(target + _DRAFT, os.path.join(directory, "certs"))
    line = f'log_id = "{found.new}"'.encode()
    configs = [name for name in os.listdir(directory) if name.endswith(".toml")]
    if not any(
        line in read_file(os.path.join(directory, name), _CONFIG_BYTES_MAX) for name in configs
    ):
        return False
    _complete(target)
    return True


def _complete(target: str) -> None:
    os.replace(target + _DRAFT, target)
    sync_directory(os.path.dirname(target))
