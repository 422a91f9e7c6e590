"""Descriptors: as many as the system lets a program have."""

import resource
from contextlib import suppress


def allow_all() -> None:
    """Raise the soft limit of this process to its hard one, as who needs many is meant to.

    The soft one, 1,024 most often, is that low for programs that call select(2), which none of
    ours does. A node holds 5 a session, and who pushes 2 a session and node while there is much.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(OSError, ValueError):  # a hard limit that even the system's is below
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
