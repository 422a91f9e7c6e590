"""Promotion: lets a new cluster's log continue a standby's copy of another cluster's log.

The authority signs a statement, the succession, which says that the new log continues the old one
from the end of the copy. The statement is stored next to the copy; after that, no puller may write
to the copy.
"""

import os
import secrets
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from typing import Final

from replicator.pull.promoted import promoted_to, succession_beside
from rt.client.readers.settings import ConnectionSettings
from rt.errors import FrameError, Misuse
from rt.log.files.absent import no_log
from rt.log.files.directory import LogDirectory
from rt.log.files.disk import sync_directory
from rt.log.files.lock import writers_lock
from rt.log.read.proof import Proof, last_proof
from rt.names import merged_directory
from rt.net.authority.certificates import AUTHORITY, certificate_files
from rt.net.authority.files import read_file, write_file
from rt.net.authority.succession import (
    SUCCESSION_BYTES_MAX,
    TEXT_MAX,
    Succession,
    parse_succession,
    said_in,
)
from rt.net.authority.trust import trust_of
from rt.position import Position
from rt.text import printable

_DRAFT: Final = ".new"  # until the new cluster's files are written
_CONFIG_BYTES_MAX: Final = 1 << 20
_ID_DIGITS: Final = 8  # of the log that ended, in the name of an earlier succession


def succession_path(settings: ConnectionSettings) -> str:
    """Return the path of a copy's succession: the statement of which log continues the copy."""
    return succession_beside(merged_directory(settings.root, settings.stream))


def draft_path(settings: ConnectionSettings) -> str:
    """Return the path of a succession's draft, in use until the new cluster has its files."""
    return succession_path(settings) + _DRAFT


def read_succession(path: str, certs: str) -> tuple[Succession, str]:
    """Return a succession and its text, after checking that the authority in `certs` signed it.

    Raises:
        Misuse: the file does not exist, or it is malformed.
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


@contextmanager
def succession(
    settings: ConnectionSettings, old: str, addresses: Sequence[str], authority: str
) -> Iterator[str]:
    """Have an authority sign that a new log continues a copy; yield the new log's id.

    The caller writes the new cluster's files within the block; if the block fails, the signed
    statement stays a draft that nothing uses.

    Args:
        settings: where the copy is.
        old: the id of the copy's log.
        addresses: the addresses of the new cluster's nodes.
        authority: the directory of the authority, which the old cluster trusts.

    Raises:
        Misuse: the copy is damaged, missing, in use or was promoted before; or there is no such
            authority.
    """
    path, target = merged_directory(settings.root, settings.stream), succession_path(settings)
    words = "a promoted copy must not grow: stop rt pull --standby"
    if not os.path.isdir(path):
        raise no_log(path)
    with writers_lock(path, f"{path} is being written; {words}"):
        if promoted_to(path):
            words = "this copy was promoted before, and two clusters must not continue one log"
            raise Misuse(f"{target} is there: {words}; move it away if that one never ran")
        cut, proof = _end_of(path)
        made = Succession(
            settings.stream, old, secrets.token_hex(16), str(cut), proof.number,
            proof.digest.hex(), moved_to=",".join(addresses)[:TEXT_MAX],
            by=printable(f"rt standby promote on {socket.gethostname()}")[:TEXT_MAX],
            at_ns=time.time_ns(),
        )  # fmt: skip
        write_file(target + _DRAFT, made.signed(authority).encode(), force=True)
        yield made.new
        _complete(target)


def _end_of(path: str) -> tuple[Position, Proof]:
    with closing(LogDirectory(path)) as log:
        log.refresh()
        try:
            return last_proof(log)
        except FrameError as error:
            raise Misuse(f"{path} is damaged, see rt verify: {error}") from None


def complete_succession(settings: ConnectionSettings, directory: str) -> bool:
    """Complete a promotion that was killed after it had written a cluster's files.

    Returns:
        True if a promotion was completed; False if none was begun, or if `directory` does not have
        the files of its cluster.
    """
    target = succession_path(settings)
    if not os.path.exists(target + _DRAFT):
        return False
    found, _ = read_succession(target + _DRAFT, os.path.join(directory, "certs"))
    line = f'log_id = "{found.new}"'.encode()
    configs = (name for name in os.listdir(directory) if name.endswith(".toml"))
    texts = (read_file(os.path.join(directory, name), _CONFIG_BYTES_MAX) for name in configs)
    if not any(line in text for text in texts):
        return False
    _complete(target)
    return True


def _complete(target: str) -> None:
    """Replace the succession at `target` by its draft; keep the earlier one under another name."""
    with suppress(FileNotFoundError):
        known = said_in(read_file(target, SUCCESSION_BYTES_MAX))
        os.replace(target, f"{target}.{known.old[:_ID_DIGITS]}")
    os.replace(target + _DRAFT, target)
    sync_directory(os.path.dirname(target))
