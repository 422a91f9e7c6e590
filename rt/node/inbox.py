"""Inboxes: the copies of sessions on a node, who fills them, and how durable they are."""

import logging
import os
import threading
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Final

from replicator.host import Bell
from rt.errors import CorruptLog, ManifestError, Misuse, Refused, RtError
from rt.format.manifest import SESSION, Archived, LogIdentity
from rt.limits import KIB
from rt.log.appender import Appender, Durable
from rt.log.confirmations import Confirmations
from rt.log.directory import LogDirectory
from rt.log.disk import SET_ASIDE, Disk, set_aside
from rt.log.watch import directories_in
from rt.names import parse_group, parse_session
from rt.node.barred import BarredSessions
from rt.node.guard import DiskGuard
from rt.position import START, Position

_log: Final = logging.getLogger("rt.node")
# One journal commit of the file system serves all syncs that wait for it, so many files are
# synced side by side; more threads than this did not make 1,000 files faster.
_SYNC_THREADS: Final = 8
# Less than this is synced by the connection that wrote it: waking the syncer, and being woken, cost
# a lone message as much as the sync. Behind more, a connection goes on receiving meanwhile.
_SETTLE_BYTES: Final = 64 * KIB


class NodeInbox:
    """One session's copy. The connection that fills it appends; the syncer makes it durable."""

    def __init__(
        self,
        appender: Appender,
        durable: Durable,
        changed: Callable[["NodeInbox"], None],
        guard: DiskGuard,
        damaged: Callable[[CorruptLog], None],
    ) -> None:
        self._guard = guard
        self._damaged = damaged
        self.appender = appender
        self.session = appender.identity.name
        self.durable = durable
        self.confirmations = Confirmations(received=durable)
        self.merged: Position = START  # up to where its session is merged, whatever is held here
        self.peer = ""  # who fills it now; "" if nobody
        self._relays = False  # whether that is a node, and not the publisher
        self.is_wanted = False
        self._changed = changed
        self._wake: Bell | None = None

    def written(self) -> None:
        """Say that bytes were appended: they are to be made durable.

        Raises:
            Refused: they were the last for now, since the disk is nearly full.
        """
        self._changed(self)
        self._guard.demand_room()

    @property
    def unsynced(self) -> int:
        """Bytes that are not durable yet, as far as they are in the active file."""
        return self.appender.end - self.durable

    def confirmed(self) -> Confirmations:
        """How far the session has come on this node."""
        return self.confirmations

    def confirm(self, confirmations: Confirmations) -> None:
        """Say how far it has come; whoever fills it is woken to pass that on."""
        if confirmations != self.confirmations:
            self.confirmations = confirmations
            self._ring()

    def keeps(self, _entry: Archived) -> bool:
        """Keep the bytes though the publisher archived them: see `NodeSweeper` for when they go."""
        return True

    def needs(self, end: Position) -> bool:
        """Whether there are bytes before `end` that an instruction may name yet."""
        return self.merged < end

    def doubted(self) -> None:
        """Another has other bytes: tell if those here are not what came any more."""
        try:
            self.appender.verify(self.merged)
        except CorruptLog as damage:
            self._damaged(damage)
        except OSError as error:
            _log.warning("the copy of session %s cannot be checked: %s", self.session, error)

    @property
    def was_relayed(self) -> bool:
        """Whether a node filled it last, and not its publisher."""
        return self._relays

    @property
    def is_fed(self) -> bool:
        """Whether its publisher fills it now."""
        return bool(self.peer) and not self._relays

    def claim(self, peer: str, wake: Bell, *, relays: bool = False) -> None:
        """Let `peer` fill it, a publisher or a node that relays.

        Raises:
            Refused: another connection fills it. That ends soon if either relays: a publisher has
                come back, or a node was asked since nothing came by that connection.
        """
        if peer_now := self.peer:  # read once: it may leave just now
            words = f"session {self.session!r} is being pushed by {peer_now!r}"
            if relays or self._relays:
                self.is_wanted = True
                self._ring()
                words += ", which is told to leave it"
            raise Refused("busy", words)
        self.is_wanted, self._relays = False, relays
        self.peer, self._wake = peer, wake

    def release(self) -> None:
        """The connection that filled it has ended."""
        self._wake, self.peer = None, ""  # the bell first: who comes next brings its own

    def _ring(self) -> None:
        if (wake := self._wake) is not None:  # another thread may release it just now
            wake.set()


