"""SessionCopies: what following and changing the lives of sessions needs of a node's copies."""

from collections.abc import Collection
from typing import Protocol

from rt.log.write.appender import Appender


class SessionCopy(Protocol):
    """One session's copy on this node."""

    @property
    def session(self) -> str:
        """Its name."""

    @property
    def appender(self) -> Appender:
        """Its log."""

    @property
    def peer(self) -> str:
        """The name in the certificate of the connection that fills it; "" without one."""

    @property
    def is_fed(self) -> bool:
        """Whether its publisher fills it now."""


class SessionCopies(Protocol):
    """All copies of sessions on this node."""

    def get(self, session: str) -> SessionCopy | None:
        """Return the copy of a session, or None."""

    def every(self) -> Collection[SessionCopy]:
        """Return all copies."""
