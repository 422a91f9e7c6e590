"""HeadersNote: records in a small file whether all nodes of a stream can read headers."""

import os
from typing import Final

from rt.log.files.disk import read_small, replace_small
from rt.text import printable

CANNOT_READ: Final = "which cannot read headers; update rt on every node first"
UNKNOWN: Final = (
    "no node has said yet that all of them can read headers; publish with headers once rt push, or "
    "this program, is connected to an updated node"
)
FILE_NAME: Final = ".headers"  # not a valid session name, so it never clashes with one
_DRAFT: Final = ".headers.new"
_BYTES_MAX: Final = 4096
_YES: Final = "yes"
_NO: Final = "no: "


class HeadersNote:
    """A file by which a stream's pushers tell its publishers whether headers may be written.

    It is in the stream's directory, and is not synced: a restarted pusher asks again. Once all
    nodes can read headers, the note stays true, since nodes never lose that ability.
    """

    def __init__(self, directory: str) -> None:
        """Prepare to use the file in the stream's directory; nothing is opened yet."""
        self._directory = directory
        self._path = os.path.join(directory, FILE_NAME)

    def read(self) -> str | None:
        """Return why publishers may not write headers; "" if they may, None if unknown."""
        try:
            text = read_small(self._path, _BYTES_MAX).decode(errors="replace")
        except FileNotFoundError:
            return None
        if text == _YES:
            return ""
        return printable(text.removeprefix(_NO)) if text.startswith(_NO) else None

    def write(self, why_not: str) -> bool:
        """Replace the note; False if the stream has no directory yet.

        `OSError` if writing failed.
        """
        data = (_NO + why_not if why_not else _YES).encode()[:_BYTES_MAX]
        try:
            replace_small(self._path, os.path.join(self._directory, _DRAFT), data)
        except FileNotFoundError:
            return False
        return True

    def remove(self) -> None:
        """Delete the note; `OSError` if that failed."""
        os.unlink(self._path)
