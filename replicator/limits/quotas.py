"""Quotas: how much of one stream each publisher may use, in addition to the node's limits."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from replicator.limits.budgets import Budget, DaySessions
from rt.amounts import size_text
from rt.errors import Misuse, Refused
from rt.limits import MIB
from rt.names import PeerName


@dataclass(frozen=True, slots=True)
class Quota:
    """Quota: what one publisher may use of a stream, at each node.

    Attributes:
        bytes_s: bytes per second over all of its connections; None for no quota of bytes.
        sessions: different sessions within a day; None for no quota of sessions.
    """

    bytes_s: int | None = None
    sessions: int | None = None

    def __post_init__(self) -> None:
        if self.bytes_s is not None and self.bytes_s < MIB:
            words = "use at least 1Mi, so that a turn of a connection fits into it"
            raise Misuse(f"bytes_s is {self.bytes_s}; {words}")
        if self.sessions is not None and self.sessions < 1:
            raise Misuse(f"sessions is {self.sessions}; use a number above 0")

    def __str__(self) -> str:
        """Return the quota as text for people.

        >>> str(Quota(bytes_s=4 << 20)), str(Quota(sessions=3))
        ('4.0 MiB a second', '3 sessions a day')
        """
        size = "" if self.bytes_s is None else f"{size_text(self.bytes_s)} a second"
        sessions = "" if self.sessions is None else f"{self.sessions} sessions a day"
        return " and ".join(filter(None, (size, sessions))) or "no quota"


NO_QUOTA: Final = Quota()


@dataclass(slots=True)
class _Account:
    """How much of its quota of a stream one publisher has used."""

    quota: Quota
    budget: Budget
    sessions: DaySessions


class Quotas:
    """Quotas: enforces the publishers' quotas of one stream. A quota may change at any time.

    Threads: only the server's loop calls the methods; any thread may call `quota`.
    """

    def __init__(
        self, quota: Callable[[PeerName], Quota], clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Prepare; `quota` returns a publisher's present quota, and any thread may call it."""
        self.quota = quota
        self._clock = clock
        self._accounts: dict[PeerName, _Account] = {}  # at most one for each certificate's name

    def spend(self, publisher: PeerName, size: int) -> float:
        """Charge a publisher for bytes; return how many seconds to pause its connection."""
        quota = self.quota(publisher)
        if quota.bytes_s is None:
            return 0.0
        return self._account(publisher, quota).budget.spend(size / quota.bytes_s, self._clock())

    def claim_session(self, publisher: PeerName, session: str) -> None:
        """Count a session that a publisher pushes.

        Raises:
            Refused: with code `sessions`, the publisher has already pushed as many other sessions
                within a day as its quota allows.
        """
        quota = self.quota(publisher)
        sessions, now_s = self._account(publisher, quota).sessions, self._clock()
        most = len(sessions.claimed_s) + 1 if quota.sessions is None else quota.sessions
        if not sessions.admit(session, most, now_s):
            words = f"{publisher!r} pushes {len(sessions.claimed_s)} sessions a day already"
            raise Refused("sessions", f"{words}; its quota allows no more (rt session quota)")

    def _account(self, publisher: PeerName, quota: Quota) -> _Account:
        """Return a publisher's account; a changed rate in the quota resets the account's budget."""
        account = self._accounts.get(publisher)
        if account is None:
            account = _Account(quota, Budget(), DaySessions())
            self._accounts[publisher] = account
        if account.quota.bytes_s != quota.bytes_s:
            account.budget = Budget(0.0, self._clock())
        account.quota = quota
        return account
