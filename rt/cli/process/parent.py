"""Parent: ends a child process when its parent process ends, even if the parent was killed."""

import os
import signal
import threading
from typing import Final

# if set, the end of standard input means that the parent has ended
PARENT_VARIABLE: Final = "_RT_PARENT"


def end_with_parent() -> None:
    """Have this process stop cleanly when its parent ends, even if SIGKILL ends the parent.

    Does nothing unless the parent has set `PARENT_VARIABLE`. Standard input must then be a pipe
    from the parent.
    """
    if os.environ.pop(PARENT_VARIABLE, ""):
        threading.Thread(target=_watch, name="parent", daemon=True).start()


def _watch() -> None:
    os.read(0, 1)
    os.kill(os.getpid(), signal.SIGTERM)
