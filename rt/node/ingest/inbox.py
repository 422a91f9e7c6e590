"""NodeInbox: a node's copy of one session, and the connection that fills it."""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from replicator.host import Bell
from rt.errors import CorruptLog, Refused
from rt.format.manifest import Archived
from rt.log.notify.confirmations import Confirmations
from rt.log.write.appender import Appender, Durable
from rt.log.write.recent_frames import RecentFrames
from rt.node.ingest.damage import DamageFound
from rt.node.resources.disk_guard import DiskGuard
from rt.position import START, Position
from rt.traffic import Traffic

_log: Final = logging.getLogger("rt.node")
_PASSED_OVER_S: Final = 2.0
NOTHING_WAITS: Final = float("inf")  # all bytes of the copy are merged


@dataclass(frozen=True, slots=True)
class InboxPorts:
    """InboxPorts: the interfaces that inboxes use; any thread may call them.

    Attributes:
        changed: called when bytes were appended to a copy.
        guard: guard of the disk.
        damaged: called when a copy is found damaged.
        left: called when a connection that filled a copy has gone.
        alone: returns whether no other node could replace a damaged copy now.
    """

    changed: Callable[["NodeInbox"], None]
    guard: DiskGuard
    damaged: Callable[[DamageFound], None]
    left: Callable[[], None] = lambda: None
    alone: Callable[[], bool] = lambda: False


