"""One simulated node with all it has: the real member over copies of sessions and a merged log.

What `rt.node.node.Node` does with threads and sockets is done here one event after the other; keep
the two alike. Its parts are the real ones: member, planner, executor, inboxes, both ends of a pipe.
"""

import errno
import posixpath
from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING, Any

from rt.errors import (
    CorruptLog,
    DiskFailed,
    Diverged,
    ManifestError,
    Misuse,
    PeerError,
    Refused,
    SessionDiverged,
    WriterFailed,
)
from rt.format.manifest import LogIdentity
from rt.log.appender import Durable
from rt.log.confirmations import Confirmations
from rt.node.inbox import Inboxes, NodeInbox
from rt.position import START, Position
from sequencer.executor import Executor
from sequencer.holdings import decode_report, encode_report
from sequencer.instruction import Instruction
from sequencer.journal.journal import Journal
from sequencer.ledger import Ledger, decode_ledger
from sequencer.member import WANT, Member
from sequencer.planner import Planner
from sequencer.raft.consensus import EngineRole, Ready, Snapshot
from sequencer.session_log import SessionLogs
from sequencer.wants import Wants

from .archiving import SimSnapshots, SimSweeper, make_archiver, steady_ns
from .checkers import Violation
from .copying import IDENTITY, Pull
from .disk import PowerCut, is_dead
from .node import SimNode
from .publisher import SESSIONS, STREAM, Pipe, Publisher
from .stream import BEGIN_NS, OUT

if TYPE_CHECKING:
    from .merge_cluster import MergeCluster

HAND_OVER_TICKS = 10
ARCHIVING_SHARE = 0.4  # of the ticks; a node archives every tenth, but a run is short
HOLDINGS = b"\x02"


class SimInboxes(Inboxes):
    """The copies of sessions, found by the simulated disk."""

    def found(self) -> list[str]:
        """The sessions that have a directory."""
        return [name for name in self._disk.names(self._root) if name in SESSIONS]

    @property
    def is_dirty(self) -> bool:
        """Whether there is something to sync."""
        return bool(self._dirty)

    def take_dirty(self) -> list[NodeInbox]:
        """What is to be synced."""
        dirty, self._dirty = list(self._dirty.values()), {}
        return dirty

    def sync(self, inbox: NodeInbox) -> None:
        """Make one copy durable."""
        self._sync([inbox])


class Guard:
    """Refuses new data while the disk is full."""

    def __init__(self, node: "MergeNode") -> None:
        self._node = node

    def demand_room(self) -> None:
        """Raise `Refused` while there is none."""
        if self._node.is_full:
            raise Refused("reserve", "no room")


class WatchedEngine:
    """The engine, with eyes on it and points to die at."""

    def __init__(self, node: "MergeNode") -> None:
        raft = node.raft
        self._node, self._raft = node, raft
        self._spoke = False
        self.step, self.tick, self.status = raft.step, raft.tick, raft.status
        self.propose, self.transfer = raft.propose, raft.transfer
        self.compact, self.read_index = raft.compact, raft.read_index

    @property
    def leader(self) -> str:
        """The leader, as far as known."""
        return self._raft.leader

    @property
    def leads(self) -> bool:
        """Whether this node leads."""
        return self._raft.leads

    def ready(self) -> Ready | None:
        """What is to be done next."""
        if self._spoke:
            self._spoke = False
            self._node.strike("after speaking")
        ready = self._raft.ready()
        if ready is not None:
            self._node.world.ready(self._node, ready)
        return ready

    def persisted(self, ready: Ready) -> None:
        """It is durable."""
        node, raft = self._node, self._raft
        raft.persisted(ready)
        self._spoke = bool(ready.messages)
        for entry in ready.committed:
            node.world.checker.decides(node.name, entry, raft._core.term)
        if ready.committed and raft.leads:
            node.world.acknowledge(ready.committed[-1].index)


class WatchedJournal:
    """The journal, with eyes on it and points to die at."""

    def __init__(self, node: "MergeNode", journal: Journal) -> None:
        self._node, self._journal = node, journal

    def persist(self, ready: Ready) -> None:
        """Make it durable."""
        node = self._node
        node.strike("before persisting")
        self._journal.persist(ready)
        node.world.persisted(node, ready)
        node.strike("between persisting and speaking")

    def save_snapshot(self, snapshot: Snapshot) -> None:
        """A snapshot names merged bytes: they are durable, here and on a majority."""
        node, ledger = self._node, decode_ledger(snapshot.data)
        node.world.stream.has(node.name, node.disk, ledger)
        node.world.stream.saves(node.name, ledger)
        node.world.stream.knows(node.name, ledger)
        node.strike("before a snapshot")
        self._journal.save_snapshot(snapshot)


