"""Inboxes: all copies of sessions on a node."""

import logging
import os
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Final

from replicator.host import Bell
from rt.errors import CorruptLog, ManifestError, Misuse, Refused, RtError
from rt.format.manifest import SESSION, LogIdentity
from rt.log.files.directory import LogDirectory
from rt.log.files.disk import SET_ASIDE, Disk, set_aside
from rt.log.notify.watch import directories_in
from rt.log.write.appender import Appender, Durable
from rt.log.write.recent_frames import FrameMemory, RecentFrames
from rt.log.write.syncer import SPACE_ERRORS
from rt.names import parse_group, parse_session
from rt.node.ingest.damage import DamageFound
from rt.node.ingest.inbox import InboxPorts, NodeInbox
from rt.node.ingest.inbox_syncer import InboxSyncer
from rt.node.ingest.session_epochs import SessionEpoch, read_epochs, save_epochs
from rt.node.ingest.session_state import SessionState
from rt.node.resources.disk_guard import DiskGuard
from rt.position import START, Position
from sequencer.ledger.life import ANY_LOG
from sequencer.ledger.session_facts import Ownership

_log: Final = logging.getLogger("rt.node")
# Opening a copy syncs its file and its manifest.
_OPEN_THREADS: Final = 8


class Inboxes:
    """Inboxes: the copies of sessions by name; a restart finds them by their directories.

    Threads: `_lock` guards `_sessions` and the states in it. While a copy is opened, closed or set
        aside, the lock is not held; the session then belongs to the thread that called `begin` of
        its state. The lock is held while `_told` reports a sync, so that no report comes after
        another thread has given up the copy. `get` and `begun_after` do not take it: looking up a
        name is atomic, and the copy may be dropped right after the call anyway. `syncer` has its
        own lock; neither lock is taken while the other is held. The sequencing thread alone uses
        `is_removing` and `_is_late`, and calls `drop_all` and `bind`. The other fields never
        change. The main thread calls `open_all` and `close`; any thread may call the rest.
    """

    def __init__(
        self,
        disk: Disk,
        root: str,
        stream: str,
        durable: Callable[[Durable, str], None],
        guard: DiskGuard,
        *,
        alone: Callable[[], bool] = lambda: True,
        damaged: Callable[[DamageFound], None] = lambda _found: None,
        left: Callable[[], None] = lambda: None,
        memory: FrameMemory | None = None,
    ) -> None:
        """Prepare; `open_all` finds the copies.

        Args:
            disk: the disk with the copies.
            root: directory that has one subdirectory for each session, named after it.
            stream: this node's stream; sessions of any other are refused.
            durable: called with a session's durable end, by the thread that synced it.
            guard: guard of the disk.
            alone: returns True if there is no other node now that could replace a damaged copy;
                called by any thread.
            damaged: called when the connection that fills a copy finds damage in it, and another
                node could replace the copy.
            left: called when a connection that filled a copy has gone.
            memory: keeps received frames until they are merged; None to read them from files.
        """
        self._damaged = damaged
        self._alone = alone
        self._memory = memory
        self._disk = disk
        self._root = root
        self._stream = stream
        self._told = durable
        self._sessions: dict[str, SessionState] = {}
        for name, begun in read_epochs(disk, root).items():
            self._state(name).begun = begun
        self.is_removing = False  # whether dropped copies remain, because the disk is full
        self._is_late = False  # whether that was logged
        self._lock = threading.Lock()
        self.syncer = InboxSyncer(self._tell)
        self._ports = InboxPorts(self.syncer.mark, guard, self._doubt, left, alone)

    def open_all(self, merged_to: Callable[[str], Position], index: int = 0) -> list[str]:
        """Open the copies on the disk; return a sentence for each that is damaged.

        Args:
            merged_to: returns the position up to which a session's copy must be durable: the
                session's merged end on the only node of a cluster, `START` on others. Called by
                several threads in parallel.
            index: the last instruction that `merged_to` includes. The node executes later ones
                again, so nothing of a copy begun after one of them is merged yet.
        """

        def open_one(name: str) -> str:
            is_newer = self.begun_after(name) > index
            return self._open_found(name, START if is_newer else merged_to(name))

        return [said for said in self._map(open_one, sorted(self.found())) if said]

    def _map(self, act: Callable[[str], str], names: list[str]) -> Iterable[str]:
        """Call `act` with each name on several threads, and return the results.

        One disk commit then serves many syncs.
        """
        with ThreadPoolExecutor(_OPEN_THREADS, "open") as pool:
            return list(pool.map(act, names))

    def _open_found(self, name: str, merged_to: Position) -> str:
        """Open one copy on the disk; return a sentence if it is damaged, otherwise ""."""
        log = LogDirectory(os.path.join(self._root, name), self._disk)
        try:
            log.refresh()
            if log.manifest.identity is not None:  # else a crash interrupted its creation
                self._open(parse_session(name), log.manifest.identity, merged_to)
        except (CorruptLog, ManifestError) as error:
            return self._give_up(name, error)
        except Misuse as error:
            return str(error)
        finally:
            log.close()
        return ""

    def found(self) -> list[str]:
        """Return the names of the copies on the disk, except those set aside."""
        return [each for each in directories_in(self._root) if not each.startswith(SET_ASIDE)]

    def give_up(
        self, session: str, *, diverged: bool = False, damaged_at: Position | None = None
    ) -> None:
        """Set a copy aside; it must be filled again from the start.

        Args:
            session: the session whose copy it is.
            diverged: whether the copy is undamaged, but differs from what the nodes agreed on.
            damaged_at: where the copy is damaged. If the next copy is damaged at the same place, it
                counts as diverged.
        """
        with self._lock:
            state = self._state(session)
            inbox = state.set_aside(diverged=diverged, damaged_at=damaged_at)
            state.begin()  # or it would be opened again before it is moved
        with self._until_done(state):
            self.syncer.forget(session)
            if inbox is not None:
                inbox.appender.close()
                # an idle publisher would not notice otherwise
                inbox.refuse(Refused("busy", f"the copy of session {session!r} was set aside"))
            with suppress(FileNotFoundError):  # merging and receiving may both find damage
                set_aside(self._disk, os.path.join(self._root, session))

    def drop_all(
        self, ended: Mapping[str, SessionEpoch], is_needed: Callable[[str, SessionEpoch], bool]
    ) -> None:
        """Remove the copies of sessions that instructions ended, except copies begun afterwards.

        If the disk is full, the next call continues; until then, the sessions' sources are refused.

        Args:
            ended: for each session, the instruction that ended it and the logs that are retired.
            is_needed: returns whether this epoch of a session must still be remembered.

        Raises:
            OSError: the disk failed.
        """
        with self._lock:
            fresh = [each for each in ended if self.begun_after(each) < ended[each].after]
            closing = [self._state(each).drop(ended[each]) for each in fresh]
        for session, inbox in zip(fresh, closing, strict=True):
            self.syncer.forget(session)
            if inbox is not None:
                inbox.appender.close()
        self.is_removing = self.is_removing or bool(fresh)
        if self.is_removing:
            self._remove_dropped(is_needed)

    def _remove_dropped(self, is_needed: Callable[[str, SessionEpoch], bool]) -> None:
        """Remove the dropped copies, and record that durably in one small file for all sessions."""
        with self._lock:
            states = list(self._sessions.values())
        known = {
            each.name: each.begun for each in states
            if each.is_removing or (each.begun.after and is_needed(each.name, each.begun))
        }  # fmt: skip
        try:
            self._remove_all([each.name for each in states if each.is_removing])
            save_epochs(self._disk, self._root, known)
        except OSError as error:
            if error.errno not in SPACE_ERRORS:
                raise
            if not self._is_late:
                _log.error("copies of sessions that ended are not removed: %s", error)
            self._is_late = True
            return
        with self._lock:
            for each in states:
                each.removed(is_remembered=each.name in known)
                self._forget_blank(each)
        self.is_removing = self._is_late = False

    def bind(self, changed: Mapping[str, Ownership | None], index: int) -> list[str]:
        """Apply changes of session ownership that all nodes execute.

        Connections of publishers that do not own the session are ended. Copies of logs other than
        the agreed one are removed; they were begun before the nodes agreed which log has the name.
        A copy begun after an instruction later than `index` stays: that instruction will be
        executed again, and binds the name to the log of this copy.

        Args:
            changed: the new ownership of each changed session; None if the name is free.
            index: the last instruction that `changed` includes.

        Returns:
            The sessions whose copies were removed.
        """
        wrong = list[tuple[SessionState, NodeInbox]]()
        with self._lock:
            for session, ownership in changed.items():
                state = self._state(session)
                state.ownership = ownership
                if state.begun.after <= index and (inbox := state.take_wrong_copy()) is not None:
                    state.begin()  # or it would be opened again before it is removed
                    wrong.append((state, inbox))
                self._forget_blank(state)
        for state, inbox in wrong:
            with self._until_done(state):
                self._remove_wrong(state, inbox)
        return [state.name for state, _ in wrong]

    def _remove_wrong(self, state: SessionState, inbox: NodeInbox) -> None:
        """Remove a copy of a log other than the agreed one."""
        _log.warning("session %s: another log has this name; the copy is removed", state.name)
        if inbox.leave is None and state.ownership is not None:
            inbox.refuse(state.other_log(state.ownership.log, inbox.appender.identity.id))
        self.syncer.forget(state.name)
        inbox.appender.close()
        self._remove_copy(state.name)

    @property
    def opened(self) -> Mapping[str, Ownership]:
        """The owner of each session."""
        with self._lock:
            states = list(self._sessions.values())
        return {each.name: each.ownership for each in states if each.ownership is not None}

    def _remove_all(self, sessions: list[str]) -> None:
        there = set(self._disk.names(self._root))
        for session in sessions:
            if session in there:
                self._remove_copy(session)

    def _remove_copy(self, session: str) -> None:
        with suppress(FileNotFoundError):
            dropped = os.path.join(self._root, f"{SET_ASIDE}{session}.dropped")
            self._disk.remove(dropped)  # left if it could not be removed last time
            self._disk.replace(os.path.join(self._root, session), dropped)
            self._disk.remove(dropped)  # if this fails, an operator must remove it

    def proved(self, session: str, merged: Position) -> None:
        """Record that a session's copy was found correct up to `merged`."""
        state = self._sessions.get(session)
        if state is not None and state.damaged_at is not None:
            with self._lock:
                state.proved(merged)

    def begun_after(self, session: str) -> int:
        """Return the instruction that last dropped a session's copies; 0 if no instruction did."""
        state = self._sessions.get(session)
        return 0 if state is None else state.begun.after

    def copy_as_of(self, session: str, index: int) -> NodeInbox | None:
        """Return a session's copy; None if it was begun after an instruction later than `index`.

        After a crash, the ledger may not yet include an instruction that dropped the previous copy.
        """
        state = self._sessions.get(session)
        return None if state is None or state.begun.after > index else state.copy

    def _doubt(self, found: DamageFound) -> None:
        if self._alone():
            _log.error("%s; this session is refused until it is mended", found.damage)
        else:
            self._damaged(found)

    def _give_up(self, name: str, error: RtError) -> str:
        """Set a damaged copy aside, unless no other node could replace it; return what to log.

        The copy is filled again from the start: other nodes have what was merged of the session,
        and its publisher still has the rest. A copy that could not be replaced stays in place, and
        its session is refused until the copy is mended.
        """
        if self._alone():
            return f"{error}; this session is refused until it is mended"
        kept = set_aside(self._disk, os.path.join(self._root, name))
        return f"{error}; it is kept as {kept}, and copied again from the start"

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
            Refused: the disk is nearly full; the session belongs to another stream or publisher;
                the log's id is all zeros, is retired, or is not that of the log with this name; the
                publisher has diverged too often; or another thread fills, opens or gives up the
                copy.
            Misuse: the session's name, or its group's, is not valid.
            CorruptLog: the copy is damaged.
        """
        self._ports.guard.demand_room()
        name = parse_session(identity.name)
        parse_group(identity.group)  # every node must be able to read instructions with it
        if identity.kind != SESSION or identity.stream != self._stream:
            raise Refused("other-stream", f"this node serves the stream {self._stream!r}")
        if identity.id == ANY_LOG:
            raise Refused("name", "the id of a log cannot be all zeros; begin another log")
        with self._lock:
            state = self._state(name)
            try:
                if not relays:
                    state.demand_owner(peer)
                state.demand_log(identity.id)
                inbox = state.copy
                if inbox is None:
                    state.demand_idle()
                    state.begin()
            finally:
                self._forget_blank(state)
        if inbox is None:
            with self._until_done(state):
                inbox = self._open_unless_moved(state, identity, merged_to)
        if inbox.appender.identity != identity:
            raise state.other_log(inbox.appender.identity.id, identity.id)
        with self._lock:
            if state.copy is not inbox:
                raise Refused("busy", f"session {name!r} was set aside just now")
            inbox.claim(peer, wake, relays=relays)
        return inbox

    def _state(self, name: str) -> SessionState:
        """Return a session's state, creating it if necessary; the caller holds the lock."""
        state = self._sessions.get(name)
        if state is None:
            state = self._sessions[name] = SessionState(name)
        return state

    def _forget_blank(self, state: SessionState) -> None:
        """Forget a session without any state; the caller holds the lock."""
        if state.is_blank:
            self._sessions.pop(state.name, None)

    @contextmanager
    def _until_done(self, state: SessionState) -> Iterator[None]:
        try:
            yield
        finally:
            with self._lock:
                state.end()
                self._forget_blank(state)

    def _open_unless_moved(
        self, state: SessionState, identity: LogIdentity, merged_to: Position
    ) -> NodeInbox:
        """Open and return a copy; `Refused` if its directory was set aside meanwhile."""
        try:
            return self._open_or_replace(state.name, identity, merged_to)
        except OSError:
            with self._lock:
                state.demand_kept()
            raise

    def _open_or_replace(self, name: str, identity: LogIdentity, merged_to: Position) -> NodeInbox:
        """Open and return a copy, or replace it with an empty one if it is damaged.

        If no other node could refill the empty copy, the damage is raised instead.
        """
        try:
            return self._open(name, identity, merged_to)
        except (CorruptLog, ManifestError) as error:
            if self._alone():
                raise
            _log.error("%s", self._give_up(name, error))
            return self._open(name, identity, merged_to)

    @property
    def diverged(self) -> list[str]:
        """The sessions whose copy was set aside because the nodes agreed on other bytes."""
        with self._lock:
            return sorted(each.name for each in self._sessions.values() if each.has_diverged)

    def get(self, session: str) -> NodeInbox | None:
        """Return a session's copy; None if there is none."""
        state = self._sessions.get(session)
        return None if state is None else state.copy

    def appender_of(self, session: str) -> Appender | None:
        """Return the appender of a session's copy; None if there is no copy."""
        state = self._sessions.get(session)
        return None if state is None or state.copy is None else state.copy.appender

    def received(self, session: str) -> Position:
        """Return the end of a session's copy, which may not be durable yet."""
        appender = self.appender_of(session)
        return START if appender is None else appender.end

    def every(self) -> Collection[NodeInbox]:
        """Return all copies."""
        with self._lock:
            return [each.copy for each in self._sessions.values() if each.copy is not None]

    def flush(self) -> None:
        """Make all appended bytes durable, without reporting it; `OSError` if a disk fails."""
        for inbox in self.every():
            if inbox.durable < inbox.appender.end:
                inbox.appender.sync()

    def sync_now(self, inbox: NodeInbox) -> None:
        """Sync a copy before the syncer runs, and report its end; `OSError` if the sync fails."""
        if (end := inbox.sync()) is not None:
            inbox.durable = end
            self._tell(inbox, end)

    def close(self) -> None:
        """Release all threads and files."""
        self.syncer.close()
        for inbox in self.every():
            inbox.appender.close()

    def _open(self, name: str, identity: LogIdentity, merged_to: Position) -> NodeInbox:
        appender = Appender(self._disk, os.path.join(self._root, name), identity)
        try:
            appender.recover(durable=merged_to, own=False)
            inbox = NodeInbox(appender, appender.sync(), self._ports)
            if self._memory is not None:
                appender.recent = RecentFrames(self._memory)
            with self._lock:
                self._state(name).open(inbox)
        except BaseException:
            appender.close()
            state = self._sessions.get(name)
            if state is not None and state.is_retired(identity.id):  # its copy is gone
                self._remove_copy(name)
            raise
        self._told(inbox.durable, name)
        return inbox

    def _tell(self, inbox: NodeInbox, end: Durable) -> None:
        with self._lock:  # a copy given up meanwhile must not be reported
            if self.get(inbox.session) is inbox:
                self._told(end, inbox.session)
