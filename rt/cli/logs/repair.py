"""Repair: how `rt verify --repair` mends a copy of a merged log."""

import os
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from typing import Final

from replicator.repair.file_fetch import FileFetch
from replicator.repair.mend import mend_file
from rt.client.readers.settings import ConnectionSettings
from rt.errors import CorruptLog, Misuse, Refused, spoken
from rt.format.index import SUFFIX
from rt.format.manifest import Rolled
from rt.inspect.advice import Finding, findings
from rt.inspect.verify import FileReport, LogReport, open_log
from rt.log.files.disk import OsDisk, set_aside
from rt.log.files.indexing import rebuild_index
from rt.log.files.lock import NODE_LOCK_NAME, writers_lock
from rt.log.write.appender import Appender
from rt.log.write.rolled_check import check_rolled
from rt.net.addresses import PORT

_NODE_STATE: Final = "state"
_ACTIVE_OF_NODE: Final = (
    "the node still writes this file, and its state says how far it had come; start the node: one "
    "of several sets the file aside and copies it again from the others; a node alone has the only "
    "copy, so keep all of its directory, and found a new cluster from a subscriber's copy with rt "
    "cluster init --from"
)


@dataclass(frozen=True, slots=True)
class RepairSettings:
    """The nodes from which intact files are fetched to repair a damaged copy."""

    nodes: tuple[str, ...] = field(
        default=(f"localhost:{PORT}",),
        metadata={"help": "With --repair: address of a node or mirror; repeat for each."},
    )
    certs: str = field(
        default="certs",
        metadata={"help": "With --repair: directory of ca.pem, NAME.pem and NAME.key."},
    )
    identity: str = field(
        default="client", metadata={"help": "With --repair: NAME of the certificate to present."}
    )

    def connection(self) -> ConnectionSettings:
        """Return settings for a client that reaches these nodes; `Misuse` if one is not valid."""
        return ConnectionSettings(nodes=self.nodes, certs=self.certs, identity=self.identity)


def repair_log(
    report: LogReport, settings: RepairSettings, say: Callable[[str], None]
) -> list[str]:
    """Repair a copy of a merged log: replace damaged rolled files with a node's copies.

    Also rebuilds bad indexes, and sets a damaged active file aside, for rt pull to copy it again.

    Args:
        report: What was found in the log.
        settings: The nodes to fetch from.
        say: Called with a sentence for each file.

    Returns:
        The names of the damaged files that were not repaired.

    Raises:
        Misuse: The log is not a merged log or is in use, or the certificate is not valid.
        ManifestError: The manifest is damaged.
        OSError: The disk failed.
    """
    directory = report.directory
    if report.kind != "merged":
        raise Misuse(
            f"{directory}: only a merged log (out) is repaired from nodes; of the copies of "
            "sessions in their in/ the nodes take care themselves"
        )
    connection = settings.connection()
    words = "is in use, by a program that repairs it by itself; stop that to do it here"
    with writers_lock(directory, f"{directory} {words}"):
        contexts = connection.contexts()
        with closing(_opened(directory)) as log:
            fetch = FileFetch(directory, connection.addresses, contexts, log.disk)
            left = []
            for line in _damaged(log):
                words, is_whole = _mended(fetch, log, line)
                say(words)
                left += [] if is_whole else [line.file.file_name]
            for file in report.files:
                words, is_whole = _other(log, file)
                if words:
                    say(words)
                left += [] if is_whole else [file.file]
            return left


def _opened(directory: str) -> Appender:
    found = open_log(directory)
    try:
        if found.manifest.identity is None:
            raise Misuse(f"{directory}: not a log")
        return Appender(OsDisk(), directory, found.manifest.identity)
    finally:
        found.close()


def _damaged(log: Appender) -> list[Rolled]:
    known, found = log.manifest, []
    for file in known.order:
        if file not in known.archived:
            path = os.path.join(log.directory, file.file_name)
            try:
                check_rolled(log.disk, path, log.identity, known, known.rolled[file])
            except CorruptLog:
                found.append(known.rolled[file])
    return found


def _mended(fetch: FileFetch, log: Appender, line: Rolled) -> tuple[str, bool]:
    """Repair a rolled file from a node; return what was done, and whether the file is whole now."""
    name = line.file.file_name
    try:
        mended = mend_file(fetch, log, line)
    except Refused as error:
        return f"{name}: not repaired: {spoken(error)}", False
    if mended is None:
        return f"{name}: archived", True
    kept = f"; the damaged file is kept as {mended.kept}" if mended.kept else ""
    return f"{name}: repaired with the copy of {mended.node}{kept}", True


def _is_nodes_own(directory: str) -> bool:
    """Return whether a merged log was written by a node, rather than copied from one."""
    parent = os.path.dirname(os.path.abspath(directory))
    return any(os.path.exists(os.path.join(parent, name)) for name in (NODE_LOCK_NAME, _NODE_STATE))


def _other(log: Appender, file: FileReport) -> tuple[str, bool]:
    """Repair without a node: rebuild a bad index, or set aside the damaged active file of a copy.

    Messages of a file that is set aside are missing until rt pull copies them again.

    Returns:
        What was done, or "" for nothing, and whether the file is whole now.
    """
    kinds, path = findings(file), os.path.join(log.directory, file.file)
    if Finding.DAMAGED in kinds and not file.is_rolled:
        if _is_nodes_own(log.directory):
            return f"{file.file}: not repaired: {_ACTIVE_OF_NODE}", False
        kept = set_aside(log.disk, path)
        if os.path.exists(path + SUFFIX):
            set_aside(log.disk, path + SUFFIX)
        return f"{file.file}: set aside as {kept}; rt pull copies it again", False
    if Finding.BAD_INDEX in kinds:
        with closing(open_log(log.directory)) as found:
            rebuild_index(log.disk, found, file.end.file)
        return f"{file.file}: its index is built again", True
    return "", True