class Inboxes:
    """All sessions of a node, found again after a restart by their directories."""

    def __init__(
        self,
        disk: Disk,
        root: str,
        stream: str,
        durable: Callable[[Durable, str], None],
        guard: DiskGuard,
        *,
        alone: bool = True,
        damaged: Callable[[CorruptLog], None] = lambda _damage: None,
    ) -> None:
        """Stand ready; `open_all` finds what is there.

        Args:
            disk: where.
            root: directory in which each session has one of its name.
            stream: the stream of this node; sessions of another are refused.
            durable: is told up to where a session has become durable, by the thread that synced.
            guard: of the disk.
            alone: whether there is no other node that has what a damaged copy held.
            damaged: is told of a copy that was found damaged, by the connection that fills it;
                not where it could not be had again.
        """
        self._damaged = damaged
        self._guard = guard
        self._alone = alone
        self._disk = disk
        self._root = root
        self._stream = stream
        self._told = durable
        self._inboxes: dict[str, NodeInbox] = {}
        self._barred = BarredSessions()
        self._lock = threading.Lock()
        self._dirty: dict[str, NodeInbox] = {}
        self._changed = threading.Condition(self._lock)
        self._stopping = self._syncing = self._has_failed = False
        self._pool = ThreadPoolExecutor(_SYNC_THREADS, "sync")

    def open_all(self, merged_to: Callable[[str], Position]) -> list[str]:
        """Open the sessions that are there; return a sentence for each that is damaged.

        Args:
            merged_to: up to where a session was merged, which proves that it was durable.
        """
        damaged = []
        for name in sorted(self.found()):
            log = LogDirectory(os.path.join(self._root, name), self._disk)
            try:
                log.refresh()
                if log.manifest.identity is not None:  # else it was about to be made
                    self._open(parse_session(name), log.manifest.identity, merged_to(name))
            except (CorruptLog, ManifestError) as error:
                damaged.append(self._give_up(name, error))
            except Misuse as error:
                damaged.append(str(error))
            finally:
                log.close()
        return damaged

    def found(self) -> list[str]:
        """Return the names of the copies that are there, those set aside left out."""
        return [each for each in directories_in(self._root) if not each.startswith(SET_ASIDE)]

    def give_up(self, session: str, *, diverged: bool = False) -> None:
        """Set a copy aside; it has to be filled from the start.

        Args:
            session: whose copy.
            diverged: whether it is whole, and not what the nodes agreed on.
        """
        with self._lock:
            inbox = self._inboxes.pop(session, None)
            self._dirty.pop(session, None)
            if diverged and not (inbox and inbox.was_relayed):
                self._barred.strike(session)
            self._barred.begin(session)  # or it would be opened again where it still lies
        with self._until_done(session):
            if inbox is not None:
                inbox.appender.close()
            with suppress(FileNotFoundError):  # who merges and who receives may both have found it
                set_aside(self._disk, os.path.join(self._root, session))

    def _doubt(self, damage: CorruptLog) -> None:
        if self._alone:
            _log.error("%s; this session is not taken until it is mended", damage)
        else:
            self._damaged(damage)

    def _give_up(self, name: str, error: RtError) -> str:
        """Set a damaged copy aside where what it held can be had again.

        What was merged is on the other nodes too, and what was not the publisher still has.
        """
        if self._alone:
            return f"{error}; this session is not taken until it is mended"
        kept = set_aside(self._disk, os.path.join(self._root, name))
        return f"{error}; it is kept as {kept}, and begun anew"

    def claim(
        self,
        identity: LogIdentity,
        peer: str,
        wake: Bell,
        merged_to: Position,
        *,
        relays: bool = False,
    ) -> NodeInbox:
        """Return the copy of the session that `identity` names, for `peer` to fill.

        Raises:
            Refused: the disk is nearly full, it is of another stream, another log has its name, or
                somebody fills it.
            Misuse: its name, or its group's, is none.
            CorruptLog: the copy is damaged.
        """
        self._guard.demand_room()
        name = parse_session(identity.name)
        parse_group(identity.group)  # it goes into instructions, which every node must read
        if identity.kind != SESSION or identity.stream != self._stream:
            raise Refused("other-stream", f"this node serves the stream {self._stream!r}")
        with self._lock:
            if not relays:
                self._barred.demand_agreed(name)
            inbox = self._inboxes.get(name)
            if inbox is None:
                self._barred.demand_open(name)
                self._barred.begin(name)
        if inbox is None:
            with self._until_done(name):
                inbox = self._opened_anew(name, identity, merged_to)
        if inbox.appender.identity != identity:
            raise Refused(
                "other-log",
                f"session {name!r} is another log here: its directory was deleted and made again; "
                "publish under another name",
            )
        with self._lock:
            if self._inboxes.get(name) is not inbox:
                raise Refused("busy", f"session {name!r} was set aside just now")
            inbox.claim(peer, wake, relays=relays)
        return inbox

    @contextmanager
    def _until_done(self, name: str) -> Iterator[None]:
        try:
            yield
        finally:
            with self._lock:
                self._barred.end(name)

    def _opened_anew(self, name: str, identity: LogIdentity, merged_to: Position) -> NodeInbox:
        """Open a copy that is not open, or begin another where what is there is damaged."""
        try:
            return self._open(name, identity, merged_to)
        except (CorruptLog, ManifestError) as error:
            if self._alone:
                raise
            _log.error("%s", self._give_up(name, error))
            return self._open(name, identity, merged_to)

    @property
    def diverged(self) -> list[str]:
        """The sessions of which a copy was set aside that was not what the nodes agreed on."""
        with self._lock:
            return self._barred.diverged

    def get(self, session: str) -> NodeInbox | None:
        """Return the copy of a session, if there is one."""
        with self._lock:
            return self._inboxes.get(session)

    def every(self) -> Collection[NodeInbox]:
        """Return all copies."""
        with self._lock:
            return list(self._inboxes.values())

    def run(self, synced: Callable[[], None]) -> None:
        """Make durable what is written, until stopped. For a thread of its own.

        Args:
            synced: is called after each sync, when `durable` was told of all that came of it.

        Raises:
            OSError: a sync failed; nothing may be acknowledged any more, so the node has to end.
        """
        while True:
            with self._changed:
                self._changed.wait_for(self._is_to_go_on)
                if self._has_failed or not self._dirty:
                    return
                batch = self._begin_sync()
            self._sync_and_end(batch)
            synced()

    def settle(self) -> bool:
        """Make durable what a connection has written, or let `run` do that; whether it was done.

        Raises:
            OSError: as `run` does.
        """
        with self._changed:
            if not self._dirty:
                return False
            little = sum(inbox.unsynced for inbox in self._dirty.values()) <= _SETTLE_BYTES
            if self._syncing or len(self._dirty) > 1 or not little:
                self._changed.notify()
                return False
            batch = self._begin_sync()
        self._sync_and_end(batch)
        return True

    def _is_to_go_on(self) -> bool:
        """Whether `run` has something to sync, or is to end."""
        return self._has_failed or (not self._syncing and bool(self._dirty or self._stopping))

    def _begin_sync(self) -> list[NodeInbox]:
        """Take what is to be synced; the lock is held."""
        batch, self._dirty = list(self._dirty.values()), {}
        self._syncing = True
        return batch

    def _sync_and_end(self, batch: list[NodeInbox]) -> None:
        try:
            self._sync(batch)
        except OSError:
            with self._changed:  # nothing is synced any more: this one is still counted as begun
                self._has_failed = True
                self._changed.notify()
            raise
        with self._changed:
            self._syncing = False
            if self._dirty or self._stopping:
                self._changed.notify()

    def stop(self) -> None:
        """Let `run` sync what is still to be synced, and end."""
        with self._changed:
            self._stopping = True
            self._changed.notify()

    def close(self) -> None:
        """Release all files."""
        self._pool.shutdown()
        for inbox in self.every():
            inbox.appender.close()

    def _open(self, name: str, identity: LogIdentity, merged_to: Position) -> NodeInbox:
        appender = Appender(self._disk, os.path.join(self._root, name), identity)
        try:
            # what is merged is proof here only where no other node could have merged it
            appender.recover(durable=merged_to if self._alone else START, own=False)
            inbox = NodeInbox(appender, appender.sync(), self._mark, self._guard, self._doubt)
        except BaseException:
            appender.close()
            raise
        with self._lock:
            self._inboxes[name] = inbox
        self._told(inbox.durable, name)
        return inbox

    def _mark(self, inbox: NodeInbox) -> None:
        with self._changed:
            self._dirty[inbox.session] = inbox
            if inbox.unsynced > _SETTLE_BYTES:
                self._changed.notify()

    def _sync(self, batch: list[NodeInbox]) -> None:
        if len(batch) == 1:
            ends = [batch[0].appender.sync()]
        else:
            ends = list(self._pool.map(lambda inbox: inbox.appender.sync(), batch))
        for inbox, end in zip(batch, ends, strict=True):
            inbox.durable = end
            with self._lock:  # one that was given up meanwhile holds nothing any more
                if self._inboxes.get(inbox.session) is inbox:
                    self._told(end, inbox.session)
