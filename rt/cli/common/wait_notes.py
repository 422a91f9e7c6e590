"""WaitNotes: says which nodes a command waits for, if that takes long."""

import threading
from typing import Final, Self

from rt.cli.common.console import note
from rt.net.awaited import awaited

_LONG_S: Final = 1.0  # with its own start, a command has said so within two seconds
_LOOK_S: Final = 0.25


class WaitNotes:
    """While open, notes on stderr whose answer a question of this process waits for.

    Programs that run for long, which ask nodes by the way, say themselves what they wait for.

    Threads: its own looks and prints; `_over` ends it.
    """

    def __init__(self) -> None:
        """Start nothing yet."""
        self._over = threading.Event()
        self._looking = threading.Thread(target=self._look, name="wait notes", daemon=True)

    def __enter__(self) -> Self:
        self._looking.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._over.set()
        self._looking.join()

    def _look(self) -> None:
        said: list[str] = []
        while not self._over.wait(_LOOK_S):
            names = awaited(_LONG_S)
            if names and names != said:
                note(f"waiting for an answer from {', '.join(names)}")
            said = names or said
