"""A complete simulated node: the real duties over copies of sessions and a merged log.

Every decision is made by the code that a node runs: duties, member, planner, executor, inboxes,
retention, both ends of a pipe. Here are fakes of what they act on, and checks that watch them.
"""

import errno
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from random import Random
from typing import TYPE_CHECKING, Any

from replicator.host import Inbox
from replicator.repair.mend import mend_file
from replicator.serve.feeds import LogFeeds
from rt.errors import (
    CorruptLog,
    DiskFailed,
    ManifestError,
    Misuse,
    PeerError,
    Refused,
    WriterFailed,
)
from rt.format.manifest import LogIdentity, Manifest
from rt.log.notify.confirmations import Confirmations
from rt.log.write.appender import Durable
from rt.log.write.recent_frames import FrameBounds, FrameMemory
from rt.node.agree.dependencies import Dependencies
from rt.node.agree.duties import Duties, Mail
from rt.node.ingest.damage import DamageFound
from rt.node.ingest.inbox import NodeInbox
from rt.node.ingest.inboxes import Inboxes
from rt.node.ingest.relay import held_copy
from rt.node.ingest.restore_from_journal import read_instruction, restore_from_journal
from rt.node.ingest.session_epochs import SessionEpoch
from rt.node.sessions.watch import SessionWatch
from rt.position import START, Position
from sequencer.execution.execution import Readers
from sequencer.journal.journal import Opened
from sequencer.journal.starts import NONCE_END, begin_start, read_memories, write_memories
from sequencer.ledger.instruction import Instruction, Merge, Slice
from sequencer.ledger.ledger import Ledger, decode_ledger
from sequencer.ledger.session_facts import Ownership
from sequencer.member import Member
from sequencer.peers.restart_check import RestartCheck
from sequencer.planning.holdings import decode_report
from sequencer.planning.planner import Planner
from sequencer.planning.session_log import SessionLogs
from sequencer.raft.consensus import EngineRole, Entry, EntryKind

from .archiving import SimSnapshots, SimSweeper, make_archiver, paced_ns
from .checkers import Violation
from .copying import NodeFiles, Pull
from .disk import PowerCut, is_dead
from .node import PATH, SimNode
from .publisher import SESSIONS, Pipe, Publisher
from .stream import BEGIN_NS, OUT
from .watched import WatchedEngine, WatchedExecutor, WatchedJournal, WatchedMember

if TYPE_CHECKING:
    from .merge_cluster import MergeCluster

HAND_OVER_TICKS = 10
UNSERVED_TICKS = 3  # for which what was executed may be served no further
PUT_OFF = 20  # how much later the sync of what an instruction may carry is
REFUSED_US = 40_000  # time until a publisher whose bytes differ offers them again
CONSENSUS, HOLDINGS = b"\x01", b"\x02"


WAITING_MAX = 8  # low enough for worlds of a few hundred instructions to reach it
# Frames of these worlds have some 200 bytes: a few of a log, and of a few logs, stay in memory.
BOUNDS = FrameBounds(log=1_000, append=700, all=2_500, step=1_000, heading=0)


