"""Ports: what a node's duties act on."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Protocol

from rt.errors import Refused
from rt.log.notify.confirmations import Confirmations
from rt.log.write.appender import Appender, Durable
from rt.node.agree.idle_policy import Pulse
from rt.node.agree.keep_up import CopyLog
from rt.node.ingest.session_epochs import Begun
from rt.position import Position
from sequencer.ledger.session_facts import Ownership


class HeldSession(Protocol):
    """One session's copy on this node."""

    @property
    def session(self) -> str:
        """The session's name."""

    @property
    def appender(self) -> Appender:
        """Its log; a copy begun again has another one."""

    @property
    def durable(self) -> Durable:
        """Up to where the copy is synced."""

    @property
    def safe(self) -> Position:
        """Up to where its session is durable here, in the copy or with what carried it."""

    @property
    def confirmations(self) -> Confirmations:
        """What its publisher last heard."""

    merged: Position  # up to where its session is merged, whatever is held here

    @property
    def is_fed(self) -> bool:
        """Whether its publisher is connected."""

    def confirm(self, confirmations: Confirmations) -> None:
        """Tell the publisher how far the session has come."""

    def refuse(self, why: Refused) -> None:
        """Have the connection that fills it refused."""


class HeldSessions(Protocol):
    """All copies of sessions on this node."""

    def get(self, session: str) -> HeldSession | None:
        """Return the copy of a session, or None."""

    def every(self) -> Collection[HeldSession]:
        """Return all copies."""

    def give_up(
        self, session: str, *, diverged: bool = False, damaged_at: Position | None = None
    ) -> None:
        """Set aside a copy that is damaged, or whole but not what the nodes agreed on."""

    def bind(self, changed: Mapping[str, Ownership | None], index: int) -> list[str]:
        """Take note of whose sessions are; return those whose copies were of another log."""

    @property
    def is_removing(self) -> bool:
        """Whether copies that were dropped are still to be removed."""

    def drop_all(self, ended: Mapping[str, Begun], is_needed: Callable[[str, Begun], bool]) -> None:
        """Remove copies from before instructions; keep those that were begun after them."""

    def begun_after(self, session: str) -> int:
        """Return the instruction that last dropped the copies of a session; 0 if none did."""


class Snapshots(Protocol):
    """When the state is saved; see `rt.node.retain.snapshots.NodeSnapshots`."""

    def turn(self, now_s: float) -> None:
        """Do what can be done without waiting."""

    def await_sync(self) -> None:
        """Wait for a sync under way: the merged log is about to be closed."""

    def drop(self) -> None:
        """Abandon the planned snapshot: a file it covers is about to be set aside."""

    def end(self) -> None:
        """Save a last snapshot."""


class Watches(Protocol):
    """Follows the lives of sessions; see `rt.node.sessions.watch.SessionWatch`."""

    def turn(self, now_s: float, changed: Collection[str], *, is_stirred: bool = False) -> None:
        """Report and decide, if it is time."""

    @property
    def is_deciding(self) -> bool:
        """Whether a session may soon be opened, closed or expired."""


class Retains(Protocol):
    """What the node does about retention; see `rt.node.retain.retention.Retention`."""

    def turn(self, now_s: float) -> None:
        """Report and decide, if it is time."""


@dataclass(frozen=True, slots=True)
class Ports:
    """What the duties act on.

    Attributes:
        sessions: the copies of sessions.
        snapshots: saves the state.
        retention: reports disks and archives files.
        watch: decides what becomes of sessions whose publishers come and go.
        copy_log: starts copying the merged log from other nodes, from a position on.
        pass_on: pushes this node's copy of a session to a node: `pass_on(node, session)`.
        serve: sets the end of the merged log that pullers may read.
        refuse: turns pullers away for good, with this reason.
        pulse: tells the other members, and hears from them, who rests.
        is_full: whether the disk has so little room that nothing new is taken.
    """

    sessions: HeldSessions
    snapshots: Snapshots
    retention: Retains
    watch: Watches
    copy_log: CopyLog
    pass_on: Callable[[str, str], None]
    serve: Callable[[Position], None]
    refuse: Callable[[Refused], None]
    pulse: Pulse
    is_full: Callable[[], bool]
