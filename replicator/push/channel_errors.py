"""ChannelErrors: why sessions are not being shipped on a connection, and when each is retried."""

import logging
import time
from typing import Final

from replicator.wire.backoff import Complaint
from rt.errors import Refused

_log: Final = logging.getLogger(__name__)


class ChannelErrors:
    """ChannelErrors: the failures of one connection's channels, by session.

    Threads: the loop calls all methods; any thread may call `get` and `code`.

    Attributes:
        is_clean: whether no failure is recorded, so that none has to be cleared.
    """

    def __init__(self, node: str) -> None:
        """Start without a failure; `node` is the other side's name in log lines."""
        self._node = node
        self.is_clean = True
        self._reasons: dict[str, str] = {}
        self._codes: dict[str, str] = {}  # codes of refusals
        self._complaints: dict[str, Complaint] = {}
        self._retry_at_s: dict[str, float] = {}

    def get(self, session: str) -> str:
        """Return why a session is not shipped; "" if it is."""
        return self._reasons.get(session, "")

    def code(self, session: str) -> str:
        """Return the code of the refusal that keeps a session from being shipped, or ""."""
        return self._codes.get(session, "")

    def refused(self, session: str, why: Refused, retry_s: float) -> None:
        """Record why a session was refused, and log the refusal unless it repeats the last one.

        `retry_s` is after how many seconds the session is due again.
        """
        self.is_clean = False
        self._reasons[session], self._codes[session] = str(why), why.code
        self._retry_at_s[session] = time.monotonic() + retry_s
        found = self._complaints.get(session)
        if found is None:
            found = Complaint(_log, f"session {session} is not pushed to {self._node}")
            self._complaints[session] = found
        found.say(str(why), why.code)

    def record(self, session: str, reason: str) -> None:
        """Record a problem that does not end the session's channel; "" clears it."""
        self._codes.pop(session, None)
        if reason:
            self.is_clean = False
            self._reasons[session] = reason
        else:
            self._reasons.pop(session, None)
            self.is_clean = not (self._reasons or self._codes or self._complaints)

    def is_due(self, session: str) -> bool:
        """Whether the session may be offered now."""
        return time.monotonic() >= self._retry_at_s.get(session, 0.0)

    def progressed(self, session: str) -> None:
        """Record that a session makes progress, so that its next failure is logged in any case."""
        self._complaints.pop(session, None)
        self.is_clean = not (self._reasons or self._codes or self._complaints)

    def forget(self, session: str) -> None:
        """Forget a session that is no longer shipped."""
        self.record(session, "")
        self._complaints.pop(session, None)
        self._retry_at_s.pop(session, None)

    def reconnected(self) -> None:
        """Forget why sessions failed, because a new connection tries every session again."""
        self._reasons, self._codes, self._retry_at_s = {}, {}, {}
