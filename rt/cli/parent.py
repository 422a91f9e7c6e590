"""Parent: lets a process end with the one that started it, be that killed."""

import os
import signal
import threading
from typing import Final

PARENT_VARIABLE: Final = "_RT_PARENT"  # set: standard input ends with whoever started us


def end_with_parent() -> None:
    """Stop in order when who started us has ended, by SIGKILL say, if it asked for that."""
    if os.environ.pop(PARENT_VARIABLE, ""):
        threading.Thread(target=_watch, name="parent", daemon=True).start()


def _watch() -> None:
    os.read(0, 1)
    os.kill(os.getpid(), signal.SIGTERM)
