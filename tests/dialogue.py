"""A source and a sink connected by a pipe in memory, which a test cuts, alters and repeats."""

import os
import time
from pathlib import Path
from types import SimpleNamespace

from logs import TIME_NS, make_frame
from replicator_host import log_bytes, manifest_lines

from replicator.sink.ack_schedule import AckSchedule
from replicator.sink.connection import SinkConnection
from replicator.source.connection import SourceConnection
from replicator.wire.decoder import Decoder
from replicator.wire.link import HungUp
from rt.errors import Refused
from rt.format.manifest import SESSION, Archived, LogIdentity
from rt.format.recovery import Clean, Gone, judge
from rt.format.walk import Walk
from rt.log.files.directory import LogDirectory
from rt.log.files.disk import OsDisk, OsFile
from rt.log.notify.confirmations import Confirmations
from rt.log.write.appender import Appender
from rt.position import START, Position
from rt.traffic import Traffic

SESSION_ID = LogIdentity(SESSION, "flights", "jfk", "a" * 32, 1)


class FastFile(OsFile):
    """A file whose sync does nothing, since these tests break connections and not disks."""

    __slots__ = ()

    def sync(self):
        pass


class FastDisk(OsDisk):
    """A disk whose files are not synced, for thousands of dialogues a minute."""

    def open(self, path, *, create=False):
        flags = os.O_RDWR | (os.O_CREAT if create else 0)
        return FastFile(os.open(path, flags, 0o600))

    def make_directory(self, path):
        os.makedirs(path, exist_ok=True)


DISK = FastDisk()


class Log:
    """A session's log, written frame by frame."""

    def __init__(self, directory, identity=SESSION_ID):
        self.directory = str(directory)
        self.appender = Appender(DISK, self.directory, identity)
        self.appender.recover()
        self.sequence = self.appender.next_number
        self.salt = 0  # varies the messages' contents
        self.time_ns = TIME_NS

    def write(self, *sizes):
        """Append a frame for each size, of one message of that many bytes."""
        for size in sizes:
            if not self.appender.is_open:
                begun = bool(self.appender.manifest.order)
                self.appender.begin_file(self.appender.end.next_file() if begun else START)
            payload = bytes([(self.sequence + self.salt) % 251]) * size
            frame = make_frame(
                self.appender.end, [payload], sequence=self.sequence, time_ns=self.time_ns
            )
            after = self.appender.walk.copy()
            after.step(frame.header)
            self.appender.append(frame.parts, [frame.header], after)
            self.sequence += 1
        return self

    def roll(self):
        """Roll the file."""
        self.appender.roll(7)
        return self

    def run(self):
        """Begin the next run."""
        self.appender.begin_file(self.appender.end.next_run())
        return self

    def archive(self, file):
        """Archive a file."""
        self.appender.archive(Archived(Position.parse(file), 9, "time"))
        return self


class Inbox:
    """A copy on the sink's side; each turn makes durable what has arrived."""

    needed = False

    def __init__(self, directory, identity, bell):
        self.appender = Appender(DISK, str(directory), identity)
        self.appender.recover()
        if self.appender.identity.id != identity.id:
            self.appender.close()
            raise Refused("other-log", "another log has this name")
        self.bell, self.traffic = bell, Traffic()
        self.kept, self.leave = False, None
        self.merged = START

    def written(self):
        self.bell.set()

    @property
    def confirmations(self):
        return Confirmations(received=self.appender.sync(), merged=self.merged)

    def keeps(self, _entry):
        return self.kept

    def needs(self, _end):
        return self.needed

    def doubted(self, _why):
        pass

    def release(self):
        self.appender.close()


class NoWake:
    """A fake of a wake-up, which only counts how often it was set."""

    sets = 0

    def set(self):
        self.sets += 1


class Pipe:
    """One end of a connection in memory; it breaks after `room` bytes."""

    name = "peer"
    memory = None

    def __init__(self, room=None):
        self.other = None
        self.room = room
        self.came = bytearray()
        self.total = 0
        self.decoder = Decoder()
        self.bend = bytes

    def charge(self, messages):
        pass

    def take_no_frames(self):
        self.decoder.from_sink = True

    def send(self, data):
        data = self.bend(data)
        self.total += len(data)
        through = data if self.room is None else data[: self.room]
        self.other.came += through
        if self.room is not None:
            self.room -= len(through)
        if len(through) < len(data):
            raise HungUp("cut")

    has_left = False
    post = send

    def receive(self, _most=0, *, last_acks=False):
        decoder = self.decoder
        while True:
            while (message := decoder.next()) is not None:
                yield message  # if the receiver stops early, it gets the rest next time
            if not self.came:
                return
            space = decoder.space()
            count = min(len(space), len(self.came))
            space[:count] = self.came[:count]
            del self.came[:count]
            decoder.end += count

    def beat(self):
        pass


