"""HeadersNews: what the nodes say of headers, noted for the publishers of a stream."""

import threading
from contextlib import suppress

from rt.log.notify.headers_note import HeadersNote


class HeadersNews:
    """One yes is enough: the nodes agree on it together, once every one can read headers.

    Threads: any; `_lock` guards all fields.
    """

    def __init__(self, directory: str) -> None:
        """Begin without an answer.

        Args:
            directory: of the stream; it may be made later.
        """
        self._lock = threading.Lock()
        self._file = HeadersNote(directory)
        self._said: dict[str, str] = {}  # why not, by node; "" is a yes
        self._noted: str | None = None

    def begin(self) -> None:
        """Remove a no of an earlier run, which may be outdated."""
        with self._lock, suppress(OSError):
            if self._file.read():
                self._file.remove()

    def take(self, node: str, why_not: str) -> None:
        """Take what a node says; a note that cannot be written now is written by `note`."""
        with self._lock:
            self._said[node] = why_not
        with suppress(OSError):
            self.note()

    def note(self) -> None:
        """Write the answer down if it has changed; `OSError` if that failed."""
        with self._lock:
            if not self._said:
                return
            answers = sorted(set(self._said.values()))
            why_not = "; ".join(answers) if all(answers) else ""
            if why_not != self._noted and self._file.write(why_not):
                self._noted = why_not
