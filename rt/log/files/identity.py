"""Identity: generates the random identity of a new log."""

import secrets

from rt.format.manifest import LogIdentity


def new_identity(
    kind: str, stream: str, name: str, *, created_ns: int, group: str = ""
) -> LogIdentity:
    """Return the identity of a log that is being created, with a random id."""
    return LogIdentity(kind, stream, name, secrets.token_hex(16), created_ns, group)
