"""AuditLog: one line of JSON for each change that a peer requested, whether done or refused."""

import json
import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from rt.errors import spoken
from rt.log.files.disk import FILE_MODE, OPEN_FLAGS, OsFile
from rt.masking import without_secrets

_log: Final = logging.getLogger("rt.node")
FILE_BYTES_MAX: Final = 64 << 20  # 200,000 decisions; then the file becomes the older one
_TEXT_LENGTH_MAX: Final = 200  # per value: enough to recognise, too little to abuse
_VALUES_MAX: Final = 16
_ASKED_LENGTH_MAX: Final = 2000  # of all values; encoded twice, 4 KB at most
_LINE_EVERY_S: Final = 60.0
# Lines that a client may cause without a pause; after that, it gets one a minute. With lines of
# 4 KB, the two files hold what one client does in three weeks.
_CLIENT_LINES: Final = 60
BUDGETS_MAX: Final = 1024  # further kinds share one budget


@dataclass(slots=True)
class _Budget:
    """How many lines may be written now, and how many were left out for lack of budget."""

    most: int
    lines: float
    at_s: float
    left_out: int = 0

    def is_whole(self, now_s: float) -> bool:
        """Refill the budget; return whether it is full, as if nothing had been written."""
        self.lines = min(self.most, self.lines + (now_s - self.at_s) / _LINE_EVERY_S)
        self.at_s = now_s
        return self.lines == self.most


class AuditLog:
    """AuditLog: records who asked for which change, and whether it was made or refused.

    No other program writes the file; when it is full, it is kept as `.1` and a new one begins. A
    peer that repeats a request fifty times a second could crowd out others' lines. So each kind of
    refusal (holder, request, reason) gets one line a minute, and so does a client that has used up
    its initial budget. Each line says how many were left out before it.

    Threads: any thread may call `record`; `_lock` guards the file and `_budgets`.
    """

    def __init__(
        self,
        path: str,
        clock: Callable[[], float] = time.monotonic,
        *,
        file_bytes_max: int = FILE_BYTES_MAX,
        budgets_max: int = BUDGETS_MAX,
    ) -> None:
        """Use the file at `path`, which need not exist yet; it is replaced at `file_bytes_max`."""
        self.path, self.budgets_max = path, budgets_max
        self._clock, self._file_bytes_max = clock, file_bytes_max
        self._lock = threading.Lock()
        self._budgets: dict[tuple[str, ...], _Budget] = {}  # by client, and by kind of refusal

    def record(
        self,
        request: dict[str, Any],
        holder: str,
        where: str,
        outcome: str,
        *,
        is_client: bool = False,
        **facts: object,
    ) -> None:
        """Append a line and sync it; a disk failure is logged and does not stop the decision.

        Args:
            request: the request.
            holder: role and name in the certificate.
            where: the address that the request came from.
            outcome: `done`, or the code of the refusal.
            is_client: whether the holder is neither an operator nor a node.
            facts: further fields, such as the instruction.
        """
        asked = {_short(name): _short(value) for name, value in list(request.items())[:_VALUES_MAX]}
        if len(text := json.dumps(asked)) > _ASKED_LENGTH_MAX:
            asked = {"do": asked.get("do"), "cut": text[:_ASKED_LENGTH_MAX]}
        line = {
            "time": datetime.now(UTC).isoformat(), "asked": asked, "by": holder, "from": where,
            "outcome": outcome, **facts,
        }  # fmt: skip
        with self._lock:
            is_done, now_s, budgets = outcome == "done", self._clock(), []
            if not is_done:
                budgets.append(self._budget(now_s, 1, holder, str(asked.get("do")), outcome))
            if is_client:
                budgets.append(self._budget(now_s, _CLIENT_LINES, holder))
            left_out = _spend(budgets)
            if left_out is None:
                return
            if left_out or not is_done:
                line["left_out"] = left_out
            try:
                self._append(json.dumps(line).encode() + b"\n")
            except OSError as error:
                _log.error("%s: a decision was not recorded: %s", self.path, spoken(error))

    def _budget(self, now_s: float, most: int, *kind: str) -> _Budget:
        """Return the budget for a kind of lines: up to `most`, refilled by one each minute."""
        if kind not in self._budgets and len(self._budgets) >= self.budgets_max:
            kind = kind if self._forget(now_s) else ()
        budget = self._budgets.setdefault(kind, _Budget(most, most, now_s))
        budget.is_whole(now_s)
        return budget

    def _forget(self, now_s: float) -> bool:
        """Forget full budgets that are not in use; return whether there were any."""
        idle = ((kind, each) for kind, each in self._budgets.items() if kind and each.at_s < now_s)
        whole = [kind for kind, each in idle if each.is_whole(now_s)]
        shared = self._budgets.setdefault((), _Budget(1, 1, now_s))
        for kind in whole:
            shared.left_out += self._budgets.pop(kind).left_out
        return bool(whole)

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
        if size >= self._file_bytes_max:
            os.replace(self.path, f"{self.path}.1")


def _spend(budgets: Sequence[_Budget]) -> int | None:
    """Take a line from each budget, and return how many lines were left out before.

    If a budget is empty, nothing is taken, and the result is None.
    """
    budgets = list({id(each): each for each in budgets}.values())  # both may be the shared one
    for budget in budgets:
        if budget.lines < 1:
            budget.left_out += 1
            return None
    left_out = sum(budget.left_out for budget in budgets)
    for budget in budgets:
        budget.lines, budget.left_out = budget.lines - 1, 0
    return left_out


def _short(value: object) -> object:
    """Return a value as the log stores it: without secrets, and shortened."""
    if isinstance(value, bool | int | float) or value is None:
        return value if len(repr(value)) <= _TEXT_LENGTH_MAX else repr(value)[:_TEXT_LENGTH_MAX]
    text = without_secrets(value if isinstance(value, str) else json.dumps(value))
    return text if len(text) <= _TEXT_LENGTH_MAX else f"{text[:_TEXT_LENGTH_MAX]}..."
