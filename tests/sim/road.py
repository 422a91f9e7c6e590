"""The road of one message: three quiet nodes, without sockets or threads, and what it calls.

    python -m tests.sim.road [names]

prints the distinct functions, the calls and the processor time of a lone message in the leader and
in a follower, over everything that decides: sink channel, duties, engine, planner, executor, feed.
"""

import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from random import Random
from types import FrameType
from typing import Any

from replicator.serve.feeds import LogFeeds
from replicator.sink.channel import SinkChannel
from replicator.source.channel import SourceChannel
from replicator.wire.decoder import Decoder
from replicator.wire.frame_buffer import FrameBuffer
from replicator.wire.messages import Data
from rt.format.columns import encode_columns
from rt.format.frame import encode_frame, session_tag
from rt.format.manifest import SESSION as SESSION_LOG
from rt.format.manifest import LogIdentity
from rt.log.files.directory import LogDirectory
from rt.log.write.appender import Appender
from rt.log.write.recent_frames import FrameMemory
from rt.node.agree.dependencies import Dependencies
from rt.node.agree.duties import Duties, Mail, Timing
from rt.node.ingest.inboxes import Inboxes
from rt.node.retain.retention import Machine, Retention
from rt.node.retain.snapshots import NodeSnapshots
from rt.node.retain.sweep import Sweep
from rt.node.retain.sweeper import NodeSweeper
from rt.node.sessions.watch import SessionWatch
from rt.node.settings.node import NodeSettings
from rt.position import START
from sequencer.execution.execution import Readers
from sequencer.execution.executor import Executor
from sequencer.journal.journal import found, open_journal
from sequencer.journal.starts import begin_start, read_memories, write_memories
from sequencer.ledger.ledger import Ledger
from sequencer.member import Member
from sequencer.peers.notes import is_commit_note, is_plain_success
from sequencer.peers.restart_check import RestartCheck
from sequencer.planning.planner import Planner
from sequencer.planning.session_log import SessionLogs
from sequencer.raft.engine import Raft

from .copying import IDENTITY
from .disk import SimDisk
from .idle_heartbeat import NoIdleHeartbeat
from .publisher import STREAM
from .stream import OUT

ROOT = str(Path(__file__).parents[2])
NAMES = ("n1", "n2", "n3")
TICK_S = 0.02
SESSION = "jfk"
MESSAGES = 100
_STATE = "state"
# functions called by fewer than half of the messages belong to a tick or a growing file
_USUAL = 0.5


class Calls:
    """Counts the calls of one node's own functions, and its processor time."""

    def __init__(self) -> None:
        self.each = Counter[str]()
        self.cpu_ns = 0

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Count the calls in the block."""
        sys.setprofile(self._take)
        try:
            yield
        finally:
            sys.setprofile(None)

    def _take(self, frame: FrameType, event: str, _arg: object) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(ROOT):
            path = code.co_filename[len(ROOT) + 1 :]
            if path.startswith(("rt/", "sequencer/", "replicator/")):
                self.each[f"{path}:{code.co_firstlineno} {code.co_qualname}"] += 1

    def touched(self, messages: int) -> dict[str, float]:
        """Return the functions that most of these messages called, and how often each did."""
        every = {name: count / messages for name, count in self.each.items()}
        return {name: each for name, each in every.items() if each >= _USUAL}

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Measure the processor time of the block."""
        begin_ns = time.thread_time_ns()
        try:
            yield
        finally:
            self.cpu_ns += time.thread_time_ns() - begin_ns


class LonePublisher:
    """Appends messages of 100 bytes to one file, each in a frame of its own."""

    def __init__(self) -> None:
        self.disk = SimDisk(Random(1))
        identity = LogIdentity(SESSION_LOG, STREAM, SESSION, "5" * 32, 0, "")
        self.log = Appender(self.disk, SESSION, identity)
        self.log.begin_file(START)
        self._sequence = 0

    def publish(self) -> None:
        """Append a message."""
        log, number = self.log, self._sequence
        body = encode_columns([1_000 * number], [b"." * 100], None, None)
        frame = encode_frame(
            body, position=log.end, sequence=number, time_ns=1_000 * number, messages=1,
            durable=log.end, session_tag=session_tag(SESSION),
        )  # fmt: skip
        after = log.walk.copy()
        after.step(frame.header)
        log.append(frame.parts, (frame.header,), after)
        log.sync()
        self._sequence += 1


class Push:
    """A connection that fills a node's copy: what is sent arrives at once."""

    def __init__(self, publisher: LonePublisher, inbox: Any) -> None:
        log = LogDirectory(SESSION, publisher.disk)
        log.refresh()
        self.sink = SinkChannel(0, inbox)
        self._source = SourceChannel(0, log)
        self._source.begin(self.sink.standing())
        self._buffer, self._decoder = FrameBuffer(1 << 16), Decoder()

    def sent(self) -> list[Data]:
        """Return what the publisher sends."""
        parts: list[bytes] = []
        self._source.pump(lambda data: parts.append(bytes(data)), self._buffer)
        every = (message for part in parts for message in self._decoder.feed(part))
        return [message for message in every if isinstance(message, Data)]


