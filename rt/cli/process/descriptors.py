"""Descriptors: as many open files as the system lets this process have."""

import resource
from contextlib import suppress


def raise_descriptor_limit() -> None:
    """Raise this process's soft limit of open files to its hard limit.

    The soft limit, usually 1,024, is that low for the sake of programs that call select(2), which
    none of ours does. A node's copies of sessions share a quarter of the limit; a busy pusher
    holds 2 descriptors per session and node.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(OSError, ValueError):  # the hard limit exceeds the system's own
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
