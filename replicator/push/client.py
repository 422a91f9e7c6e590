"""PushClient: ships the sessions of a stream to each of its nodes."""

import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from functools import partial
from typing import Final

from replicator.push.connection import PushConnection
from replicator.push.headers_news import HeadersNews
from replicator.push.pace import SessionRounds
from replicator.push.progress import Release, SessionStatus
from replicator.push.releaser import Releaser
from replicator.push.session_book import REFUSED_RETRY_S, SessionBook
from replicator.push.session_watcher import SessionWatcher
from replicator.push.shipping_notes import ShippingNotes
from replicator.source.gather_window import GatherWindow
from replicator.wire.dialer import Destination
from replicator.wire.messages import PUSH
from replicator.wire.nodes_follower import NodesFollower
from rt.errors import NAME_TAKEN, Misuse, Stopped
from rt.log.notify.fork_guard import ForkGuard
from rt.names import parse_glob
from rt.net.addresses import Address, address_text
from rt.net.known_nodes import KnownNodes
from rt.net.loop.event_loop import EventLoop
from rt.net.tls import Contexts
from rt.position import Position
from rt.traffic import Traffic

# Refusals that last until an operator or publisher acts.
_LASTING: Final = frozenset({
    "corrupt", "diverged", "name", NAME_TAKEN, "not-a-member", "other-log", "other-stream",
    "owned", "poisoned", "role", "session", "sessions", "stream", "too-large",
})  # fmt: skip
_DRAIN_POLL_S: Final = 0.01
_STOP_S: Final = 2.0
# A session counts as blocked after this. A node that has just started reports its merges sooner,
# within a second.
_BLOCKED_S: Final = 3.0