class Reader:
    """A subscriber's connection, seen from the node."""

    def __init__(self, node: "RoadNode") -> None:
        room: Any = Room()
        feed = node.feeds.open(room)
        log = LogDirectory(OUT, node.disk)
        log.refresh()
        self._source = SourceChannel(0, log, feed.end, recent=feed.recent)
        copy: Any = Inbox(Appender(SimDisk(Random(2)), OUT, IDENTITY))
        self._source.begin(SinkChannel(0, copy, "").standing())
        self._buffer = FrameBuffer(1 << 16)
        self.bytes = 0

    def step(self) -> None:
        """Send what there is: at once if it is little, as a node does."""
        if not self._source.send_little(self._send, self._buffer):
            while self._source.pump(self._send, self._buffer):
                pass

    def _send(self, data: Any) -> None:
        self.bytes += len(data)


class Inbox:
    """An empty copy."""

    def __init__(self, appender: Appender) -> None:
        self.appender = appender


class Room:
    """A disk with room, and a bell that wakes no thread."""

    def demand_room(self) -> None:
        """Do nothing: there is room."""

    def set(self) -> None:
        """Wake no thread."""


class RoadNode:
    """A node without sockets or threads, on a disk in memory: everything that decides."""

    def __init__(self, name: str, road: "Road") -> None:
        self.name, self._road = name, road
        self.calls = Calls()
        chance = Random(name)
        self.disk = disk = SimDisk(chance)
        room: Any = Room()
        found(disk, _STATE, cluster="road", node=name, directory=1)
        opened = open_journal(
            disk, _STATE, cluster="road", node=name, fresh=chance.getrandbits(60) + 1,
            boot="boot",
        )  # fmt: skip
        raft = Raft(name, NAMES, cluster="road", chance=chance, state=opened.state)
        claim = begin_start(disk, _STATE, opened.state, chance.randrange(1, 1 << 60))
        restart_check = RestartCheck(
            [each for each in NAMES if each != name], claim, read_memories(disk, _STATE),
            lambda every: write_memories(disk, _STATE, every),
        )  # fmt: skip
        self._mail, self._due_s = Mail(), 0.0
        memory = FrameMemory()
        self.inboxes = Inboxes(
            disk, "in", STREAM, self._hold, room, alone=lambda: False, memory=memory
        )
        logs = SessionLogs(disk, "in", self.inboxes.appender_of)
        received = self.inboxes.received
        executor = Executor(
            disk, OUT, IDENTITY, Ledger(), logs, received=received, alone=False, memory=memory
        )
        self.feeds = LogFeeds(OUT, recent=lambda: executor.appender.recent)
        self.member = Member(
            name, NAMES, engine=raft, journal=opened.journal, restart_check=restart_check,
            executor=executor, planner=Planner(logs, received, lambda: True),
            send=lambda to, data: road.sent.append((name, to, data)),
            now_ns=lambda: int(road.now_s * 1e9),
            readers=Readers(
                lambda: self.feeds.begin(executor.ledger.end), lambda: self.feeds.has_readers
            ),
        )  # fmt: skip
        sweeper = NodeSweeper(Sweep(disk, self.inboxes, fold_s=60))
        machine = Machine(
            lambda: int(road.now_s * 1e9), lambda: int(road.now_s * 1e9), lambda _: (100, 1, 99)
        )
        retention = Retention(NodeSettings(name=name), self.member, sweeper, machine)
        snapshots = NodeSnapshots(
            self.member,
            opened.journal,
            sweeper,
            retention,
            flush=self.inboxes.flush,
            pool=self.inboxes.syncer.pool,
            pause_s=1e9,
        )
        watch = SessionWatch(self.member, self.inboxes, retention)
        self._duties = Duties(
            self.member,
            Dependencies(
                self.inboxes, snapshots, retention, watch, _refuse, _refuse, self._serve, _refuse,
                NoIdleHeartbeat(), lambda: False,
            ),
            Timing(TICK_S, 10.0, 0.25, 20, easy_ticks=5),
        )  # fmt: skip
        self.view = self._duties.view()
        self._push: Push | None = None
        self.reader: Reader | None = None

    def _hold(self, _end: object, session: str) -> None:
        self._mail.synced[session] = None

    def _serve(self, end: Any) -> None:
        if end != self.feeds.end:
            self.feeds.grown(end)
        else:
            self.feeds.go_on()

    def connect(self, publisher: LonePublisher) -> None:
        """Let a publisher push to this node."""
        room: Any = Room()
        inbox = self.inboxes.claim(publisher.log.identity, "p", room, START)
        self._push = Push(publisher, inbox)

    def take(self) -> None:
        """Take what the publisher has, as a connection does, and confirm what is possible."""
        assert self._push is not None
        for message in self._push.sent():
            with self._road.watching(self):
                self._push.sink.take_data(message)
                self._settle()

    def _settle(self) -> None:
        view = self.view
        if view.carries and (sessions := self.inboxes.syncer.put_off()) is not None:
            if view.leads and sessions:
                self._mail.received.update(dict.fromkeys(sessions))
                self.step()
        elif self.inboxes.syncer.sync_if_small():
            self.step()

    def hear(self, sender: str, data: bytes) -> None:
        """Handle another node's message, and what follows unless it can wait, as in a node."""
        self._mail.heard.append((sender, data))
        if is_commit_note(data) and not self.feeds.has_readers:
            return
        is_late = self.view.leads and is_plain_success(data) and not self.view.is_executing
        if not is_late:
            with self._road.watching(self):
                self.step()

    def step(self) -> None:
        """Do the duties once."""
        mail, self._mail = self._mail, Mail()
        self.view, self._due_s = self._duties.step(self._road.now_s, mail)

    def tick(self) -> None:
        """Step if it is time."""
        if self._road.now_s >= self._due_s or self._mail:
            with self._road.watching(self):
                self.step()

    def answer(self) -> None:
        """Serve a reader, and send new confirmations to the publisher."""
        assert self._push is not None
        with self._road.watching(self):
            if self.reader is not None:
                self.reader.step()
            self._push.sink.news()


