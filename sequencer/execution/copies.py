"""Copies: which of this node's session copies are known to hold the merged bytes."""

import logging
from collections.abc import Iterable
from typing import Final

from rt.errors import CorruptLog, spoken
from sequencer.execution.executor import Executor
from sequencer.ledger.session_facts import Tail
from sequencer.planning.holdings import Holdings

_log: Final = logging.getLogger("rt.node")


class Copies:
    """Copies: checks that the copies of sessions have the bytes that were merged.

    A publisher that lost its last bytes, or was restored from a backup, may fill a new copy of its
    session with bytes other than those merged. That copy must not be used to plan merges, nor be
    confirmed to the publisher. So a copy is checked when it is opened or replaced, after a merge
    that did not read it, and after this node adopted another node's ledger.
    """

    def __init__(self, executor: Executor, holdings: Holdings) -> None:
        self._executor = executor
        self._holdings = holdings
        self.checked: set[str] = set()  # sessions whose copies hold what was merged
        # The sessions whose copies must be checked, each with the last frame merged while its copy
        # was in doubt, or None. The ledger forgets that frame after a slice of repeats.
        self.unchecked: dict[str, Tail | None] = {}
        self.passed: list[str] = []  # passed the check since `Execution.take_sessions`
        self.dropped = dict.fromkeys(executor.ledger.begun)  # see `take_dropped`
        self.owned = dict.fromkeys(executor.ledger.opened)  # see `take_owned`

    def record_growth(self, session: str) -> None:
        """Record that a session's copy was opened, or has grown; it is checked unless it was."""
        if session not in self.checked:
            self.unchecked.setdefault(session, None)

    def lose(self, session: str) -> None:
        """Record that a session's copy was set aside; the new copy must be checked."""
        self.checked.discard(session)

    def drop(self, session: str) -> None:
        """Record that an instruction dropped all nodes' copies of a session.

        Forget what was known about this node's copy. `take_dropped` returns the session's name to
        the node, which then checks whether its present copy is the dropped one or was begun after
        the instruction.
        """
        self.dropped[session] = None
        self._holdings.drop(session)
        self._executor.begin_again(session)
        self.lose(session)
        if session in self.unchecked:
            self.unchecked[session] = None  # the last frame was that of the dropped log

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

    def doubt(self, sessions: Iterable[str]) -> None:
        """Have the copies of these sessions checked, because a merge did not read them."""
        for session in sessions:
            self.checked.discard(session)
            self._executor.forget(session)
            tail = self._executor.ledger.tails.get(session)
            self.unchecked[session] = tail or self.unchecked.get(session)

    def doubt_all(self) -> None:
        """Have every copy checked again, because the ledger now comes from another node."""
        self.checked.clear()
        for session in self._holdings.own:
            self._executor.forget(session)
        self.unchecked = dict.fromkeys(self._holdings.own)

    def check(self) -> None:
        """Check each unchecked copy that reaches up to its session's merged end.

        Raises:
            SessionDiverged: instead of the last merged frame, a copy has another one.
            CorruptLog: a copy is damaged.
        """
        for session in list(self.unchecked):
            merged_to = self._executor.ledger.merged_to(session)
            is_here = self._executor.copy_end(session) >= merged_to
            if is_here and self._is_agreed(session) and self._was_read(session):
                del self.unchecked[session]
                self.checked.add(session)
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
        try:
            self._executor.check_copy(session, self.unchecked[session])
        except OSError as error:
            state = self._executor.logs.state(session)
            if not state.is_unreadable:
                _log.warning("session %s cannot be checked, and waits: %s", session, spoken(error))
            state.is_unreadable = True
            return False
        except CorruptLog:
            del self.unchecked[session]
            raise
        if (known := self._executor.logs.states.get(session)) is not None:
            known.is_unreadable = False
        return True
