"""Lock: a kernel lock on a directory, released however its holder ends."""

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Final

from rt.errors import Misuse

LOCK_NAME: Final = "lock"
NODE_LOCK_NAME: Final = ".lock"  # beside a node's logs, in its stream's directory
_POLL_S: Final = 0.01
_FLAGS: Final = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW


def take_lock(directory: str, refusal: str, name: str = LOCK_NAME, *, wait_s: float = 0.0) -> int:
    """Take the lock; return a descriptor that holds it until closed.

    Args:
        directory: an existing directory.
        refusal: error message if the lock is held.
        name: the name of the lock file in the directory.
        wait_s: how long to wait, if holders need the lock only for a moment.

    Raises:
        Misuse: the lock is held, by this process or another.
    """
    fd = os.open(os.path.join(directory, name), _FLAGS, 0o600)
    try:
        end_s = time.monotonic() + wait_s
        while not locked(fd):
            if time.monotonic() >= end_s:
                raise Misuse(refusal)
            time.sleep(_POLL_S)
    except (Misuse, OSError):
        os.close(fd)
        raise
    return fd


def locked(fd: int) -> bool:
    """Lock an open file through this descriptor; return False if the lock is held elsewhere."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextmanager
def writers_lock(directory: str, refusal: str) -> Iterator[None]:
    """Hold the locks of the programs that could write to a merged log: a puller and a node.

    Args:
        directory: the directory of the log.
        refusal: the error message if a program holds its lock.

    Raises:
        Misuse: a program uses the log.
    """
    parent = os.path.dirname(os.path.abspath(directory))
    with ExitStack() as held:
        if os.path.exists(os.path.join(parent, NODE_LOCK_NAME)):
            held.callback(os.close, take_lock(parent, refusal, NODE_LOCK_NAME))
        held.callback(os.close, take_lock(directory, refusal))
        yield
