"""AuditLog: one line of JSON for each change that a peer requested of a node, done or refused."""

import json
import logging
import os
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final

from rt.errors import spoken
from rt.log.disk import FILE_MODE, OPEN_FLAGS, OsFile

_log: Final = logging.getLogger("rt.node")
FILE_BYTES_MAX: Final = 64 << 20  # 200,000 decisions; then the file becomes the older one
_TEXT_LENGTH_MAX: Final = 200  # of a value of a request: enough to recognise, little to abuse
_VALUES_MAX: Final = 16
_REFUSALS_EVERY_S: Final = 60.0
_REFUSALS_MAX: Final = 1024  # kinds that are counted; refusals of further kinds share one count


class AuditLog:
    """Appends to a file that nothing else writes; the last file is kept beside it as `.1`.

    A peer that is refused may ask again fifty times a second, so a refusal of one kind (holder,
    request, reason) is one line a minute, with the number of those before it that were left out.

    Threads: any thread may call `record`; `_lock` guards the file and `_refusals`.
    """

    def __init__(self, path: str, clock: Callable[[], float] = time.monotonic) -> None:
        """Use the file at `path`, which need not be there yet."""
        self.path = path
        self._clock = clock
        self._lock = threading.Lock()
        self._refusals: dict[tuple[str, ...], tuple[float, int]] = {}  # since when, left out

    def record(
        self,
        request: dict[str, Any],
        holder: str,
        where: str,
        outcome: str,
        **facts: object,
    ) -> None:
        """Append a line and sync it; a disk failure is reported, and does not stop the decision.

        Args:
            request: what was asked.
            holder: role and name in the certificate.
            where: the address it came from.
            outcome: `done`, or the code of the refusal.
            facts: what else is known, such as the instruction.
        """
        asked = {name: _short(value) for name, value in list(request.items())[:_VALUES_MAX]}
        line = {
            "time": datetime.now(UTC).isoformat(), "asked": asked, "by": holder, "from": where,
            "outcome": outcome, **facts,
        }  # fmt: skip
        with self._lock:
            if outcome != "done":
                left_out = self._left_out((holder, str(asked.get("do")), outcome))
                if left_out is None:
                    return
                line["left_out"] = left_out
            try:
                self._append(json.dumps(line).encode() + b"\n")
            except OSError as error:
                _log.error("%s: a decision was not recorded: %s", self.path, spoken(error))

    def _left_out(self, kind: tuple[str, ...]) -> int | None:
        """Return how many refusals of a kind were left out before this one; None if it is too."""
        now_s = self._clock()
        if kind not in self._refusals and len(self._refusals) >= _REFUSALS_MAX:
            kind = ()
        since_s, count = self._refusals.get(kind, (-_REFUSALS_EVERY_S, 0))
        if now_s - since_s < _REFUSALS_EVERY_S:
            self._refusals[kind] = since_s, count + 1
            return None
        self._refusals[kind] = now_s, 0
        return count

    def _append(self, data: bytes) -> None:
        flags = os.O_RDWR | os.O_CREAT | OPEN_FLAGS
        file = OsFile(os.open(self.path, flags, FILE_MODE), self.path)
        try:
            size = file.size()
            if size and file.pread(1, size - 1) != b"\n":  # the last line was cut short
                data = b"\n" + data
            size += file.append([data])
            file.sync()
        finally:
            file.close()
        if size >= FILE_BYTES_MAX:
            os.replace(self.path, f"{self.path}.1")


def _short(value: object) -> object:
    """Return a value as the log holds it: whole if it is short, and its beginning otherwise."""
    if isinstance(value, bool | int | float) or value is None:
        return value if len(repr(value)) <= _TEXT_LENGTH_MAX else repr(value)[:_TEXT_LENGTH_MAX]
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= _TEXT_LENGTH_MAX else f"{text[:_TEXT_LENGTH_MAX]}..."
