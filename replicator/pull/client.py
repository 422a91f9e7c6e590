"""PullClient: keeps a copy of a merged log, pulled from one of several nodes."""

import os
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import Final

from replicator.host import Bell
from replicator.pull.end_asks import HOPS_MAX, EndAsks
from replicator.pull.end_wait import EndWait
from replicator.pull.lag_watch import LagWatch
from replicator.pull.local_copy import LocalCopy, PulledLog
from replicator.sink.ack_schedule import AckSchedule
from replicator.sink.connection import SinkConnection
from replicator.wire.dialer import Destination, Dialer
from replicator.wire.link import HEARTBEAT_S, HungUp, Link
from replicator.wire.messages import BEHIND, NO_SUCH_STREAM, PULL, CaughtUpNotice
from replicator.wire.nodes_follower import NodesFollower
from rt.errors import CorruptLog, Misuse, PeerError, Refused, Stopped, spoken
from rt.format.manifest import FILE_NAME, Archived, LogIdentity
from rt.log.files.disk import Disk, OsDisk
from rt.log.notify.fork_guard import ForkGuard
from rt.log.read.start import Start, start_text
from rt.log.write.appender import Appender
from rt.names import MERGED_NAME, stream_directory
from rt.net.addresses import Address, address_text
from rt.net.authority.identity import SERVING
from rt.net.authority.succession import Succession
from rt.net.contexts import Contexts
from rt.net.known_nodes import KnownNodes
from rt.net.loop.event_loop import EventLoop
from rt.net.loop.timer import Aside, Timer
from rt.position import START, Position
from rt.traffic import Traffic

LAGGING: Final = "lagging"  # refusal code: this client itself leaves the node
_STOP_S: Final = 2.0
_LOOK_S: Final = 0.5  # how often to check whether a question to a node is due
_POOL_THREADS: Final = 2  # one syncs, one opens the copy or ends one of its files


@dataclass(frozen=True, slots=True)
class PullStatus:
    """PullStatus: the status of a copy.

    Attributes:
        node: the node that the copy comes from; "" while there is no connection.
        position: the end of the copy.
        next_place: where the copy continues, which is `position` or the next file.
        durable: the durable end of the copy.
        has_all: whether the node has reported, on this connection, that it has sent everything.
        is_ahead: whether the last node that answered had less than the copy.
        error: why there is no connection, why the copy has stopped, or the disk's last error if
            nothing was copied since.
        complete_to: a position that the copy has reached and that follows everything merged by
            `asked_ns`. None until a wait returned by `ask_end` has succeeded.
        asked_ns: when the question that led to `complete_to` was asked, ns since the epoch.
        furthest: the furthest end that any node has reported.
        lag: how far the node lags another node, as text; "" if it does not lag, or if that is
            unknown.
    """

    node: str
    position: Position
    next_place: Position
    durable: Position
    has_all: bool
    is_ahead: bool
    error: str
    complete_to: Position | None = None
    asked_ns: int = 0
    furthest: Position = START
    lag: str = ""

    @property
    def durable_place(self) -> Position:
        """Where the copy's durable part continues: at `durable`, or in the next file."""
        return self.next_place if self.durable >= self.position else self.durable

    @property
    def caught_up(self) -> bool:
        """Whether the node has nothing more, and no other node is known to have more."""
        return self.has_all and self.next_place >= self.furthest


