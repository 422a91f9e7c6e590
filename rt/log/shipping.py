"""Shipping: why a session's messages do not arrive, in a small file beside its log."""

import os
import time
from contextlib import closing, suppress
from typing import Final

from rt.log.disk import OsDisk, open_small
from rt.text import printable

FILE_NAME: Final = "shipping"
DRAFT_NAME: Final = "shipping.new"
FRESH_S: Final = 10.0  # a running pusher renews its note every second
_BYTES_MAX: Final = 1000


class ShippingNote:
    """The file in a session's directory; the shipping process writes it, the publisher reads it.

    It is not synced: a pusher that restarts writes a new one.
    """

    def __init__(self, directory: str) -> None:
        self._path = os.path.join(directory, FILE_NAME)
        self._draft = os.path.join(directory, DRAFT_NAME)

    def read(self) -> str:
        """Return why the session is not being shipped; "" if no running pusher gives a reason.

        The text may come from a node, so control characters are escaped.
        """
        try:
            with closing(OsDisk().open_read(self._path)) as file:
                age_s = time.time() - os.fstat(file.fileno()).st_mtime
                text = file.pread(_BYTES_MAX, 0).decode(errors="replace")
        except FileNotFoundError:
            return ""
        return printable(text) if age_s < FRESH_S else ""

    def write(self, reason: str) -> None:
        """Replace the note, or remove it if there is no reason."""
        if not reason:
            with suppress(FileNotFoundError):
                os.unlink(self._path)
            return
        fd = open_small(self._draft)
        try:
            os.ftruncate(fd, 0)
            os.write(fd, reason.encode()[:_BYTES_MAX])
        finally:
            os.close(fd)
        os.replace(self._draft, self._path)
