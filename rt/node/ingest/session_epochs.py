"""A small file beside a node's copies of sessions: after which instructions they were begun.

An instruction may be executed again after a crash, when a new copy has been begun in the place of
the one that it dropped; with this file a node knows that the new one is not meant.
"""

import json
import logging
import os
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from rt.errors import Misuse
from rt.log.files.disk import Disk, File

_log: Final = logging.getLogger("rt.node")
_NAME: Final = ".begun"  # no session has such a name
_DRAFT: Final = ".begun.new"
_BYTES_MAX: Final = 64 << 20


class SessionEpoch(NamedTuple):
    """Copies of a session from before an instruction are gone.

    Attributes:
        after: the index of the instruction.
        retired: the ids of logs that may not be pushed again, with spaces between; "" if any may.
    """

    after: int = 0
    retired: str = ""


def save_epochs(disk: Disk, root: str, known: Mapping[str, SessionEpoch]) -> None:
    """Replace the file; `OSError` if the disk fails, or is full.

    Args:
        disk: where the copies are.
        root: their directory.
        known: by session; rewritten once for all copies that a step drops.
    """
    disk.make_directory(root)
    draft = os.path.join(root, _DRAFT)
    file = disk.open(draft, create=True)
    try:
        _write(file, json.dumps(known).encode())
    finally:
        file.close()
    disk.replace(draft, os.path.join(root, _NAME))


def _write(file: File, data: bytes) -> None:
    file.truncate(0)
    file.append([data])
    file.sync()


def read_epochs(disk: Disk, root: str) -> dict[str, SessionEpoch]:
    """Read the file, which no node has before its first session ends.

    Raises:
        Misuse: it is damaged. Without it a log that has ended could be merged a second time, and
            copies that were begun after it would be removed.
    """
    path = os.path.join(root, _NAME)
    try:
        file = disk.open_read(path)
    except FileNotFoundError:
        return {}
    try:
        found: Any = json.loads(file.pread(_BYTES_MAX, 0))
        return {
            str(name): SessionEpoch(int(after), str(log)) for name, (after, log) in found.items()
        }
    except (ValueError, TypeError, AttributeError, RecursionError):
        raise Misuse(
            f"{path} is damaged, which says what sessions were reset or forgotten here; empty this "
            "node's directory, and it learns everything from the others"
        ) from None
    finally:
        file.close()