class PushClient:
    """Ships sessions to nodes until stopped, over a connection to each node; reconnects by itself.

    The nodes' confirmations are written to a file in each session's directory, where the session's
    publisher reads them. So a client may run in the publisher's process or in another one.

    Threads: any thread may call any method, except `start` and `stop`, which the owner calls. The
    loop calls `_leave` and `_follow`; `_follow` changes `_connections` in place. The threads that
    sync sessions call `_look_at`.
    """

    def __init__(
        self,
        root: str,
        stream: str,
        nodes: Sequence[Address],
        contexts: Contexts,
        sessions: Sequence[str] | None = ("*",),
        *,
        release: Release = Release.MERGED,
        keep_s: float = 0.0,
        standby: Callable[[], Position] | None = None,
        loop: EventLoop | None = None,
        watch: str = "auto",
        refused_retry_s: float = REFUSED_RETRY_S,
        known: KnownNodes | None = None,
    ) -> None:
        """Prepare; nothing is connected before `start`.

        Args:
            root: directory under which streams live; it may be created later.
            stream: name of the stream.
            nodes: host and port of each node.
            contexts: contexts made by `rt.net.tls.client_context`.
            sessions: names or globs of the sessions to ship, including sessions that appear later.
                None to ship only the sessions for which `ship` is called.
            release: when the sessions' rolled files on this machine may be archived.
            keep_s: how many seconds longer to keep these files, in order to send them again to a
                standby that lags.
            standby: returns the position up to which a standby has the merged log; files with
                messages that the standby lacks are kept, too. None without a standby.
            loop: the event loop that serves the connections; a new one is made if not given.
            watch: how to notice changes: a mode of `rt.log.notify.watch.Watch`.
            refused_retry_s: seconds until a session is offered again after a refusal that lasts
                until something is repaired.
            known: the cluster's nodes, which may change; used instead of `nodes`. None to ship to
                `nodes` only.

        Raises:
            Misuse: a name is invalid, or there is no node.
        """
        if not nodes:
            raise Misuse("nothing can be pushed: name at least one node, such as localhost:7700")
        nodes = list(dict.fromkeys(known.addresses if known is not None else nodes))
        globs = None if sessions is None else [parse_glob(each) for each in sessions]
        self._book = SessionBook(
            root, stream, globs, len(nodes), release, keep_s=keep_s, standby=standby,
            refused_retry_s=refused_retry_s,
        )  # fmt: skip
        gather = self._gather = GatherWindow(len(nodes))
        self._headers = HeadersNews(self._book.directory)
        self._contexts: Contexts | None = contexts
        if known is not None:
            contexts.successions = known.successions
        self._connections = [self._connection(node, contexts) for node in nodes]
        self._follower = None if known is None else NodesFollower(known, contexts, self._follow)
        self._watcher = SessionWatcher(self._book, self._connections, gather, self._headers, watch)
        self._releaser = Releaser(self._book, release)
        self._notes = ShippingNotes(self._book, self._connections, self._errors)
        self._rounds = SessionRounds(self._book.names, self._look_at)
        self._loop, self._has_own_loop = loop, loop is None
        self._guard = ForkGuard("a PushClient", self._abandon)
        self._blocked_since_s: dict[str, float] = {}  # by session

    def start(self) -> None:
        """Start shipping."""
        self._guard.demand_owner()
        self._headers.begin()
        loop = self._loop = self._loop or EventLoop(pool_threads=1)
        for connection in self._connections:
            connection.dialer.start(loop)
        self._watcher.start(loop)
        self._rounds.start(self._book.directory)
        if self._follower is not None:
            self._follower.start(loop)

    def follow(self) -> None:
        """Switch to the nodes in `known` now, because they changed; any thread may call this."""
        if (follower := self._follower) is not None:
            follower.apply_soon()

    def _connection(self, node: Address, contexts: Contexts) -> PushConnection:
        destination = Destination([node], contexts, PUSH, self._book.stream)
        return PushConnection(
            destination, self._book, self._gather, self._headers.record, sealed=self._count
        )

    def _count(self) -> None:
        """Ignore the confirmations of sealed nodes, unless all nodes are sealed.

        A sealed node refuses everything, because its log has ended. The loop calls this whenever
        the nodes change, or one of them becomes sealed or is no longer sealed.
        """
        going_on = [each.name for each in self._connections if not each.is_sealed]
        names = going_on or [each.name for each in self._connections]
        self._book.follow(names)
        self._gather.follow(len(names))

    def _follow(self, nodes: Sequence[Address]) -> None:
        """Ship to these nodes from now on; nodes that left no longer delay archiving."""
        loop, contexts = self._loop, self._contexts
        if loop is None or contexts is None:
            return  # the client has been stopped
        before = {each.name: each for each in self._connections}
        names = [address_text(each) for each in nodes]
        begun = {
            name: self._connection(node, contexts)
            for name, node in zip(names, nodes, strict=True)
            if name not in before
        }
        self._connections[:] = [before.get(name) or begun[name] for name in names]
        self._count()
        for name in before.keys() - set(names):
            before[name].dialer.stop()
        for connection in begun.values():
            connection.dialer.start(loop)
        self._watcher.check_soon()

    def ship(self, session: str, heard: Callable[[], None] = lambda: None) -> None:
        """Also ship this session from now on; only for a client that ships chosen sessions.

        Args:
            session: the session's name.
            heard: called by the loop whenever more of the session is confirmed; must not block.

        Raises:
            Stopped: the event loop has ended with an error.
        """
        self._guard.demand_owner()
        if not self._in_loop(partial(self._book.choose, session, heard)):
            raise Stopped(f"session {session!r} is not shipped: the event loop has ended")

    def leave(self, session: str, heard: Callable[[], None] | None = None) -> None:
        """Stop shipping a chosen session; once this returns, another program may ship it.

        Does nothing if the session was chosen again since, with another `heard`.
        """
        if self._guard.is_copy:
            return
        is_ours = True

        def leave() -> None:
            nonlocal is_ours
            is_ours = heard is None or self._book.is_chosen(session, heard)
            if is_ours:
                self._leave(session)

        self._in_loop(leave)
        if not is_ours:
            return
        self._rounds.await_turn()  # it may be looking at this session, as it will not any more
        with suppress(OSError):
            self._releaser.look_at(session, last=True)
            self._releaser.forget(session)
            self._notes.withdraw(session)
        with suppress(OSError):
            self._book.forget(session)

    def _in_loop(self, change: Callable[[], None]) -> bool:
        """Let the loop change which sessions are shipped; return False if the loop has ended."""

        def do() -> None:
            change()
            self._watcher.check_soon()
            for connection in self._connections:
                connection.dialer.set()

        if self._loop is not None:
            return self._loop.call(do)
        change()
        return True

    def _leave(self, session: str) -> None:
        self._book.leave(session)
        self._watcher.forget(session)
        for connection in self._connections:
            connection.drop(session)

    def stop(self, drain_s: float = 0.0, wait_s: float = _STOP_S) -> bool:
        """End all connections.

        Args:
            drain_s: how long to wait until a majority of the nodes has synced everything.
            wait_s: how long to wait after that until the turns under way have ended.

        Returns:
            Whether a majority has synced everything; False in a forked child, which has nothing to
            end.
        """
        if self._guard.is_copy:
            return False
        deadline = time.monotonic() + drain_s
        while not (drained := self.drained()) and time.monotonic() < deadline:
            time.sleep(_DRAIN_POLL_S)
        follower, self._follower = self._follower, None
        if follower is not None:
            follower.stop()
        for connection in self._connections:
            connection.dialer.stop()
        self._watcher.stop()
        self._rounds.stop()
        deadline = time.monotonic() + wait_s
        for connection in self._connections:
            connection.dialer.join(max(0.0, deadline - time.monotonic()))
        with suppress(OSError):
            self._notes.withdraw_all()
        for session in self._book.names():
            self._releaser.look_at(session, last=True)
        loop, self._loop = self._loop, None
        if self._has_own_loop and loop is not None:
            loop.stop()
        self._contexts = None  # an unused certificate needs no warning before it expires
        return drained

    def drained(self, *, merged: bool = False, but: Collection[str] = ()) -> bool:
        """Whether a majority of the nodes have synced, or merged, everything in the sessions.

        Args:
            merged: whether everything must be merged, not only synced.
            but: sessions to ignore.
        """
        self._guard.demand_owner()
        return all(
            self._is_drained(name, merged=merged)
            for name in self._book.names()
            if name not in but and self._book.has_log(name)
        )

    def blocked(self) -> list[str]:
        """Return the sessions that cannot be merged: no node has merged their archived beginning.

        These sessions were shipped to another cluster earlier, or this cluster has lost its state.
        """
        lacking = [each for each in self._book.names() if self._lacks(each)]
        now_s, since = time.monotonic(), self._blocked_since_s
        self._blocked_since_s = {each: since.get(each, now_s) for each in lacking}
        return [each for each in lacking if now_s - self._blocked_since_s[each] >= _BLOCKED_S]

    def refused(self) -> list[str]:
        """Return the sessions that a majority cannot accept until an operator or publisher acts."""
        return [each for each in self._book.names() if self._is_refused(each, _LASTING)]

    def is_shipped_elsewhere(self) -> bool:
        """Whether another program ships every session that is not known to be merged.

        A node accepts a session from one connection at a time, and confirms it only on that
        connection.
        """
        left = [each for each in self._book.names() if not self._is_drained(each, merged=True)]
        return bool(left) and all(self._is_refused(each, frozenset({"busy"})) for each in left)

    def _is_refused(self, session: str, codes: frozenset[str]) -> bool:
        refusing = sum(each.refusal(session) in codes for each in self._connections)
        return refusing > (len(self._connections) - 1) // 2

    def status(self) -> list[SessionStatus]:
        """Return the status of each session with each node."""
        self._guard.demand_owner()
        names = sorted(self._book.names())
        return [each for name in names for each in self._statuses(name)]

    def traffic(self) -> dict[str, Traffic]:
        """Return what was sent to each node since the start."""
        return {each.name: each.traffic for each in self._connections}

    def _look_at(self, session: str) -> None:
        if self._book.ships(session):  # the session may have been left since this round began
            self._notes.look_at(session)
            self._releaser.look_at(session)

    def _abandon(self) -> None:
        """In a forked child: close the inherited connections."""
        for connection in self._connections:
            connection.dialer.abandon()

    def _is_drained(self, session: str, *, merged: bool) -> bool:
        """Whether all of a session is on a majority of the nodes shipped to, and of the cluster.

        This client may ship to only some of the cluster's nodes, and only nodes know how many the
        cluster has. So a node must have reported that a majority of the cluster has the session.
        """
        progress, settled = self._book.progress(session), set()
        every = [each for each in self._connections if not each.is_sealed]
        for connection in every:
            end = connection.all_sent(session)
            if end is None:
                continue
            reached = progress.reached(connection.name)
            is_there = (reached.merged if merged else reached.durable) >= end
            if is_there and progress.is_replicated(end):
                settled.add(self._book.holder(connection.name))
        return len(settled) > len(every) // 2

    def _lacks(self, session: str) -> bool:
        archived_to = max(each.archived_to(session) for each in self._connections)
        return bool(archived_to) and self._book.progress(session).lacks_beginning(archived_to)

    def _statuses(self, session: str) -> list[SessionStatus]:
        errors = self._errors(session)
        return [self._status(session, each, errors[each.name]) for each in self._connections]

    def _status(self, session: str, connection: PushConnection, error: str) -> SessionStatus:
        position, left = connection.sent(session)
        progress = self._book.progress(session)
        durable, known = progress.reached(connection.name).durable, progress.known
        is_open = position is not None
        if position is None:
            position = durable or known.received
            left = self._book.bytes_after(session, position)
        replicated = max(known.replicated, known.merged)
        return SessionStatus(
            session, connection.name, is_open, position, durable, left, error, replicated
        )

    def _errors(self, session: str) -> dict[str, str]:
        errors = {each.name: each.error(session) for each in self._connections}
        if self._lacks(session):
            for each in self._connections:
                errors[each.name] = errors[each.name] or (
                    f"session {session} is archived up to {each.archived_to(session)}, which no "
                    "node has merged: it was shipped to another cluster, or this one has lost its "
                    f"state; rt session adopt {session} lets it continue with what is there"
                )
        return errors