class Dialogue:
    """A source and a sink with their pipe between them."""

    def __init__(
        self, source, sink, *, source_room=None, sink_room=None, end=None, patience_s=0.0,
        rank=None, later_s=None, start="", clock=time.monotonic, handle_appends=lambda: None,
        needed=False,
    ):  # fmt: skip
        self.source_pipe, self.sink_pipe = Pipe(source_room), Pipe(sink_room)
        self.source_pipe.other, self.sink_pipe.other = self.sink_pipe, self.source_pipe
        self.log = LogDirectory(str(source), DISK)
        self.log.refresh()
        self.sink_directory, self.refusals, self.acks, self.caught_up = sink, [], [], []
        self.source = SourceConnection(
            self.source_pipe,
            acked=lambda _outlet, ack: self.acks.append(ack),
            refused=lambda _outlet, why: self.refusals.append(("source", why.code, str(why))),
        )
        self.schedule = AckSchedule(NoWake(), patience_s, rank, later_s=later_s, clock=clock)
        self.loop = SimpleNamespace(is_own_thread=True)
        self.sink = SinkConnection(
            self.sink_pipe, self.schedule, self.claim, handle_appends=handle_appends,
            caught_up=self.caught_up.append,
            refused=lambda why: self.refusals.append(("sink", why.code, str(why))), start=start,
            loop=self.loop,
        )  # fmt: skip
        self.inbox, self.outlet, self.end, self.needed = None, None, end, needed

    def claim(self, identity, bell):
        self.inbox = Inbox(self.sink_directory, identity, bell)
        self.inbox.needed = self.needed
        return self.inbox

    def talk(self, turns=60):
        """Let source and sink take turns until neither has anything to send, or the pipe breaks."""
        try:
            self.outlet = self.outlet or self.source.open(self.log, self.end)
            for _ in range(turns):
                self.source.mark(self.outlet)
                self.source.turn()
                self.take()
                if not (self.source.busy or self.source_pipe.came or self.sink_pipe.came):
                    break
        except HungUp:
            with_the_rest(self.source.turn)
            with_the_rest(self.take)
        return self

    def take(self):
        """Let the sink process what has come, and do the disk work that it leaves to a thread."""
        self.sink.turn()
        while self.sink.aside is not None:
            self.sink.take_aside()
            self.sink.turn()

    def close(self):
        self.source.close()
        self.sink.close()
        self.log.close()
        return self


def with_the_rest(turn):
    """Let the source or the sink process what had arrived before the connection was cut."""
    try:
        turn()
    except HungUp:
        return


def copy_all(source, sink, **rooms):
    """Let a source and a sink talk once, to the end."""
    return Dialogue(source, sink, **rooms).talk().close()


def written(directory, first, second, active):
    """Write a run of two files, and a second run that is active, with messages of these sizes."""
    log = Log(directory).write(*first).roll().write(*second).roll()
    log.run().write(*active)
    return Path(log.directory)


def cut_everywhere(top, step):
    """Cut a dialogue at every `step`th byte of either side, then let it go on; return how often.

    The payloads are short: what a cut does is decided by frames and messages, not by their bodies.
    """
    source = written(top / "short", (40, 1, 20), (30, 8), (20, 64, 50))
    whole = copy_all(source, top / "whole")
    sides = {"source_room": whole.source_pipe.total, "sink_room": whole.sink_pipe.total}
    assert sides["source_room"] > 1024
    target = top / "cut"
    target.mkdir()
    cuts = [(side, room) for side, total in sides.items() for room in range(0, total, step)]
    for side, room in cuts:
        dialogue = copy_all(source, target, **{side: room})
        if os.listdir(target):
            assert_prefix(source, target)
            ends = Inbox(target, SESSION_ID, NoWake())
            assert all(ack.durable <= ends.appender.end for ack in dialogue.acks)
            ends.release()
        copy_all(source, target)
        assert_equal(source, target)
        for path in target.iterdir():  # removing the directory too takes twice the time
            path.unlink()
    return len(cuts)


def assert_equal(source, sink):
    """Assert that source and sink have the same files and the same history."""
    assert log_bytes(sink) == log_bytes(source)
    assert manifest_lines(sink) == manifest_lines(source)


def assert_prefix(source, sink):
    """Assert that the sink holds whole frames of the source, and nothing else."""
    theirs = log_bytes(source)
    for name, data in log_bytes(sink).items():
        assert theirs[name].startswith(data)
        start = Position.parse(f"{name.removeprefix('log.')}.0")
        walk = Walk(start, merged=False)
        verdict = judge(lambda n, at, data=data: data[at : at + n], len(data), walk)
        assert isinstance(verdict, Clean | Gone)
