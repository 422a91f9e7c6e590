"""Dropped copies: removes a node's copies of sessions that an instruction has ended."""

from typing import Protocol

from rt.log.appender import Durable
from rt.node.begun import Begun
from sequencer.member import Member


class DroppableCopy(Protocol):
    """One session's copy on this node."""

    @property
    def durable(self) -> Durable:
        """Up to where the copy is synced."""


class DroppableCopies(Protocol):
    """All copies of sessions on this node."""

    def get(self, session: str) -> DroppableCopy | None:
        """Return the copy of a session, or None."""

    def drop(self, session: str, begun: Begun) -> bool:
        """Remove a copy from before an instruction; False if it was begun after it."""


def drop_copies(member: Member, sessions: DroppableCopies) -> None:
    """Drop the copies that instructions have ended; hold again those that were begun after them.

    It has to be called before a snapshot covers the instruction: a restart would not repeat it.

    Args:
        member: says which.
        sessions: the copies on this node.

    Raises:
        OSError: the disk failed.
    """
    for session in member.take_dropped():
        begun = member.executor.ledger.remembered.begun.get(session)
        if begun is None:
            continue
        sessions.drop(session, Begun(*begun))
        member.lose(session)
        held = sessions.get(session)
        if held is not None:
            member.hold(session, held.durable)
