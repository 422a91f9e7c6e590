"""Copies: checks that this node's copies of sessions hold the bytes that were merged."""

import logging
from collections.abc import Iterable
from typing import Final

from rt.errors import CorruptLog, spoken
from sequencer.execution.executor import Executor
from sequencer.planning.holdings import Holdings

_log: Final = logging.getLogger("rt.node")


class Copies:
    """Copies: checks that the copies of sessions have the bytes that were merged.

    A publisher that lost its last bytes, or was restored from a backup, may fill a new copy of its
    session with bytes other than those merged. That copy must not be used to plan merges, nor be
    confirmed to the publisher. So a copy is checked when it is opened or replaced, after a merge
    that did not read it, and after this node adopted another node's ledger; see `SessionRecords`.
    """

    def __init__(self, executor: Executor, holdings: Holdings) -> None:
        self._executor, self._records = executor, executor.logs.records
        self._holdings = holdings
        self.passed: list[str] = []  # passed the check since `Execution.take_sessions`
        self.dropped = dict.fromkeys(executor.ledger.begun)  # see `take_dropped`
        self.owned = dict.fromkeys(executor.ledger.opened)  # see `take_owned`

    def drop(self, session: str) -> None:
        """Record that an instruction dropped all nodes' copies of a session.

        `take_dropped` returns the session's name to the node, which then checks whether its present
        copy is the dropped one or was begun after the instruction.
        """
        self.dropped[session] = None
        self._holdings.drop(session)
        self._records.drop(session)

    def take_dropped(self) -> list[str]:
        """Return the sessions that were dropped since the last call."""
        if not self.dropped:
            return []
        sessions, self.dropped = list(self.dropped), {}
        return sessions

    def own(self, sessions: Iterable[str]) -> None:
        """Record that the owner or log of these sessions may have changed."""
        self.owned.update(dict.fromkeys(sessions))

    def take_owned(self) -> list[str]:
        """Return the sessions whose owner or log may have changed since the last call."""
        sessions, self.owned = list(self.owned), {}
        return sessions

    def check(self) -> None:
        """Check each unchecked copy that reaches up to its session's merged end.

        Raises:
            SessionDiverged: instead of the last merged frame, a copy has another one.
            CorruptLog: a copy is damaged.
        """
        for session in list(self._records.unchecked):
            merged_to = self._executor.ledger.merged_to(session)
            is_here = self._executor.copy_end(session) >= merged_to
            if is_here and self._is_agreed(session) and self._was_read(session):
                self._records.check_passed(session)
                self.passed.append(session)

    def _is_agreed(self, session: str) -> bool:
        """Whether a copy may be of the log that the ledger names for its session.

        False if the copy's manifest names another log, such as the session's next one.
        """
        known = self._executor.ledger.opened.get(session)
        if known is None or not known.log:
            return True
        try:
            identity = self._executor.log_of(session)
        except (OSError, CorruptLog):
            return True  # the check will read the copy, and report the error
        return identity is None or identity.id == known.log

    def _was_read(self, session: str) -> bool:
        """Check one copy; return False if it cannot be read now, so the check must be repeated."""
        record = self._records[session]
        try:
            self._executor.check_copy(session, record.last_frame)
        except OSError as error:
            if not record.is_unreadable:
                _log.warning("session %s cannot be checked, and waits: %s", session, spoken(error))
            record.is_unreadable = True
            return False
        except CorruptLog:
            self._records.check_failed(session)
            raise
        return True
