"""Identity: generates the random identity of a new log, and reads that of an existing one."""

import os
import secrets

from rt.format.manifest import FILE_NAME, LogIdentity, decode_entry
from rt.limits import MANIFEST_LINE_BYTES_MAX


def new_identity(
    kind: str, stream: str, name: str, *, created_ns: int, group: str = ""
) -> LogIdentity:
    """Return the identity of a log that is being created, with a random id."""
    return LogIdentity(kind, stream, name, secrets.token_hex(16), created_ns, group)


def read_identity(directory: str) -> LogIdentity | None:
    """Return the identity of the log in a directory; None if there is none yet.

    Raises:
        ManifestError: the manifest's first line is damaged.
        OSError: it cannot be read.
    """
    try:
        with open(os.path.join(directory, FILE_NAME), "rb") as file:
            line, end, _ = file.read(MANIFEST_LINE_BYTES_MAX).partition(b"\n")
    except FileNotFoundError:
        return None
    entry = decode_entry(line) if end else None
    return entry if isinstance(entry, LogIdentity) else None
