"""Parent: ends a process together with the one that started it, even if that is killed."""

import os
import signal
import threading
from typing import Final

PARENT_VARIABLE: Final = "_RT_PARENT"  # if set, standard input closes when the parent ends


def end_with_parent() -> None:
    """Stop cleanly when the parent ends, by SIGKILL say, if it asked for that."""
    if os.environ.pop(PARENT_VARIABLE, ""):
        threading.Thread(target=_watch, name="parent", daemon=True).start()


def _watch() -> None:
    os.read(0, 1)
    os.kill(os.getpid(), signal.SIGTERM)