class SimInboxes(Inboxes):
    """The copies of sessions on the simulated disk, synced when the world says so."""

    node: "MergeNode | None" = None  # the node that watches

    def give_up(
        self, session: str, *, diverged: bool = False, damaged_at: Position | None = None
    ) -> None:
        """Set a copy aside."""
        if self.node is not None:
            world = self.node.world  # a node without a copy accepts the next log before the reset
            if not world.publishers[session].lives and session not in world.stream.begun_again:
                self.node.alarm(f"gives up {session}")
            if diverged:
                self.node.demand_begun_before(session)
            self.node.world.stream.loses(self.node.name, session)
        super().give_up(session, diverged=diverged, damaged_at=damaged_at)

    def drop_all(
        self, ended: Mapping[str, SessionEpoch], is_needed: Callable[[str, SessionEpoch], bool]
    ) -> None:
        """Remove copies that instructions ended."""
        known = {each: self.begun_after(each) for each in ended}
        if self.node is not None and any(ended[each].after > known[each] for each in ended):
            log = self.node.member.executor.appender
            # otherwise the rest is being copied from another node, or is about to be
            if log.is_open:
                self.node.world.stream.drops(self.node.name, self.node.disk, log.end)
        super().drop_all(ended, is_needed)
        for each, before in known.items():
            if self.node is not None and self.begun_after(each) > before:
                self.node.world.stream.loses(self.node.name, each)

    def bind(self, changed: Mapping[str, Ownership | None], index: int) -> list[str]:
        """Remove copies of other logs than the agreed ones."""
        removed = super().bind(changed, index)
        for session in removed if self.node is not None else ():
            self.node.demand_begun_before(session)
            self.node.world.stream.loses(self.node.name, session)
        return removed

    def _open(self, name: str, identity: LogIdentity, merged_to: Position) -> NodeInbox:
        inbox = super()._open(name, identity, merged_to)
        if self.node is not None:
            watch_confirmations(self.node, inbox)
        return inbox

    def _map(self, act: Callable[[str], str], names: list[str]) -> Iterable[str]:
        """Run sequentially: a seed has no threads."""
        return map(act, names)

    def found(self) -> list[str]:
        """Return the sessions that have a directory."""
        return [name for name in self._disk.names(self._root) if name in SESSIONS]

    @property
    def is_dirty(self) -> bool:
        """Whether there is something to sync."""
        return bool(self.syncer.scheduled)

    def take_dirty(self) -> list[NodeInbox]:
        """Return the copies to sync."""
        dirty = self.syncer.scheduled
        for inbox in dirty:
            self.syncer.forget(inbox.session)
        return dirty

    def sync(self, inbox: NodeInbox) -> None:
        """Make one copy durable."""
        self.syncer.sync([inbox])


def watch_confirmations(node: "MergeNode", inbox: NodeInbox) -> None:
    """Check what a copy's publisher is told."""
    confirm = inbox.confirm

    def watched(told: Confirmations) -> None:
        node.world.stream.confirms(node.name, inbox.session, told.replicated, told.merged)
        if inbox.session in node.pipes and inbox.session not in node.relayed:
            node.world.stream.demand_own(node.world.publishers[inbox.session], told.merged)
        confirm(told)

    vars(inbox)["confirm"] = watched


def carried_slices(entries: Sequence[Entry]) -> Iterator[Slice]:
    """Yield the slices whose bytes the entries contain."""
    for entry in entries:
        if entry.kind is EntryKind.COMMAND:
            instruction = read_instruction(entry)
            if isinstance(instruction, Merge):
                yield from (each for each in instruction.slices if each.carried)


class Guard:
    """Refuses new data while the disk is full."""

    def __init__(self, node: "MergeNode") -> None:
        self._node = node

    def demand_room(self) -> None:
        """Raise `Refused` while there is no room."""
        if self._node.is_full:
            raise Refused("reserve", "no room")


