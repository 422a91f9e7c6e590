"""Opens the sequencer's state in a node's directory."""

import logging
import os
from contextlib import suppress
from random import SystemRandom
from typing import Final

from rt.errors import ManifestError, Misuse
from rt.log.files.disk import Disk, make_private_directory
from rt.log.files.identity import read_log_identity
from rt.names import MERGED_NAME, stream_directory
from rt.node.founding.carried_state import read_carried
from rt.node.founding.from_copy import FOUNDING, demand_same, import_log, read_founding
from rt.node.host.assembly import merged_identity
from rt.node.settings.node import NodeSettings
from sequencer.journal.identity import adopt_state, inode, read_identity
from sequencer.journal.journal import Opened, found, open_journal
from sequencer.raft.consensus import INCARNATION_END, MEMBERS_ALLOWED, Snapshot
from sequencer.raft.quorum import Roster

_log: Final = logging.getLogger("rt.node")


def open_state(disk: Disk, settings: NodeSettings, top: str, *, founding: bool) -> Opened:
    """Recover the sequencer's state, or create it if the node may found itself.

    Args:
        disk: holds the node's directory.
        settings: the node's settings.
        top: the node's directory.
        founding: as in `rt.node.host.node.Node`.

    Raises:
        Misuse: a new cluster would not start empty, the node's founding was interrupted, or the
            merged log is a copy of another cluster's.
        Refused: the directory is another node's.
    """
    path, fresh = os.path.join(top, "state"), SystemRandom().randrange(1, INCARNATION_END)
    cluster, node = settings.founding_name, settings.name
    _demand_own_log(settings, os.path.join(top, MERGED_NAME))
    if founding or (settings.is_alone and not disk.names(path)):
        found_state(disk, settings, top)
    elif not disk.names(path) and os.path.isdir(path + FOUNDING):
        raise Misuse(
            f"{top}: the founding of this node was interrupted, and it has said nothing to others "
            "yet; run rt node found once more"
        )
    is_empty = not (disk.names(path) or disk.names(os.path.join(top, MERGED_NAME)))
    opened = open_journal(
        disk,
        path,
        cluster=cluster,
        node=node,
        fresh=fresh,
        place=_place(path),
        boot=_boot(),
        is_late=settings.storage.lose_confirmed_on_power_cut,
    )
    if opened.damage and is_empty:  # the node is being added, or its directory was emptied
        _log.warning(
            "%s: nothing is here yet; this node learns from the others before it votes", top
        )
    elif opened.damage:
        _log.error("%s: %s; this node learns from the others before it votes", path, opened.damage)
    return opened


def _demand_own_log(settings: NodeSettings, merged: str) -> None:
    """Raise `Misuse` if the merged log here belongs to another cluster."""
    own = settings.storage.log_id or settings.cluster_id
    found = None
    with suppress(ManifestError):  # damage is mended, or reported, when the log is opened
        found = read_log_identity(merged) if own else None
    if found is not None and found.id != own:
        raise Misuse(
            f"{merged} is a copy of another log ({found.id}) than this node's cluster has ({own}), "
            "as rt standby rejoin makes it; go on with it by rt pull, and do not start this node "
            "there again"
        )


def found_state(disk: Disk, settings: NodeSettings, top: str) -> None:
    """Create the state of a member of a new cluster, which may vote at its first start.

    Args:
        disk: holds the node's directory.
        settings: the node's settings.
        top: the node's directory.

    Raises:
        Misuse: the directory is not empty, the number of members is not allowed, or the founding
            log is not the one that the cluster's files were made for.
        CorruptLog: the founding log is damaged.
    """
    path, merged = os.path.join(top, "state"), os.path.join(top, MERGED_NAME)
    partial = path + FOUNDING
    is_interrupted = os.path.isdir(partial)  # then a merged log here is what the founding copied
    if disk.names(path) or (disk.names(merged) and not is_interrupted):
        raise Misuse(
            f"{top} holds a node's state or a merged log, and a new cluster starts empty; a "
            "node that was founded before is only started, with rt node"
        )
    if len(settings.member_names) not in MEMBERS_ALLOWED:
        count = len(settings.member_names)
        raise Misuse(f"{count} members; a cluster is founded with 1, 3, 5 or 7 nodes")
    disk.make_directory(partial)
    snapshot = _take_log(disk, settings, merged) if settings.storage.founded_from else None
    for name in disk.names(partial):
        os.unlink(os.path.join(partial, name))
    found(
        disk, partial, cluster=settings.founding_name, node=settings.name,
        directory=SystemRandom().randrange(1, INCARNATION_END), place=_place(partial),
        members=settings.places, snapshot=snapshot,
    )  # fmt: skip
    disk.replace(partial, path)


def _take_log(disk: Disk, settings: NodeSettings, merged: str) -> Snapshot:
    """Copy the log that this cluster is founded from; return the state to start from.

    A copy that an interrupted founding has completed is kept.

    Raises:
        Misuse: the log is not the one that the cluster's files were made for, or not a merged log.
        CorruptLog: the log is damaged.
    """
    storage = settings.storage
    carried = read_carried(storage.founded_state) if storage.founded_state else None
    groups, size = storage.founded_groups, storage.file_bytes
    founding = read_founding(storage.founded_from, groups, size, carried)
    demand_same(founding, storage.founded_at)
    if disk.names(merged):
        demand_same(read_founding(merged, groups, size, carried), storage.founded_at)
    else:
        _log.info("copying the log that this cluster is founded from: %s", storage.founded_from)
        import_log(disk, founding, merged, merged_identity(settings))
    roster = Roster.founding(settings.places or {settings.name: ""}).at(0)
    return Snapshot(founding.ledger.index, founding.term, roster, founding.ledger.encode())


def demand_state(settings: NodeSettings) -> None:
    """Raise `Misuse` unless a node's state exists; nothing is created."""
    path = os.path.join(stream_directory(settings.root, settings.stream), "state")
    if not os.path.isdir(path):
        raise Misuse(f"{path} does not exist; are --root and --stream right?")


def adopt(disk: Disk, settings: NodeSettings, top: str) -> bool:
    """Allow a moved directory to be opened; return whether it would be refused otherwise.

    Args:
        disk: holds the node's directory.
        settings: the node's settings.
        top: the node's directory, locked.

    Raises:
        Misuse: the directory holds no node's state.
        Refused: the state is another cluster's, or another node's.
    """
    path = os.path.join(top, "state")
    identity, place = read_identity(disk, path), _place(path)
    if identity is not None:
        identity.demand(path, settings.founding_name, settings.name, "")
    adopt_state(disk, path, place)
    return identity is not None and identity.place != "" and inode(identity.place) != place


def _place(path: str) -> str:
    """Create a directory if needed; return its inode number, which a copy does not share."""
    make_private_directory(path)
    return f"{os.stat(path).st_ino:x}"


def _boot() -> str:
    """Return the kernel's boot id, or "" if there is none."""
    with suppress(OSError), open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        return file.read().strip()
    return ""
