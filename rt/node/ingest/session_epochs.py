"""Session epochs: a file that records after which instruction each copy was begun.

After a crash, an instruction that dropped a copy may be executed again, although a new copy has
replaced the dropped one. The file shows that the new copy was begun after the instruction, so the
new copy is kept.
"""

import json
import os
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from rt.errors import Misuse
from rt.log.files.disk import Disk, write_whole

_NAME: Final = ".begun"  # no session has such a name
_BYTES_MAX: Final = 64 << 20


class SessionEpoch(NamedTuple):
    """SessionEpoch: the instruction that last dropped a session's copies.

    Attributes:
        after: the index of the instruction; 0 if no instruction did.
        retired: ids of logs that may not be pushed again, separated by spaces; "" if none.
    """

    after: int = 0
    retired: str = ""


def save_epochs(disk: Disk, root: str, known: Mapping[str, SessionEpoch]) -> None:
    """Replace the file of epochs; `OSError` if the disk fails, or is full.

    Args:
        disk: the disk with the copies.
        root: the directory of the copies.
        known: the epochs of all sessions, by name.
    """
    disk.make_directory(root)
    write_whole(disk, root, _NAME, [json.dumps(known).encode()])


def read_epochs(disk: Disk, root: str) -> dict[str, SessionEpoch]:
    """Return the epochs in the file, by session; there is no file before the first session ends.

    Raises:
        Misuse: the file is damaged. Without it, an ended log could be merged again, and newer
            copies would be removed.
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