class MergeNode(SimNode):
    """A node that may die inside any of its duties and restart from its disk."""

    relays = True

    def __init__(self, name: str, world: "MergeCluster", chance: Random) -> None:
        self.world = world
        self.fetches = 0  # fetches of rolled files
        self.rotted = False  # whether its disk was ever damaged; only then may it report damage
        self.rotten_files: set[Position] = set()  # merged, rolled files that were damaged once
        self.has_been_full = False  # whether it was ever full
        self.is_full = False
        # whether its directory was rolled back, and that was not noticed yet
        self.is_older_copy = False
        self.known_end = START  # end of what was merged, in any of its lives
        self._steady_us = self._looked_us = self._unserved_s = 0.0
        self._unserved_ticks = 0
        super().__init__(name, world, chance)

    # Life and death

    def start(self) -> None:
        """Start the process from what the disk holds."""
        self.life += 1
        self.guarded(self.start_duties)

    def start_duties(self) -> None:
        """Start what the node does."""
        world = self.world
        self.disk.fault = world.nemesis.disk_fault(self)
        opened = self._open_journal()
        self.make_engine(opened)
        for each in carried_slices(opened.state.entries):
            world.stream.carries(self.name, each)
        if self.lost or self.is_older_copy:
            self.known_end = world.stream.end
        self.pipes: dict[str, Pipe] = {}
        # until when a publisher of other bytes is refused, by session
        self.refused_until_us: dict[str, int] = {}
        # source of each relayed session
        self.relayed: dict[str, tuple[MergeNode, int, NodeInbox]] = {}
        self.asked: dict[tuple[str, str], None] = {}  # nodes, and the sessions that they lack
        self._mail = Mail()
        self._is_woken = False
        self._due_s = float("inf")
        self.feeds = LogFeeds(
            OUT, lambda: self.view.refusal, lambda: self.view.is_whole,
            lambda: self.member.executor.appender.recent,
        )  # fmt: skip
        self.frames = FrameMemory(bounds=BOUNDS)
        self.guard: Any = Guard(self)
        self.inboxes = SimInboxes(
            self.disk, "in", world.stream_name, self._hold, self.guard,
            alone=lambda: len(world.names) == 1, damaged=self._take_damage, left=world.left(self),
            memory=self.frames,
        )  # fmt: skip
        self.inboxes.node = self
        snapshot = opened.state.snapshot
        ledger = (
            decode_ledger(snapshot.data) if snapshot else Ledger(file_bytes_max=world.file_bytes)
        )
        self.member = self.make_member(opened, ledger)
        self.member.execution.waiting_max = WAITING_MAX
        self.offset_ns = self._chance.randrange(-(10**9), 10**9)
        self.sweeper = SimSweeper(self)
        if snapshot is not None and not self.member.executor.lacks_log:
            world.stream.has(self.name, self.disk, ledger)
            self.sweeper.saved(decode_ledger(snapshot.data).merged_ends)
        self.archiver = make_archiver(self, self.sweeper)
        self.copy: Pull | None = None
        self._unserved_ticks = 0
        self._queued_s: dict[int, float] = {}
        self.compare_all()
        chance, tick_s = Random(self._chance.getrandbits(32)), world.tick_us / 1e6
        self.duties = Duties(
            self.member,
            Dependencies(
                self.inboxes, SimSnapshots(self, opened.journal, chance), self.archiver,
                SessionWatch(self.member, self.inboxes, self.archiver),
                self._copy_log, self._pass_on, self._serve, self._refuse_pullers,
                world.idle_heartbeat_of(self), lambda: self.is_full,
            ),
            world.timing(tick_s),
        )  # fmt: skip
        self.view = self.duties.view()
        self.alive = True
        for words in self.inboxes.open_all(self.proven, ledger.index):
            self.alarm(words)
        if len(world.names) == 1:
            restore_from_journal(self.inboxes, opened.state.entries)
        self.started()
        self.wake()

    def started(self) -> None:
        """Note that the process runs."""

    def proven(self, session: str) -> Position:
        """Return how far merging proves that this node holds a session."""
        is_proof = self.world.merges_own_copies
        return self.member.executor.ledger.merged_to(session) if is_proof else START

    def executing(self) -> AbstractContextManager[None]:
        """Return what surrounds the execution of an instruction."""
        return nullcontext()

    def make_member(self, opened: Opened, ledger: Ledger) -> Member:
        logs = SessionLogs(self.disk, "in", self.inboxes.appender_of)
        claim = begin_start(self.disk, PATH, opened.state, self._chance.randrange(1, NONCE_END))
        others = [name for name in self.world.names if name != self.name]
        restart_check = RestartCheck(
            others, claim, read_memories(self.disk, PATH),
            lambda every: write_memories(self.disk, PATH, every),
        )  # fmt: skip
        member = WatchedMember(
            self.name, self.world.names, engine=WatchedEngine(self),
            journal=WatchedJournal(self, opened.journal), restart_check=restart_check,
            executor=WatchedExecutor(self, ledger, logs),
            planner=Planner(logs, self.inboxes.received, lambda: self.world.may_carry(self)),
            send=self._send, now_ns=self._now_ns,
            readers=Readers(
                lambda: self._serve(self.member.executor.ledger.end),
                lambda: self.life % 2 == 1,  # in every other life there is a reader here
            ),
            hand_over_ticks=HAND_OVER_TICKS,
        )  # fmt: skip
        member.node = self
        if ledger.is_new:
            member.proposals.founding = self.world.founding()
        return member

    def compare_all(self) -> None:
        """Compare what was executed here with the other nodes' logs."""
        executor = self.member.executor
        end = min(executor.appender.end, executor.ledger.end)
        if not executor.is_half_done:
            self.world.stream.knows(self.name, executor.ledger)
        if not self.rotted:
            self.world.stream.compare(self.name, self.disk, START, end)

    def alarm(self, words: str) -> None:
        """Check that something was damaged, as the node reports."""
        self.world.trace(f"{self.name}: {words}")
        if not self.rotted:
            raise Violation(f"{self.name} calls damaged what is not: {words}")

    def suspect(self, damage: CorruptLog) -> None:
        """Fetch a rolled file again in which a copy met damage, as scrubbing does."""
        if self.copy is not None and not self.copy.has_ended:
            log = self.copy.log
            with suppress(Refused):  # no node answers; the damage will be met again
                mend_file(NodeFiles(self), log, log.manifest.rolled[damage.position.file])

    def demand_begun_before(self, session: str) -> None:
        """Check that a copy given up is not of the log after a repeated instruction."""
        if self.inboxes.begun_after(session) > self.member.executor.ledger.index:
            raise Violation(f"{self.name} gives up its copy of the next log of {session}")

    def draws(self, _share: float) -> bool:
        """Whether a connection that fetches a file breaks."""
        return False

    def is_writing_badly(self) -> bool:
        """Whether the disk loses what was just written."""
        return False

    def strike(self, point: str) -> None:
        """Maybe die here."""
        if self.world.nemesis.strikes(point):
            power = self._chance.random() < 0.7
            self.disk.fault = is_dead
            raise PowerCut(point, power)

    def guarded(self, act: Any, *args: object) -> None:
        """Run an event of the process, which may die during it."""
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
        """Do nothing: duties are done in turns."""

    # Events

    def receive(self, source: str, data: bytes) -> None:
        """Handle a member's message."""
        self._mail.heard.append((source, data))
        self.wake()

    def _hold(self, end: Durable, session: str) -> None:
        # rot in a rolled file is found when the file is read
        disk = None if self.rotted else self.disk
        log = self.inboxes.get(session).appender.identity.id  # the lock is held already
        self.world.stream.holds(self.name, disk, session, end, log)
        self._mail.synced[session] = None
        self.wake()

    def _take_damage(self, found: DamageFound) -> None:
        self.alarm(str(found.damage))
        self._mail.damaged.append(found)
        self.wake()

    def order(self, instruction: Instruction) -> None:
        """Accept an order, as the node's shell does; it is proposed in this term or not at all."""
        status = self.raft.status()
        if status.role is EngineRole.LEADER:
            self._mail.orders.append((status.term, instruction))
            self.wake()

    def wake(self) -> None:
        """Schedule a step soon."""
        if not self._is_woken:
            self._is_woken = True
            delay = int(self.disk_delay_us * (0.5 + 3 * self._chance.random()))
            self.world.clock.after(delay, self._turn, self.life)

    def now_s(self) -> float:
        """Return this node's steady clock, as fast or slow as it runs now."""
        now_us = self.world.clock.now_us
        self._steady_us += (now_us - self._looked_us) * self.rate
        self._looked_us = now_us
        return self._steady_us / 1e6

    def _ring(self, life: int, due_s: float) -> None:
        """Step when due, even if no event has come."""
        if life != self.life or due_s != self._due_s:
            return
        left_us = (due_s - self.now_s()) * 1e6 / self.rate
        if left_us > 0:
            self.world.clock.after(int(left_us) + 1, self._ring, life, due_s)
        else:
            self.wake()

    def soon(self, spread: float, act: Callable[[], None]) -> None:
        """Let a thread of this process act, after a random delay."""
        delay = int(self.disk_delay_us * (0.5 + spread * self._chance.random()))
        self.world.clock.after(delay, self._act, self.life, act)

    def _act(self, life: int, act: Callable[[], None]) -> None:
        if life == self.life:
            self.guarded(act)

    def _turn(self, life: int) -> None:
        if life != self.life:
            return
        now = self.world.clock.now_us
        if now < self.paused_until_us:
            self.world.clock.after(self.paused_until_us - now, self._turn, life)
            return
        self.world.stream.sees_clock(paced_ns(self))
        self._is_woken = False
        self.guarded(self.step_duties)

    def step_duties(self) -> None:
        """Let the node's duties take a step."""
        mail, self._mail = self._mail, Mail()
        self.view, due_s = self.duties.step(self.now_s(), mail)
        self._demand_served()
        self._queued_s = {
            each.entry.index: self._queued_s.get(each.entry.index, self.now_s())
            for each in self.member.execution.queue
        }
        if due_s != self._due_s:
            self._due_s = due_s
            self._ring(self.life, due_s)

    def _demand_late(self) -> None:
        """Check that a copy of the merged log is needed: an instruction has waited for long.

        Unless bytes of the merged log itself are missing.
        """
        execution = self.member.execution
        if self.member.executor.lacks_log or not execution.queue:
            return
        index = execution.queue[0].entry.index
        waited_s = self.now_s() - self._queued_s.get(index, self.now_s())
        if waited_s < self.world.missing_us / 1e6:
            raise Violation(f"{self.name} copies, and {index} has waited for {waited_s:.3f} s")

    def _demand_served(self) -> None:
        """Check that what is executed is served within a few ticks, whether or not more follows.

        Unless the log is being copied, or differs from the others'.
        """
        end, is_copying = self.member.executor.ledger.end, self.copy and not self.copy.has_ended
        if self.feeds.end == end or is_copying or self.view.waiting.fork is not None:
            self._unserved_ticks = 0
            return
        tick_s = self.world.tick_us / 1e6
        if not self._unserved_ticks or self._steady_us / 1e6 >= self._unserved_s + tick_s:
            self._unserved_s = self._steady_us / 1e6
            self._unserved_ticks += 1
        if self._unserved_ticks > UNSERVED_TICKS:
            raise Violation(f"{self.name} has executed up to {end}, and serves {self.feeds.end}")

    def stop(self) -> None:
        """Stop cleanly: sync what was received, and save a last snapshot."""
        for inbox in self.inboxes.take_dirty():
            self.inboxes.sync(inbox)
        self.step_duties()
        self.duties.end()
        self.die("told to stop", power=self._chance.random() < 0.5)
        self.world.nemesis.restart_later(self)

    def _send(self, to: str, data: bytes) -> None:
        if data[:1] == HOLDINGS:
            for session, end in decode_report(data[9:])[1].items():
                self.world.stream.reports(self.name, session, end)
        if self.is_older_copy and data[:1] == CONSENSUS:
            raise Violation(f"{self.name} is an older copy of itself, and speaks to {to}")
        self.world.carry(self.name, to, data)

    def _now_ns(self) -> int:
        return BEGIN_NS + self.offset_ns + int(self.world.clock.now_us * 1000 * self.rate)

    # Copies of sessions

    def ship(self, session: str) -> None:
        """Let a publisher's connection carry a little, or be made."""
        if self.world.clock.now_us < self.refused_until_us.get(session, 0):
            return
        pipe = self.pipes.get(session)
        if pipe is not None and pipe.inbox is not self.inboxes.get(session):
            pipe = self.hang_up(session)
        if session in self.relayed:
            publisher = self.world.publishers[session]
            self._ask_to_leave(publisher.identity, publisher.peer, relays=False)
        elif pipe is not None and pipe.inbox.leave:
            self.hang_up(session)
        elif pipe is None:
            self._received(session, lambda: self._connect(session))
        else:
            self._tell_publisher(session, pipe)
            self._received(session, lambda: self._carry(session, pipe))

    def _tell_publisher(self, session: str, pipe: Pipe) -> None:
        """Return a node's confirmations, which must not exceed what holds, to the publisher."""
        ack, publisher = pipe.acked(), self.world.publishers[session]
        if ack is not None and publisher.hear(self.name, ack):
            told = publisher.confirmed
            self.world.stream.confirms(session, session, told.replicated, told.merged)

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
            if self.view.carries and (sessions := self.inboxes.syncer.put_off()) is not None:
                self._mail.received.update(dict.fromkeys(sessions if self.view.leads else ()))
                self.wake()
                delay *= PUT_OFF
            self.world.clock.after(delay, self._sync, self.life)

    def _refuse(self, session: str, error: Exception) -> None:
        self.world.trace(f"{self.name} refuses {session}: {error}")
        if self.world.is_turned_away(error):
            self.hang_up(session)
            return
        source = self.relayed.get(session)
        code = "corrupt" if isinstance(error, CorruptLog) else getattr(error, "code", "")
        is_rotten = source is not None and source[0].rotted
        is_behind = source is not None and code == "behind"
        inbox = self.inboxes.get(session)
        if code == "diverged" and inbox is not None:
            inbox.doubted()
        if code in {"corrupt", "diverged"} and source is not None and source[0].alive:
            source[2].doubted()
        if code == "diverged" and source is None:  # a pusher waits 30 s, in which others may relay
            self.refused_until_us[session] = self.world.clock.now_us + REFUSED_US
        differs = code == "diverged" or isinstance(error, PeerError)
        is_cut = differs and self.world.publishers[session].lives > 0
        if (
            code in {"other-log", "name-taken", "diverged"}
            and session in self.world.stream.begun_again
        ):
            is_cut = (
                True  # before the reset is executed here, or by a node that relays the last log
            )
        if code == "owned" and self.world.leaving.is_contested(session):
            # an heir's before the takeover is executed here, or the last owner's afterwards
            is_cut = True
        if code not in {"reserve", "busy"} and not (is_rotten or is_behind or is_cut):
            self.alarm(f"{session} cannot be received: {error}")
        self.hang_up(session)

    def _connect(self, session: str) -> None:
        self.world.greet(self, session)
        publisher = self.world.publishers[session]
        inbox = self.inboxes.claim(
            publisher.identity, publisher.peer, _NoBell(), self.proven(session)
        )
        try:
            self.pipes[session] = Pipe(publisher.disk, session, inbox)
        except Refused:
            inbox.release()
            raise

    # Relayed sessions

    def _pass_on(self, node: str, session: str) -> None:
        self.asked[node, session] = None

    def pass_on(self) -> None:
        """Let the connections to nodes that lack something carry a little, or be made."""
        for session, (source, life, held) in list(self.relayed.items()):
            is_there = source.life == life and self.world.reaches(source, self)
            if not is_there or source.inboxes.get(session) is not held:
                self.hang_up(session)  # nothing more comes from a copy that was set aside
        for name, session in list(self.asked):
            target = self.world.nodes.get(name)
            if target is None:
                del self.asked[name, session]  # the copy was removed
                continue
            is_there = target.alive and self.world.reaches(self, target)
            if is_there and self.world.clock.now_us >= target.paused_until_us:
                target.guarded(target.take_relayed, session, self)
            if not self.alive or target.relayed.get(session, (None,))[0] is not self:
                self.asked.pop((name, session), None)

    def take_relayed(self, session: str, source: "MergeNode") -> None:
        """Let another node's connection carry a little of a session, or be made."""
        held, pipe = source.inboxes.get(session), self.pipes.get(session)
        if held is None:
            if self.relayed.get(session, (None,))[0] is source:
                self.hang_up(session)
            return
        if pipe is None:
            self.world.trace(f"{source.name} passes {session} on to {self.name}")
            self.relayed[session] = (source, source.life, held)
            self._received(session, lambda: self._connect_relay(session, source, held))
        elif self.relayed.get(session) != (source, source.life, held):
            self._ask_to_leave(held.appender.identity, source.name, relays=True)
        elif pipe.inbox is not self.inboxes.get(session) or pipe.inbox.leave:
            self.hang_up(session)
        elif pipe.is_behind:
            self._received(session, pipe.step)

    def _connect_relay(self, session: str, source: "MergeNode", held: NodeInbox) -> None:
        merged_to = self.proven(session)
        identity, copy = held.appender.identity, held_copy(source.inboxes, session)
        assert copy is not None
        inbox = self.inboxes.claim(identity, source.name, _NoBell(), merged_to, relays=True)

        def end() -> Position:
            durable = copy.durable()
            disk = None if source.rotted else source.disk
            log = held.appender.identity.id
            self.world.stream.holds(source.name, disk, session, durable, log)
            return durable

        try:
            self.pipes[session] = Pipe(source.disk, copy.directory, inbox, end)
        except Refused:
            inbox.release()
            raise

    def _ask_to_leave(self, identity: LogIdentity, peer: str, *, relays: bool) -> None:
        """Ask the connection that fills a session to leave, since another one came.

        If it fills a copy that was set aside meanwhile there is none; the newcomer tries again.
        """
        try:
            self.inboxes.claim(identity, peer, _NoBell(), START, relays=relays).release()
        except Refused as error:
            is_heirs = error.code == "owned" and self.world.leaving.is_contested(identity.name)
            if (
                error.code not in {"busy", "reserve", "diverged", "other-log", "name-taken"}
                and not is_heirs
            ):
                raise

    def has_all_of(self, publisher: Publisher) -> bool:
        """Whether a connection has carried everything there is."""
        pipe = self.pipes.get(publisher.name)
        return (
            pipe is not None
            and pipe.seen == publisher.news
            and pipe.inbox is self.inboxes.get(publisher.name)
        )

    def lose_publisher(self, session: str) -> None:
        """Close a publisher's connection, if there is one."""
        if session not in self.relayed:
            self.hang_up(session)

    def hang_up(self, session: str) -> None:
        """Close the connection that brings a session."""
        self.relayed.pop(session, None)
        pipe = self.pipes.pop(session, None)
        if pipe is not None:
            pipe.inbox.release()
            pipe.close()

    def _sync(self, life: int) -> None:
        if life == self.life:
            for inbox in self.inboxes.take_dirty():
                if life == self.life:
                    self.guarded(self.inboxes.sync, inbox)

    # Interfaces used by the duties

    def _copy_log(self, begin: Position) -> Pull:
        self.world.trace(f"{self.name} copies from {begin}")
        self._demand_late()
        self.copy = Pull(self, self._chance, begin)
        self.world.clock.after(self.world.copying_us, self._pull, self.life, self.copy)
        return self.copy

    def _pull(self, life: int, copy: Pull) -> None:
        if life == self.life and not copy.has_ended:
            delay = int(self.world.copying_us * (0.5 + self._chance.random()))
            self.world.clock.after(delay, self._pull, life, copy)
            if self.world.clock.now_us >= self.paused_until_us:
                self.guarded(copy.step)

    def _refuse_pullers(self, why: Refused) -> None:
        raise Violation(f"{self.name}: {why}")

    def _serve(self, end: Position) -> None:
        self.feeds.grown(end)

    @property
    def merged_end(self) -> Position:
        """Return up to where it serves the merged log."""
        return self.feeds.end

    @property
    def copied_end(self) -> Position:
        """Return up to where it has copied another node's merged log; `START` if it does not."""
        copy = self.copy
        return START if copy is None or copy.has_ended else copy.log.next_place

    def feed_pipe(self, copy: Inbox, *, relays: bool) -> Pipe:
        """Connect a copy of the merged log, of a node or another reader; errors as for `Pipe`."""
        feed = self.feeds.open(_NoBell(), relays=relays)
        feed.release()  # the bell wakes no thread
        return Pipe(
            self.disk, OUT, copy, feed.end, damaged=feed.damaged, is_whole=feed.is_whole,
            recent=feed.recent,
        )  # fmt: skip

    def knows(self, ledger: Ledger) -> None:
        """Observe a state that this node has merged, or taken over."""
        self.known_end = max(self.known_end, ledger.end)

    def caught_up(self, peer: "MergeNode", end: Position) -> None:
        """Note that another node has no more to copy from, complete or not."""

    def demand_complete(self, end: Position) -> None:
        """Check that a puller which this node calls complete ends here: nothing may follow.

        What may follow is what it once had merged, what others had when its disk or state was lost,
        and what it knows to be committed. A follower that is cut off knows no more.
        """
        committed = self.world.stream.merged_at(self.raft.core.commit)
        if end < (known := max(self.known_end, committed)):
            raise Violation(f"{self.name} calls a copy complete up to {end}, and knows of {known}")

    def demand_little_memory(self) -> None:
        """Check that the frames in memory are within their bounds, and of logs that are open."""
        logs = [self.member.executor.appender, *(each.appender for each in self.inboxes.every())]
        sizes = [each.recent.size for each in logs if each.recent is not None]
        if max(sizes) > BOUNDS.log or sum(sizes) > BOUNDS.all:
            raise Violation(f"{self.name} keeps {sizes} bytes of frames in memory")
        if sum(sizes) != self.frames.held:
            raise Violation(f"{self.name} counts {self.frames.held} bytes of frames, not {sizes}")

    def known_damage(self) -> set[str]:
        """Return the merged files known to be damaged, which must not be served."""
        return set()

    def demand_unserved(self, step: Callable[[], bool]) -> bool:
        """Let a connection carry a piece from here; fail if it has known damage."""
        pipe = step.__self__  # type: ignore[attr-defined]
        before = pipe.position
        more = step()
        is_sent = pipe.position.file == before.file and pipe.position > before
        is_gone = before.file in self.member.executor.appender.manifest.archived
        is_known = f"{OUT}/{before.file.file_name}" in self.known_damage()
        if is_sent and is_known and not is_gone:
            raise Violation(f"{self.name} serves {before}, which it knows to be damaged")
        return more

    # End of the run

    def settled(self) -> bool:
        """Whether this node's own, durable log says that it is committed as a voter."""
        status = self.raft.status()
        decided = status.commit >= self.raft.core.roster.changed_at
        return decided and status.role is not EngineRole.LEARNER and status.durable == status.last

    def may_decide(self) -> bool:
        """Whether it takes part in consensus: its disk has room, and its start is confirmed."""
        return super().may_decide() and not self.is_full and self.member.restart_check.is_over

    def is_idle(self) -> bool:
        """Whether it leads, in its own term, and nothing is uncommitted."""
        core = self.raft.core
        is_decided = core.commit == core.log.last and core.log.term_at(core.commit) == core.term
        return self.raft.leads and is_decided

    def has_all(self, index: int) -> bool:
        """Whether it has executed everything and is in the expected state."""
        executor = self.member.executor
        ledger = executor.ledger
        idle = not (self.member.execution.suspended or executor.lacks_log or executor.is_half_done)
        is_swept = self.sweeper.emptied_to >= ledger.archived_to
        return self.alive and idle and is_swept and ledger.index == index and self.settled()

    @property
    def manifest(self) -> Manifest:
        """Return the manifest of its merged log."""
        return self.member.executor.appender.manifest

    @property
    def news(self) -> tuple[int, Position, Position]:
        """Return a value that changes when there is more to copy from here."""
        executor = self.member.executor
        return len(executor.appender.manifest.archived), self.merged_end, executor.appender.end


class _NoBell:
    def set(self) -> None:
        """Do nothing: no thread waits."""
