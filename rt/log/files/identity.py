"""Identity: generates the random identity of a new log, and reads that of an existing one."""

import os
import secrets
from contextlib import closing

from rt.errors import ManifestError
from rt.format.manifest import FILE_NAME, LogIdentity, decode_entry
from rt.limits import MANIFEST_LINE_BYTES_MAX
from rt.log.files.disk import File, OsDisk


def new_identity(
    kind: str, stream: str, name: str, *, created_ns: int, group: str = ""
) -> LogIdentity:
    """Return the identity of a log that is being created, with a random id."""
    return LogIdentity(kind, stream, name, secrets.token_hex(16), created_ns, group)


def read_log_identity(directory: str) -> LogIdentity | None:
    """Return the identity of the log in a directory; None if there is none yet.

    Raises:
        ManifestError: the manifest's first line is damaged.
        OSError: the manifest cannot be read.
    """
    try:
        file = OsDisk().open_read(os.path.join(directory, FILE_NAME))
    except FileNotFoundError:
        return None
    with closing(file):
        return identity_in(file)


def identity_in(manifest: File) -> LogIdentity | None:
    """Return the identity in a manifest; None while its first line is incomplete.

    Raises:
        ManifestError: the line is damaged, or names no log.
    """
    line, end, _ = manifest.pread(MANIFEST_LINE_BYTES_MAX, 0).partition(b"\n")
    entry = decode_entry(line) if end else None
    if entry is not None and not isinstance(entry, LogIdentity):
        raise ManifestError("the first line names no log")
    return entry