class PullClient:
    """Copies the merged log of a stream into `root/<stream>/out`, until stopped.

    The client regularly asks how far the other nodes have merged, and leaves a node that lags
    (`replicator.pull.lag_watch`).

    Threads: the loop calls the methods of `Served`, and one thread of its pool at a time does the
    work of `aside`. Only these threads set `_side`, `_refused`, `_has_all`, `_is_ahead`,
    `_is_accepted` and `_has_rejoined`. Only the loop uses `_watch` and `_leaving`; `_complete` and
    `_others` are replaced as a whole. Any thread may call the public methods, but only one thread
    at a time may call `stop`.
    """

    def __init__(
        self,
        root: str,
        stream: str,
        nodes: Sequence[Address],
        contexts: Contexts,
        keep: Callable[[Archived], bool] = lambda _entry: False,
        *,
        sweep: Callable[[Appender], object] = lambda _log: None,
        start: Start = "earliest",
        grown: Callable[[Position], object] | None = None,
        disk: Disk | None = None,
        asks: EndAsks | None = None,
        loop: EventLoop | None = None,
        watch: LagWatch[str] | None = None,
        known: KnownNodes | None = None,
        is_wanted: Callable[[], bool] = lambda: True,
        near: Sequence[Address] = (),
    ) -> None:
        """Prepare; nothing is dialled before `start`.

        Args:
            root: directory under which streams live.
            stream: name of the stream.
            nodes: host and port of each node; one is used at a time.
            contexts: contexts made by `rt.net.tls.client_context`.
            keep: returns whether to keep the bytes of a file that the cluster has archived.
            sweep: called about once a second to archive files that need not be kept.
            start: where a new copy begins: with the file that holds this position.
            grown: called whenever the copy has grown, with the position at which it continues.
            disk: the disk of the copy; the real one if not given.
            asks: asks nodes where the stream ends; made here if not given.
            loop: the event loop that serves the connection; made here if not given.
            watch: decides which node to copy from, by `host:port`; made here if not given.
            known: the cluster's changing nodes, used instead of `nodes`; None to use `nodes` only.
            is_wanted: returns whether to be connected now; called at each turn, and after `wake`.
            near: mirrors that are preferred to nodes, in this order, unless they lag.

        Raises:
            Misuse: a name is invalid, `nodes` is empty, or another client pulls into the directory.
        """
        _demand_some(nodes)
        self._stream, self._start_at = stream, "" if start == "earliest" else start_text(start)
        self._has_all = self._is_ahead = self._has_rejoined = False
        self._is_accepted = False  # whether the last node that answered continued the copy
        self._follower: NodesFollower | None = None
        if known is not None:
            nodes, contexts.successions = known.addresses, known.successions
            self._follower = NodesFollower(known, contexts, self._follow, SERVING)
        self._nodes = list(dict.fromkeys(nodes))
        self._successions = contexts.successions
        self._asks = asks or EndAsks(contexts)
        self._complete: tuple[Position | None, int] = (None, 0)
        self._is_wanted, self._near = is_wanted, list(dict.fromkeys(near))
        self._watch = watch or self._new_watch()
        self._others: tuple[Position, str] = START, ""  # the nodes' furthest end; the lag as text
        self._looking: Timer | None = None
        self._leaving = self._disk_error = ""  # why to leave; an error, until the copy grows
        directory = os.path.join(stream_directory(root, stream), MERGED_NAME)
        self._is_new = not os.path.exists(os.path.join(directory, FILE_NAME))
        self._dialer = Dialer(Destination(self._sources, contexts, PULL, stream), self)
        self._side: SinkConnection | None = None
        self._refused: list[Refused] = []  # the node's refusals on this connection
        self._began = START  # where the copy continued when the connection began
        self._copy = LocalCopy(
            directory, keep, sweep, disk or OsDisk(), self._dialer.stop, grown=grown,
            ended=lambda log: None if known is None else known.ended(log),
        )  # fmt: skip
        self._loop, self._has_own_loop = loop, loop is None
        self._guard = ForkGuard("a PullClient", self._abandon)

    def _new_watch(self) -> LagWatch[str]:
        near = map(address_text, self._near)
        return LagWatch(map(address_text, self._sources), near=near)

    def start(self) -> None:
        """Start copying.

        Raises:
            CorruptLog: the copy is served to others (`grown` is given), and is damaged.
        """
        self._guard.demand_owner()
        self._copy.open()
        self._loop = self._loop or EventLoop(pool_threads=_POOL_THREADS)
        self._dialer.start(self._loop)
        self._copy.start(self._loop)
        if len(self._sources) > 1 or self._follower is not None:
            self._looking = Timer(self._loop, self._look, lambda _error: None)
            self._looking.set()
        if self._follower is not None:
            self._follower.start(self._loop)

    def wake(self) -> None:
        """Let the loop call `is_wanted` again now, because the result may have changed."""
        self._dialer.set()

    @property
    def loop(self) -> EventLoop | None:
        """The event loop in use; None before `start`, and after a loop of its own was stopped."""
        return self._loop

    def ask_end(self, hops: int = HOPS_MAX) -> EndWait:
        """Ask where the stream ends now; the caller closes the result.

        Args:
            hops: how many mirrors the question may pass.

        Returns:
            A wait that ends when the copy has everything that was merged before this call.

        Raises:
            Stopped: the client was not started, or was stopped together with its own loop.
        """
        self._guard.demand_owner()
        if self._loop is None:
            raise Stopped(f"{self.directory} is not copied now")
        asks = partial(self._asks.latest, hops=hops)
        return EndWait(
            self._nodes, asks, self._next_place, self._loop, reached=self._completed,
            is_accepted=self._is_sound,
        )  # fmt: skip

    def wait_caught_up(self, timeout_s: float | None = None) -> bool:
        """Wait until the copy has all that was merged before this call.

        Return False on a timeout, or if no node can tell where the stream ends.
        """
        with closing(self.ask_end()) as asked:
            return asked.wait(timeout_s)

    def stop(self, wait_s: float = _STOP_S) -> bool:
        """End the connection, sync the copy, and release the directory.

        Args:
            wait_s: how long to wait for a running dial or write.

        Returns:
            Whether everything has ended. If not, the directory is still locked; call `stop` again.
        """
        if self._guard.is_copy:
            return True
        deadline = time.monotonic() + wait_s
        if self._looking is not None:
            self._looking.stop(0)  # do not wait for the answer of a silent node
        follower, self._follower = self._follower, None
        if follower is not None:
            follower.stop()
        self._dialer.stop()
        has_ended = self._dialer.join(wait_s)
        has_ended &= self._copy.stop(max(0.0, deadline - time.monotonic()))
        self._copy.sync()
        if has_ended:
            if self._has_own_loop and self._loop is not None:
                loop, self._loop = self._loop, None
                loop.stop()
            self._copy.close()
            self._asks.close()
        return has_ended

    @property
    def directory(self) -> str:
        """The directory of the copy."""
        return self._copy.directory

    @property
    def log(self) -> Appender | None:
        """The copy's log; None while it is not open, as before a node has first answered."""
        return None if self._copy.log is None else self._copy.log.appender

    def on_damage(self, suspect: Callable[[CorruptLog], None]) -> None:
        """Call `suspect` with damage in rolled files from now on; call this before `start`."""
        self._copy.suspect = suspect

    def on_succession(
        self, rejoin: Callable[[Succession], str], rejoined: Callable[[], None] = lambda: None
    ) -> None:
        """Let the copy continue in another log once its own log has ended; call before `start`.

        Args:
            rejoin: turns the copy into a copy of the log that continues the ended one, and returns
                a sentence about what happened; raises `Misuse` if that is impossible. It is called
                while no file of the copy is open.
            rejoined: called once the copy is open again.
        """

        def begin_again() -> None:
            self._complete, self._is_accepted, self._has_rejoined = (None, 0), False, True
            rejoined()

        self._copy.rejoin, self._copy.rejoined = rejoin, begin_again

    @property
    def running(self) -> bool:
        """Whether this client still copies; False after `stop`, or after the disk has failed."""
        return not self._dialer.stopping

    @property
    def has_tried(self) -> bool:
        """Whether an attempt to connect has ended, successful or not, or the copy has failed."""
        return bool(self._dialer.codes) or bool(self._copy.failure)

    @property
    def is_served_nowhere(self) -> bool:
        """Whether all nodes, when they last answered, did not serve the stream."""
        known = [self._dialer.codes.get(node) for node in self._nodes]
        return all(code == NO_SUCH_STREAM for code in known)

    @property
    def traffic(self) -> Traffic:
        """Counts of what was copied since the start."""
        log = self._copy.log
        return Traffic() if log is None else log.traffic

    def status(self) -> PullStatus:
        """Return the status of the copy."""
        self._guard.demand_owner()
        log, node = self._copy.log, self._dialer.node
        error = self._copy.failure or self._dialer.error or self._disk_error
        last = self._has_all, self._is_ahead, error, *self._complete, *self._others
        if log is None:
            return PullStatus(node, START, START, START, *last)
        appender = log.appender
        return PullStatus(node, appender.end, appender.next_place, log.durable, *last)

    def _abandon(self) -> None:
        """In a forked child: release the inherited files and sockets."""
        self._dialer.abandon()
        self._copy.abandon()

    # What the dialer calls (`replicator.wire.dialer.Served`)

    def is_wanted(self) -> bool:
        """Whether the owner wants a connection now."""
        return self._is_wanted()

    def avoids(self, node: Address) -> bool:
        """Whether to try others first: `node` lags, or is not near while a near mirror keeps up."""
        return self._watch.puts_off(address_text(node), time.monotonic())

    def begin(self, link: Link) -> None:
        """Begin to copy over this connection."""
        self._refused = []
        self._side = SinkConnection(
            link, AckSchedule(self._dialer), self._claim, caught_up=self._take_caught_up,
            refused=self._refused.append, start=self._start_at, heard=self._hear,
        )  # fmt: skip
        self._began = self._next_place()
        self._connected(self._dialer.node)

    def turn(self) -> float:
        """Handle what has arrived; return the seconds until the next turn.

        Raise `Refused` with the reason if the node refuses the copy, or this client leaves the
        node.
        """
        side = self._side
        if side is None:
            return HEARTBEAT_S
        if self._has_rejoined:  # the ends known so far belong to the previous log
            self._has_rejoined, self._began = False, self._next_place()
            self._watch.restart()
        try:
            side.turn()
        except HungUp:
            if not self._refused:
                raise
        except OSError as error:  # this disk failed, which other connections would meet too
            self._disk_error = spoken(error)
            raise
        if self._refused:
            self._is_ahead = self._refused[0].code == BEHIND
            self._is_accepted &= self._is_ahead
            raise self._refused[0]
        if self._has_all or self._next_place() > self._began:
            self._is_accepted, self._disk_error = True, ""
            self._dialer.progressed()
        if self._leaving:
            raise Refused(LAGGING, self._leaving)
        return side.pause_s

    def aside(self) -> Callable[[], None] | None:
        """Return work for a thread, if any: opening the copy, or ending a file of the copy."""
        side = self._side
        return None if side is None or side.aside is None else side.take_aside

    def end(self) -> None:
        """Release the copy, because the connection has ended."""
        side, self._side = self._side, None
        try:
            if side is not None:
                side.close()
        finally:
            self._connected("")
            self._has_all = False

    def _hear(self, text: str) -> None:
        if self._successions is not None and self._successions.hear(text):
            self.follow()

    def _claim(self, identity: LogIdentity, bell: Bell) -> PulledLog:
        if not identity.merged or identity.stream != self._stream:
            raise PeerError(f"it offers a {identity.kind} log of another stream")
        return self._copy.claim(identity, bell)

    def _take_caught_up(self, _message: CaughtUpNotice) -> None:
        self._is_ahead = False
        self._has_all = True

    # Which nodes there are

    def follow(self) -> None:
        """Switch to the nodes in `known` now, because they changed; any thread may call this."""
        if (follower := self._follower) is not None:
            follower.apply_soon()

    def _follow(self, nodes: Sequence[Address]) -> None:
        """Pull from these nodes from now on; leave the present node if it is not among them."""
        self._nodes = list(nodes)
        self._dialer.follow(self._sources)
        names = [address_text(each) for each in self._sources]
        self._watch.follow(names)
        if self._dialer.node and self._dialer.node not in names:
            self._leaving = f"{self._dialer.node} is no member of the cluster any more"
            self._dialer.set()

    # How far the others are

    @property
    def _sources(self) -> list[Address]:
        """The addresses from which the log may be copied, near mirrors first."""
        return list(dict.fromkeys([*self._near, *self._nodes]))

    @property
    def crosses(self) -> bool:
        """Whether the copy does not come from a near mirror now; true without a connection."""
        return self._dialer.node not in map(address_text, self._near)

    def _next_place(self) -> Position:
        log = self._copy.log
        return START if log is None else log.appender.next_place

    def _is_sound(self) -> bool:
        """Whether a node has accepted the copy as a prefix of its log, or the copy is empty."""
        return self._is_accepted or (self._is_new and not self._next_place())

    def _completed(self, end: Position, asked_ns: int) -> None:
        """Record that the copy has everything that was merged at `asked_ns`."""
        if asked_ns >= self._complete[1]:
            self._complete = end, asked_ns

    def _connected(self, node: str) -> None:
        self._leaving = ""
        self._watch.connected(node or None, time.monotonic())
        self._note_others()

    def _note_others(self) -> None:
        self._others = self._watch.furthest, self._watch.lag(time.monotonic())

    def _look(self) -> float | Aside:
        """Return the work of asking the node that is due, or the seconds until the next look."""
        now_s = time.monotonic()
        self._watch.grown(self._next_place(), now_s)
        self._note_others()
        if (name := self._watch.due(now_s)) is None:
            return min(_LOOK_S, self._watch.look_s)
        node = next(each for each in self._sources if address_text(each) == name)
        ends: list[Position | None] = []
        place = self._next_place()
        return Aside(
            lambda: ends.append(self._asks.served(node)),
            lambda _error: self._heard(name, next(iter(ends), None), now_s, place),
        )

    def _heard(self, node: str, end: Position | None, asked_s: float, place: Position) -> None:
        """Record the end that `node` serves; leave the present node if it lags or `node` is better.

        Args:
            node: the node or mirror that was asked.
            end: the answer; None if there was none.
            asked_s: when the node was asked.
            place: where the copy continued at that time.
        """
        self._watch.heard(node, end, asked_s)
        self._note_others()
        why = self._watch.why_leave(asked_s)
        if not why and self._watch.is_nearer(node, end, place, asked_s):
            why = f"{node} is nearer, and has as much"
        if why:
            self._leaving = why
            self._dialer.set()


def _demand_some(nodes: Sequence[Address]) -> None:
    if not nodes:
        raise Misuse("nothing can be pulled: name at least one node, such as localhost:7700")
