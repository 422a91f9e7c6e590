"""Mend: replaces a damaged rolled file with another node's copy, after verifying the copy."""

import os
from collections.abc import Sequence
from contextlib import closing
from typing import NamedTuple, Protocol

from rt.errors import CorruptLog, DiskFailed, ManifestError, Misuse, Refused, spoken
from rt.format.manifest import Rolled
from rt.log.write.appender import Appender
from rt.log.write.rolled_check import check_rolled


class FileSource(Protocol):
    """Copies files of a log from other nodes."""

    def nodes(self) -> Sequence[str]:
        """Return the nodes that may be asked, by name or address."""

    def fetch(self, node: str, log: Appender, line: Rolled) -> str:
        """Copy a rolled file of `log` from a node, and sync the copy; return the copy's path.

        The copy is on the file system of `log`; `line` is the file's line in the manifest of `log`.

        Raises:
            Refused: the node does not send the file.
            Stopped: the repair was stopped.
            OSError: the disk failed, or is full.
        """

    def clear(self) -> None:
        """Remove fetched files that are not used."""


class Mended(NamedTuple):
    """Mended: how a file was repaired.

    Attributes:
        node: the node that sent the copy.
        kept: the name under which the damaged file is kept, or "".
    """

    node: str
    kept: str


def mend_file(source: FileSource, log: Appender, line: Rolled) -> Mended | None:
    """Replace a damaged rolled file of a merged log by another node's copy.

    Returns:
        The node that sent the copy; None if the file was archived meanwhile.

    Raises:
        Refused: no node has the file undamaged; the message has each node's answer.
        Stopped: the repair was stopped.
        OSError: the copy could not be written.
    """
    reasons = []
    for node in source.nodes():
        try:
            fresh = source.fetch(node, log, line)
            _demand_agreed(log, line, fresh)
            kept = log.replace_rolled(line.file, fresh)
        except (Refused, Misuse, DiskFailed, CorruptLog, ManifestError) as error:
            reasons.append(f"{node}: {spoken(error)}")
        else:
            return None if kept is None else Mended(node, kept)
        finally:
            source.clear()
    raise Refused("unrepaired", "; ".join(reasons) or "there is no other node to fetch it from")


def _demand_agreed(log: Appender, line: Rolled, fresh: str) -> None:
    """Check the copy `fresh` against this log's manifest, which the damage has not touched.

    Raises:
        Refused: the copy is not the file that the manifest describes.
    """
    try:
        check_rolled(log.disk, fresh, log.identity, log.manifest, line)
        with closing(log.disk.open_read(fresh)) as file:
            if file.size() > line.end:  # the digest does not cover what follows
                raise CorruptLog(fresh, line.file, "it is longer than that")
    except CorruptLog as error:
        name = os.path.basename(fresh)
        words = f"what it sent is not the {name} that the manifest lists: {error.reason}"
        raise Refused("corrupt", words) from None
