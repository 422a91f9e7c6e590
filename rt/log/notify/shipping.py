"""ShippingNote: why a session is not being shipped, in a small file in its directory."""

import os
import time
from contextlib import closing, suppress
from typing import Final

from rt.errors import NAME_TAKEN, Refused
from rt.log.files.disk import OsDisk, replace_small
from rt.text import printable

FILE_NAME: Final = "shipping"
DRAFT_NAME: Final = "shipping.new"
FRESH_S: Final = 10.0  # a running pusher renews its note every second
_BYTES_MAX: Final = 1000
_CODE: Final = "\0"  # separates the reason from the code


class ShippingNote:
    """A file by which a pusher tells a session's publisher why the session is not being shipped.

    The file is in the session's directory, and is not synced: a restarted pusher writes a new one.
    """

    def __init__(self, directory: str) -> None:
        self._path = os.path.join(directory, FILE_NAME)
        self._draft = os.path.join(directory, DRAFT_NAME)

    def read(self) -> str:
        """Return why the session is not shipped; "" if no running pusher has recorded a reason."""
        return self._read()[0]

    def refusal(self) -> Refused | None:
        """Return the lasting refusal that a running pusher has recorded; None if there is none."""
        reason, code = self._read()
        return Refused(code, reason) if code == NAME_TAKEN else None

    def _read(self) -> tuple[str, str]:
        """Return the reason and the refusal's code; "" for each that does not exist.

        A node may have written part of the reason, so control characters are escaped.
        """
        try:
            with closing(OsDisk().open_read(self._path)) as file:
                age_s = time.time() - os.fstat(file.fileno()).st_mtime
                text = file.pread(_BYTES_MAX, 0).decode(errors="replace")
        except FileNotFoundError:
            return "", ""
        if age_s >= FRESH_S:
            return "", ""
        reason, _, code = text.partition(_CODE)
        return printable(reason), code

    def write(self, reason: str, code: str = "") -> None:
        """Replace the note, or remove it if `reason` is "".

        `code` is the refusal's code if waiting cannot end the refusal; otherwise "".
        """
        if not reason:
            with suppress(FileNotFoundError):
                os.unlink(self._path)
            return
        end = (_CODE + code).encode() if code else b""
        data = reason.encode()[: _BYTES_MAX - len(end)] + end
        replace_small(self._path, self._draft, data)
