"""Descriptors: raises the limit of open files."""

import resource
from contextlib import suppress


def raise_descriptor_limit() -> None:
    """Raise this process's soft limit of open files to its hard limit.

    The soft limit is usually 1,024, for the sake of programs that call select(2); `rt` never does.
    A node's copies of sessions use a quarter of the limit; a busy pusher holds 2 descriptors per
    session and node.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(OSError, ValueError):  # the hard limit exceeds the system-wide one
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