def _refuse(*_: object) -> Any:
    raise AssertionError("a quiet node does this")


class Road:
    """Three nodes, one publisher, one reader of the leader, and messages one at a time."""

    def __init__(self) -> None:
        self.now_s = 1.0
        self.sent: deque[tuple[str, str, bytes]] = deque()
        self._watch: Watch | None = None
        self.nodes = {name: RoadNode(name, self) for name in NAMES}
        self.publisher = LonePublisher()
        for node in self.nodes.values():
            node.step()
        self._pass(3.0)
        self.leader = next(node for node in self.nodes.values() if node.view.leads)
        self.follower = next(node for node in self.nodes.values() if not node.view.leads)
        for node in self.nodes.values():
            node.connect(self.publisher)
        self.messages(1)
        self._pass(5.0)
        self.leader.reader = Reader(self.leader)
        self.messages(5)

    @contextmanager
    def watching(self, node: RoadNode) -> Iterator[None]:
        """Watch what a node does, if this is being measured."""
        if self._watch is None:
            yield
            return
        with self._watch(node):
            yield

    def _pass(self, seconds: float) -> None:
        """Let time pass, tick by tick."""
        end_s = self.now_s + seconds
        while self.now_s < end_s:
            self.now_s += TICK_S
            for node in self.nodes.values():
                node.tick()
            self.deliver()

    def deliver(self) -> None:
        while self.sent:
            sender, to, data = self.sent.popleft()
            self.nodes[to].hear(sender, data)

    def messages(self, count: int, watch: "Watch | None" = None) -> None:
        """Publish messages 5 ms apart, each merged before the next; watch what they cause.

        The nodes' ticks come between them, and are not watched.
        """
        for number in range(count):
            self.publisher.publish()
            self._watch = watch
            for node in self.nodes.values():
                node.take()
            self.deliver()
            for node in self.nodes.values():
                node.answer()
            self._watch = None
            merged = self.leader.member.executor.ledger.merged_to(SESSION)
            self.now_s += TICK_S / 4
            if number % 4 == 3 or merged != self.publisher.log.end:
                self._pass(0)
                for node in self.nodes.values():
                    node.tick()
                self.deliver()


Watch = Callable[[RoadNode], AbstractContextManager[None]]


def counted(road: Road, messages: int = MESSAGES) -> None:
    """Count what messages call in each node."""
    road.messages(messages, lambda node: node.calls.counted())


def main(arguments: list[str]) -> None:
    """Print the figures, and with `names` the functions as well."""
    road = Road()
    counted(road)
    road.messages(20 * MESSAGES, lambda node: node.calls.timed())
    for role, node in (("leader", road.leader), ("follower", road.follower)):
        touched = node.calls.touched(MESSAGES)
        modules = {name.split(":")[0] for name in touched}
        cpu_us = node.calls.cpu_ns / 20 / MESSAGES / 1000
        print(
            f"{role}: {len(touched)} functions of {len(modules)} modules, "
            f"{node.calls.each.total() / MESSAGES:.0f} calls, {cpu_us:.0f} us of processor time"
        )
        for name in sorted(touched) if arguments else ():
            print(f"  {touched[name]:6.2f}  {name}")


if __name__ == "__main__":
    main(sys.argv[1:])
