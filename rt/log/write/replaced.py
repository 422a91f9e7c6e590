"""Replaced: replaces a damaged rolled file with a whole copy."""

import os
from contextlib import suppress

from rt.errors import Misuse
from rt.format.index import SUFFIX
from rt.log.files.disk import put_in_place
from rt.log.write.appender import Appender
from rt.position import Position


def replace_rolled(log: Appender, start: Position, fresh: str) -> str | None:
    """Replace a rolled file; any thread may call this.

    Readers that have the damaged file open keep it, and find the new one by its name.

    Args:
        log: the open log.
        start: where the file starts.
        fresh: path of the copy, synced and checked, on the same file system, with its index beside
            it.

    Returns:
        The name under which the damaged file is kept, or ""; None if nothing was replaced because
        the file has been archived.

    Raises:
        OSError: the file could not be replaced, or the log was closed.
    """
    path = os.path.join(log.directory, start.file_name)
    with log.held():  # no file is emptied before its line is recorded
        if start in log.manifest.archived:
            return None
        if start not in log.manifest.rolled:
            raise Misuse(f"{path} is not a rolled file")
        kept = put_in_place(log.disk, fresh, path)
        with suppress(FileNotFoundError):  # there may be no index
            log.disk.replace(fresh + SUFFIX, path + SUFFIX)
        return kept