class WatchedExecutor(Executor):
    """The executor, with eyes on it."""

    def __init__(self, node: "MergeNode", ledger: Ledger, logs: SessionLogs) -> None:
        self._node = node
        self._checked = ledger.end
        alone = len(node.world.names) == 1
        super().__init__(node.disk, OUT, IDENTITY, ledger, logs, alone=alone)

    def execute(self, index: int, term: int, instruction: Instruction) -> None:
        """Carry out an instruction."""
        node = self._node
        try:
            super().execute(index, term, instruction)
        finally:
            node.world.stream.decided(self.ledger)
        node.world.stream.executed(node.name, node.disk, self.ledger, self._checked)
        node.world.trace(f"{node.name} executes {index} {self.ledger.digest.hex()}")
        self._checked = self.ledger.end
        node.strike("after executing")

    def restore(self, ledger: Ledger) -> None:
        """Go on from another state, a later one."""
        if ledger.index < self.ledger.index:
            raise Violation(
                f"{self._node.name} goes back from {self.ledger.index} to {ledger.index}"
            )
        super().restore(ledger)
        self._checked = ledger.end
        self._node.world.stream.knows(self._node.name, ledger)
        self._node.world.trace(f"{self._node.name} restores {ledger.index}")

    def discard(self, path: str) -> None:
        """Set a damaged file aside."""
        self._node.world.trace(f"{self._node.name} discards {path}")
        super().discard(path)


