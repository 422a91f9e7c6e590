"""NodeState: checks whose directory a node's is, and locks it against a second running node."""

import logging
import os
from contextlib import suppress
from random import SystemRandom
from typing import Final

from rt.errors import Misuse
from rt.log.disk import Disk
from rt.log.lock import take_lock
from rt.net.certificates import certificate_files, check_own
from rt.net.identity import CertificateRole
from rt.node.settings import NodeSettings
from rt.subscriber import MERGED_NAME
from sequencer.journal.journal import Opened, found, open_journal
from sequencer.raft.consensus import INCARNATION_END

_log: Final = logging.getLogger("rt.node")
_LOCK_NAME: Final = ".lock"  # a name that no session can have


def claim_directory(disk: Disk, settings: NodeSettings, top: str) -> int:
    """Return the lock on a node's directory, to be closed when the node ends.

    Raises:
        Misuse: the certificate is not this node's or has expired, or another node runs here.
    """
    check_own(
        certificate_files(settings.certs, settings.name), (CertificateRole.NODE,), settings.name
    )
    disk.make_directory(top)
    return take_lock(
        top,
        f"{top} has a running node; stop that, or give this one a --root of its own",
        _LOCK_NAME,
    )


def open_state(disk: Disk, settings: NodeSettings, top: str, *, founding: bool) -> Opened:
    """Return the sequencer's durable state; create it where a node may start without one.

    Args:
        disk: where.
        settings: of the node.
        top: the node's directory.
        founding: as of `rt.node.node.Node`.

    Raises:
        Misuse: a new cluster would not start empty.
        Refused: the directory is another node's.
    """
    path, fresh = os.path.join(top, "state"), SystemRandom().randrange(1, INCARNATION_END)
    cluster, node = settings.cluster_id or settings.stream, settings.name
    if founding or (settings.is_alone and not disk.names(path)):
        if disk.names(path) or disk.names(os.path.join(top, MERGED_NAME)):
            raise Misuse(
                f"{top} holds a node's state or a merged log, and a new cluster starts empty; a "
                "node that was founded before is started without --found"
            )
        found(disk, path, cluster=cluster, node=node, directory=fresh, place=_place(path))
    opened = open_journal(
        disk, path, cluster=cluster, node=node, fresh=fresh, place=_place(path), boot=_boot()
    )
    if opened.damage:
        _log.error("%s: %s; this node learns from the others before it votes", path, opened.damage)
    return opened


def _place(path: str) -> str:
    """Return the directory's inode number, which a copy of it does not inherit."""
    os.makedirs(path, mode=0o700, exist_ok=True)
    return f"{os.stat(path).st_ino:x}"


def _boot() -> str:
    """Return the id that the kernel drew when it started, or "" where it draws none."""
    with suppress(OSError), open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        return file.read().strip()
    return ""
