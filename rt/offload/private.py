"""Private files: creates files for this user only, never through a link planted by another user."""

import os
from contextlib import suppress
from typing import BinaryIO

from rt.log.files.disk import FILE_MODE, sync_directory


def create_private(path: str) -> BinaryIO:
    """Create a file and open it for writing; an existing file or link is removed, not followed.

    Raises:
        FileExistsError: Another process created one in the meantime.
    """
    with suppress(FileNotFoundError):
        os.unlink(path)  # removes a link itself, not its target
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    return open(os.open(path, flags, FILE_MODE), "wb")


def replace_private(path: str, content: bytes) -> None:
    """Atomically create or replace a private file with this content, and sync it."""
    with create_private(path + ".tmp") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(path + ".tmp", path)
    sync_directory(os.path.dirname(path) or ".")