class MergeNode(SimNode):
    """A node that may die inside any of its duties and come back from its disk."""

    def __init__(self, name: str, world: "MergeCluster", chance: Random) -> None:
        self.world = world
        self.rotted = False  # its disk was damaged once; only then may it speak of damage
        self.is_full = False
        super().__init__(name, world, chance)

    # Life and death

    def start(self) -> None:
        """Start the process from what the disk holds."""
        self.life += 1
        self.guarded(self._start)

    def _start(self) -> None:
        world = self.world
        self.disk.fault = world.nemesis.disk_fault(self)
        opened = self._open_journal()
        self._make_engine(opened)
        self.pipes: dict[str, Pipe] = {}
        self.relays: dict[str, tuple[MergeNode, int, NodeInbox]] = {}  # from whom, by session
        self.asked: dict[tuple[str, str], None] = {}  # nodes, and the sessions that they lack
        self._wants = Wants(world.patience)
        self._held: dict[str, Durable] = {}
        self._heard: list[tuple[str, bytes]] = []
        self._damaged: list[CorruptLog] = []
        self._is_due = self._is_woken = False
        self.guard: Any = Guard(self)
        self.inboxes = SimInboxes(
            self.disk, "in", STREAM, self._hold, self.guard, alone=len(world.names) == 1,
            damaged=self._take_damage,
        )  # fmt: skip
        snapshot = opened.state.snapshot
        ledger = (
            decode_ledger(snapshot.data) if snapshot else Ledger(file_bytes_max=world.file_bytes)
        )
        logs = SessionLogs(self.disk, "in")
        executor = WatchedExecutor(self, ledger, logs)
        self.member = Member(
            self.name, world.names, engine=WatchedEngine(self),
            journal=WatchedJournal(self, opened.journal), executor=executor,
            planner=Planner(logs), send=self._send, now_ns=self._now_ns,
            hand_over_ticks=HAND_OVER_TICKS,
        )  # fmt: skip
        self.member.handlers[WANT] = self._take_want
        self.offset_ns = self._chance.randrange(-(10**9), 10**9)
        self.sweeper = SimSweeper(self)
        if snapshot is not None and not executor.lacks_log:
            world.stream.has(self.name, self.disk, ledger)
            self.sweeper.saved(snapshot.data)
        self._is_sweeping = False
        self.archiver = make_archiver(self, self.sweeper)
        self.merged_end = ledger.end
        self._catch_up: Pull | None = None
        self._missing_since = -1
        self._snapshots = SimSnapshots(self, opened.journal, Random(self._chance.getrandbits(32)))
        self._compare_all()
        self.alive = True
        for words in self.inboxes.open_all(ledger.merged_to):
            self._alarm(words)
        world.clock.after(self._tick_us(), self._tick, self.life)

    def _compare_all(self) -> None:
        executor = self.member.executor
        end = min(executor.appender.end, executor.ledger.end)
        if not executor.is_half_done:
            self.world.stream.knows(self.name, executor.ledger)
        if not self.rotted:
            self.world.stream.compare(self.name, self.disk, START, end)

    def _alarm(self, words: str) -> None:
        """It says that something is damaged: then something was."""
        self.world.trace(f"{self.name}: {words}")
        if not self.rotted:
            raise Violation(f"{self.name} calls damaged what is not: {words}")

    def strike(self, point: str) -> None:
        """Perhaps die here."""
        if self.world.nemesis.strikes(point):
            power = self._chance.random() < 0.7
            self.disk.fault = is_dead
            raise PowerCut(point, power)

    def guarded(self, act: Any, *args: object) -> None:
        """Let something happen to the process, and let it die of that."""
        try:
            act(*args)
        except PowerCut as cut:
            point, power = cut.args or ("inside a disk operation", True)
            self._end(point, power=power)
        except (DiskFailed, WriterFailed) as error:
            self._end("at a failed sync", power=False)
            self.world.trace(str(error))
        except OSError as error:
            if error.errno not in (errno.EIO, errno.ENOSPC):
                raise
            self._end("at a failed sync", power=False)

    def _end(self, point: str, *, power: bool) -> None:
        self.die(point, power=power)
        self.world.nemesis.restart_later(self)

    def pump(self) -> None:
        """Duties are done in turns."""

    # Events

    def receive(self, source: str, data: bytes) -> None:
        """A member's message has come."""
        self._heard.append((source, data))
        self.wake()

    def _hold(self, end: Durable, session: str) -> None:
        # a rolled file that has rotted is found out when it is read
        self.world.stream.holds(self.name, None if self.rotted else self.disk, session, end)
        self._held[session] = end
        self.wake()

    def _take_damage(self, damage: CorruptLog) -> None:
        self._damaged.append(damage)
        self.wake()

    def wake(self) -> None:
        """Do what there is to do, in a moment."""
        if not self._is_woken:
            self._is_woken = True
            delay = int(self.disk_delay_us * (0.5 + 3 * self._chance.random()))
            self.world.clock.after(delay, self._turn, self.life)

    def _tick(self, life: int) -> None:
        if life == self.life:
            self.world.clock.after(self._tick_us(), self._tick, life)
            self._is_due = True
            self.wake()

    def _turn(self, life: int) -> None:
        if life != self.life:
            return
        now = self.world.clock.now_us
        if now < self.paused_until_us:
            self.world.clock.after(self.paused_until_us - now, self._turn, life)
            return
        self._is_woken = False
        self.guarded(self._sequence)

    def _send(self, to: str, data: bytes) -> None:
        if data[:1] == HOLDINGS:
            for session, end in decode_report(data[1:])[1].items():
                self.world.stream.reports(self.name, session, end)
        self.world.wire.send(self.name, to, data)

    def _now_ns(self) -> int:
        return BEGIN_NS + self.offset_ns + int(self.world.clock.now_us * 1000 * self.rate)

    # Copies of sessions

    def ship(self, session: str) -> None:
        """Let a publisher's connection bring a little, or be made."""
        pipe = self.pipes.get(session)
        if pipe is not None and pipe.inbox is not self.inboxes.get(session):
            pipe = self.hang_up(session)
        if session in self.relays:
            self._ask_to_leave(self.world.publishers[session].identity, "p", relays=False)
        elif pipe is not None and pipe.inbox.is_wanted:
            self.hang_up(session)
        elif pipe is None:
            self._received(session, lambda: self._connect(session))
        else:
            self._received(session, lambda: self._carry(session, pipe))

    def _carry(self, session: str, pipe: Pipe) -> None:
        if not all(pipe.step() for _ in range(self.world.haste)):
            pipe.seen = self.world.publishers[session].news

    def _received(self, session: str, act: Callable[[], object]) -> None:
        try:
            act()
        except DiskFailed:
            raise
        except (Refused, CorruptLog, ManifestError, Misuse, PeerError) as error:
            self._refuse(session, error)
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            self.hang_up(session)
        if self.inboxes.is_dirty:
            delay = int(self.disk_delay_us * (0.5 + 3 * self._chance.random()))
            self.world.clock.after(delay, self._sync, self.life)

    def _refuse(self, session: str, error: Exception) -> None:
        source, code = self.relays.get(session), getattr(error, "code", "")
        is_rotten = source is not None and source[0].rotted
        is_behind = source is not None and code == "behind"
        inbox = self.inboxes.get(session)
        if code == "diverged" and inbox is not None:
            inbox.doubted()
        if code in {"corrupt", "diverged"} and source is not None and source[0].alive:
            source[2].doubted()
        if code not in {"reserve", "busy"} and not (is_rotten or is_behind):
            self._alarm(f"{session} cannot be received: {error}")
        self.hang_up(session)

    def _connect(self, session: str) -> None:
        publisher = self.world.publishers[session]
        merged_to = self.member.executor.ledger.merged_to(session)
        inbox = self.inboxes.claim(publisher.identity, "p", _NoBell(), merged_to)
        try:
            self.pipes[session] = Pipe(publisher.disk, session, inbox)
        except Refused:
            inbox.release()
            raise

    # Sessions that are passed on

    def _ask(self) -> None:
        member, missing = self.member, self.member.missing
        fed = self.pipes.keys() - self.relays.keys()
        asked = self._wants.look(
            member.holdings, member.executor.ledger, missing=missing[0] if missing else "", fed=fed
        )
        for holder, sessions in asked.items():
            self.world.trace(f"{self.name} asks {holder} for {sessions}")
            report = encode_report(dict.fromkeys(sessions, START), whole=False)
            member.send(holder, WANT, report)

    def _take_want(self, sender: str, body: bytes) -> None:
        for session in decode_report(body)[1]:
            if self.inboxes.get(session) is not None:
                self.asked[sender, session] = None

    def pass_on(self) -> None:
        """Let the connections to those that lack something bring a little, or be made."""
        for session, (source, life, _) in list(self.relays.items()):
            if source.life != life or not self.world.reaches(source, self):
                self.hang_up(session)
        for name, session in list(self.asked):
            target = self.world.nodes[name]
            is_there = target.alive and self.world.reaches(self, target)
            if is_there and self.world.clock.now_us >= target.paused_until_us:
                target.guarded(target.take_relayed, session, self)
            if not self.alive or target.relays.get(session, (None,))[0] is not self:
                self.asked.pop((name, session), None)

    def take_relayed(self, session: str, source: "MergeNode") -> None:
        """Let another node's connection bring a little of a session, or be made."""
        held, pipe = source.inboxes.get(session), self.pipes.get(session)
        if held is None:
            return
        if pipe is None:
            self.world.trace(f"{source.name} passes {session} on to {self.name}")
            self.relays[session] = (source, source.life, held)
            self._received(session, lambda: self._connect_relay(session, source, held))
        elif self.relays.get(session) != (source, source.life, held):
            self._ask_to_leave(held.appender.identity, source.name, relays=True)
        elif pipe.inbox is not self.inboxes.get(session) or pipe.inbox.is_wanted:
            self.hang_up(session)
        elif pipe.is_behind:
            self._received(session, pipe.step)

    def _connect_relay(self, session: str, source: "MergeNode", held: NodeInbox) -> None:
        merged_to = self.member.executor.ledger.merged_to(session)
        identity, path = held.appender.identity, held.appender.directory
        inbox = self.inboxes.claim(identity, source.name, _NoBell(), merged_to, relays=True)
        try:
            self.pipes[session] = Pipe(source.disk, path, inbox, lambda: held.durable)
        except Refused:
            inbox.release()
            raise

    def _ask_to_leave(self, identity: LogIdentity, peer: str, *, relays: bool) -> None:
        """Somebody comes while another fills the session: that one is to leave.

        If it fills what was set aside meanwhile there is none; who came comes again.
        """
        try:
            self.inboxes.claim(identity, peer, _NoBell(), START, relays=relays).release()
        except Refused as error:
            if error.code not in {"busy", "reserve"}:
                raise

    def has_all_of(self, publisher: Publisher) -> bool:
        """Whether a connection has brought all there is."""
        pipe = self.pipes.get(publisher.name)
        return (
            pipe is not None
            and pipe.seen == publisher.news
            and pipe.inbox is self.inboxes.get(publisher.name)
        )

    def lose_publisher(self, session: str) -> None:
        """A publisher's connection ends, if there is one."""
        if session not in self.relays:
            self.hang_up(session)

    def hang_up(self, session: str) -> None:
        """The connection that brings a session ends."""
        self.relays.pop(session, None)
        pipe = self.pipes.pop(session, None)
        if pipe is not None:
            pipe.inbox.release()
            pipe.close()

    def _sync(self, life: int) -> None:
        if life == self.life:
            for inbox in self.inboxes.take_dirty():
                if life == self.life:
                    self.guarded(self.inboxes.sync, inbox)

    # Duties, as in rt.node.node

    def _sequence(self) -> None:
        member = self.member
        held, self._held = self._held, {}
        heard, self._heard = self._heard, []
        for session, end in held.items():
            member.hold(session, end)
        for sender, data in heard:
            try:
                member.hear(sender, data)
            except PeerError as error:
                self.world.refused(self.name, str(error))
        is_due, self._is_due = self._is_due, False
        if is_due:
            member.tick()
        while self._damaged:
            self._mend(self._damaged.pop(0))
        try:
            self._advance(set(held))
            self._keep_up()
            if is_due:
                self._ask()
        except CorruptLog as damage:
            self._mend(damage)
        if is_due and self._chance.random() < ARCHIVING_SHARE:
            self.archiver.turn(steady_ns(self) / 1e9)
        self._sweep_later()
        self._snapshots.turn(0.0)

    def _advance(self, changed: set[str]) -> None:
        try:
            merged = self.member.run()
        except DiskFailed:
            raise
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            self.world.trace(f"{self.name} has no room")
            return
        ledger = self.member.executor.ledger
        self.merged_end = ledger.end
        for session in sorted(changed.union(merged)):
            self._confirm(session, ledger)

    def _mend(self, damage: CorruptLog) -> None:
        self._alarm(str(damage))
        if len(self.world.names) == 1 or isinstance(damage, Diverged):
            raise Violation(str(damage))
        directory = posixpath.dirname(damage.path)
        if directory == OUT:
            self.member.executor.discard(damage.path)
        else:
            session = posixpath.basename(directory)
            self.inboxes.give_up(session, diverged=isinstance(damage, SessionDiverged))
            self._held.pop(session, None)
            self.member.lose(session)

    def _confirm(self, session: str, ledger: Ledger) -> None:
        inbox = self.inboxes.get(session)
        if inbox is None or not self.member.vouches_for(session):
            return
        known, merged = inbox.confirmations, ledger.merged_to(session)
        merged_at = ledger.end if merged > known.merged else known.merged_at
        replicated = max(known.replicated, self.member.holdings.agreed(session), merged)
        self.world.stream.confirms(self.name, session, replicated, merged)
        inbox.confirm(Confirmations(inbox.durable, replicated, merged, merged_at))

    def _keep_up(self) -> None:
        member = self.member
        if len(self.world.names) == 1:
            return
        if self._catch_up is None:
            if not member.executor.lacks_log and not self._waited_too_long():
                return
            self.world.trace(f"{self.name} copies from {member.executor.ledger.end}")
            member.suspended = True
            member.executor.close()
            begin = member.executor.appender.next_place - member.executor.lacks_lines
            self._catch_up = Pull(self, self._chance, begin)
            return
        self._catch_up.step()
        needs_none = not member.executor.lacks_log and member.missing is None
        if needs_none or self._catch_up.is_done(member.executor.ledger.end):
            self._catch_up.stop()
            self._catch_up = None
            member.executor.reopen()
            member.suspended = False
            self._missing_since = -1
            self._compare_all()
            self.world.trace(f"{self.name} has copied up to {member.executor.appender.end}")

    def _waited_too_long(self) -> bool:
        if self.member.missing is None:
            self._missing_since = -1
            return False
        now = self.world.clock.now_us
        if self._missing_since < 0:
            self._missing_since = now
        return now - self._missing_since > self.world.missing_us

    def _sweep_later(self) -> None:
        """Wake the sweeper, whose thread gets its turn sooner or later."""
        if self.sweeper.has_work and not self._is_sweeping:
            self._is_sweeping = True
            delay = int(self.disk_delay_us * (0.5 + 10 * self._chance.random()))
            self.world.clock.after(delay, self._sweep, self.life)

    def _sweep(self, life: int) -> None:
        if life == self.life:
            self._is_sweeping = False
            self.guarded(self.sweeper.sweep)

    # Ends

    def settled(self) -> bool:
        """Whether this node's own, durable log says that it is decided that it counts."""
        status = self.raft.status()
        decided = status.commit >= self.raft._core.roster.changed_at
        return decided and status.role is not EngineRole.LEARNER and status.durable == status.last

    def has_all(self, index: int) -> bool:
        """Whether it has executed everything, and is what it should be."""
        executor = self.member.executor
        ledger = executor.ledger
        idle = self._catch_up is None and not executor.lacks_log
        is_swept = self.sweeper.emptied_to >= ledger.archived_to
        return self.alive and idle and is_swept and ledger.index == index and self.settled()

    @property
    def news(self) -> tuple[int, Position, Position]:
        """Changes when there is more to copy from here."""
        executor = self.member.executor
        return len(executor.appender.manifest.archived), self.merged_end, executor.appender.end


class _NoBell:
    def set(self) -> None:
        """Nobody waits."""
