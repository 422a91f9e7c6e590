"""Private files: made for this user alone, and never through a link that someone planted."""

import os
from contextlib import suppress
from typing import BinaryIO

from rt.log.disk import FILE_MODE


def create_private(path: str) -> BinaryIO:
    """Create a file and return it for writing; what has its name is removed, not followed.

    Raises:
        FileExistsError: Another process created one in the meantime.
    """
    with suppress(FileNotFoundError):
        os.unlink(path)  # a link itself, not its target
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    return open(os.open(path, flags, FILE_MODE), "wb")