class NodeInbox:
    """NodeInbox: one session's copy. A connection appends to it; the syncer makes it durable.

    Threads:
        The connection that fills the copy appends, calls `written`, `needs` and `release`, and sets
        `apart`. The syncing thread calls `sync` and sets `durable`; the sequencing thread sets
        `merged` and `confirmations`. These three only advance, so any thread may read them. The
        syncer and the sequencing thread set `is_carried`, which only decides when to sync.
        `restored` is set before there is a connection. Any thread may set `leave`. `Inboxes` calls
        `claim` under its lock. `peer` and `_wake` are cleared without the lock, so other threads
        read each of them once.
    """

    def __init__(
        self,
        appender: Appender,
        durable: Durable,
        ports: "InboxPorts",
    ) -> None:
        self._ports = ports
        self.appender = appender
        self.session = appender.identity.name
        self.traffic = Traffic()
        self.durable = durable
        self.confirmations = Confirmations(received=durable)
        self.merged: Position = START  # the session's merged end, whatever this copy holds
        # The merged end and the number of rolled files when it was last archived; see `Sweep`.
        self.swept: tuple[Position, int] = START, 0
        self.peer = ""  # the peer that fills it now; empty without one
        self.was_relayed = False  # whether a node, not the publisher, fills it or did so last
        self.is_carried = False  # whether the instruction that merged its last bytes had them
        self._passed_over_s = float("-inf")  # when its bytes were last not carried in time
        # when the oldest unmerged bytes came, or, if later, when bytes before them were merged
        self.waits_since_s = NOTHING_WAITS
        self.leave: Refused | None = None  # why the connection that fills it must end
        self.apart = ""  # how its publisher's log differs, as of the last connection
        self.restored: tuple[Position, Position] | None = None  # range restored from the journal
        self._wake: Bell | None = None

    def written(self) -> None:
        """Hand appended bytes to the syncer.

        Raises:
            Refused: the disk is nearly full, so these bytes are the last for now.
        """
        if self.waits_since_s == NOTHING_WAITS:
            self.waits_since_s = time.monotonic()
        self._ports.changed(self)
        self._ports.guard.demand_room()

    @property
    def unsynced(self) -> int:
        """The number of bytes that are not durable yet."""
        return self.appender.end - self.durable

    @property
    def safe(self) -> Position:
        """The end up to which the session is durable here, in this copy or in a journal."""
        return max(self.durable, min(self.merged, self.appender.end))

    @property
    def is_passed_over(self) -> bool:
        """Whether new bytes of the session recently failed to be merged in time.

        The leader may lack these bytes.
        """
        return not self.is_carried and time.monotonic() - self._passed_over_s < _PASSED_OVER_S

    def passed_over(self, now_s: float) -> None:
        """Record that no instruction carried the session's new bytes in time."""
        self.is_carried, self._passed_over_s = False, now_s

    def confirm(self, confirmations: Confirmations) -> None:
        """Record the session's progress, and wake the connection to send it."""
        if confirmations != self.confirmations:
            self.confirmations = confirmations
            if (wake := self._wake) is not None:  # as `_ring`, once for each message
                wake.set()

    def keeps(self, _entry: Archived) -> bool:
        """Return True: what the publisher has archived is kept until `NodeSweeper` deletes it."""
        return True

    def needs(self, end: Position) -> bool:
        """Whether bytes before `end` are not merged yet; an instruction may still name them."""
        return self.merged < end

    def merge_to(self, end: Position, *, is_carried: bool) -> None:
        """Record the session's merged end, and drop earlier frames from memory.

        Args:
            end: the merged end.
            is_carried: whether the last instruction that merged part of the session carried its
                bytes.
        """
        if end != self.merged:
            self.merged, self.is_carried = end, is_carried
            is_all = end >= self.appender.end
            self.waits_since_s = NOTHING_WAITS if is_all else time.monotonic()
        if self.appender.recent is not None:
            self.appender.recent.release(end)

    def sync(self) -> Durable | None:
        """Sync the copy, and check that its files have the bytes that merging took from memory.

        Synced frames leave memory, so later reads use the file. Damage is reported, and damaged
        bytes never count as durable.

        Returns:
            The durable end; None if the files have bytes other than those that merging took.

        Raises:
            OSError: the sync failed.
            CorruptLog: the copy is damaged, and no other node could replace it.
        """
        end, recent = self.appender.sync(), self.appender.recent
        if recent is None:
            return end
        recent.release(end)  # first, so that nothing of it is used after it was compared
        return end if not recent.used or self._is_as_used(recent) else None

    def _is_as_used(self, recent: RecentFrames) -> bool:
        """Whether the copy's files have the bytes that merging took from memory; report damage."""
        spans = recent.take_used()
        try:
            self.appender.compare(spans)
        except CorruptLog as damage:
            recent.not_compared(spans)
            if self._ports.alone():
                raise
            self._ports.damaged(DamageFound(damage, self.appender))
            return False
        except OSError as error:
            recent.not_compared(spans)  # the next sync compares it
            if not self.appender.is_closed:
                _log.warning("the copy of session %s cannot be checked: %s", self.session, error)
        return True

    def doubted(self, why: str = "") -> None:
        """Check the copy, because its source or target has different bytes; report damage.

        If the source is the publisher, `why` says how its log differs, and is kept in `apart`.
        """
        if not self.was_relayed:
            self.apart = why
        try:
            self.appender.verify(self.merged)
        except CorruptLog as damage:
            self._ports.damaged(DamageFound(damage, self.appender))
        except OSError as error:
            _log.warning("the copy of session %s cannot be checked: %s", self.session, error)

    @property
    def is_fed(self) -> bool:
        """Whether the session's publisher, not another node, fills the copy now."""
        return bool(self.peer) and not self.was_relayed

    def claim(self, peer: str, wake: Bell, *, relays: bool = False) -> None:
        """Let `peer`, a publisher or a relaying node, fill the copy.

        Raises:
            Refused: another connection fills the copy. If either connection belongs to a relaying
                node, the present one is asked to leave: the publisher has come back, or it went
                silent and a node was asked for the session.
        """
        if peer_now := self.peer:  # read once: it may leave at any moment
            reason = f"session {self.session!r} is being pushed by {peer_now!r}"
            if relays or self.was_relayed:
                self.refuse(Refused("busy", "this session is left to another connection"))
                reason += ", which was asked to leave"
            raise Refused("busy", reason)
        self.leave, self.was_relayed, self.apart = None, relays, ""
        self.peer, self._wake = peer, wake

    def refuse(self, why: Refused) -> None:
        """End the connection that fills the copy, and send its peer the reason."""
        self.leave = why
        self._ring()

    def release(self) -> None:
        """End the claim of the connection that fills the copy."""
        self._wake, self.peer = None, ""  # the bell first: the next peer brings its own
        self._ports.left()

    def _ring(self) -> None:
        if (wake := self._wake) is not None:  # another thread may release it at any moment
            wake.set()
