"""Simulated publishers: real frames in real logs, and pipes that carry the logs to copies.

Both ends of a pipe are the replicator's own (`SourceChannel`, `SinkChannel`); only the connection
between them is simulated: what is sent arrives at once and whole, or the connection ends.
"""

from collections.abc import Callable
from random import Random
from typing import Any, Final
from zlib import crc32

from replicator.host import Inbox
from replicator.push import progress
from replicator.sink.channel import SinkChannel
from replicator.source.channel import Recent, SourceChannel
from replicator.wire.decoder import Decoder
from replicator.wire.frame_buffer import FrameBuffer
from replicator.wire.messages import Ack, ArchivedNotice, CaughtUpNotice, Data, RolledNotice
from rt.format.columns import encode_columns
from rt.format.frame import HEADERS_COLUMN, encode_frame, session_tag
from rt.format.headers import encode_headers
from rt.format.manifest import SESSION, LogIdentity
from rt.format.manifest import Archived as ArchivedLine
from rt.log.files.damaged_files import DamagedFiles
from rt.log.files.directory import LogDirectory
from rt.log.files.disk import Disk
from rt.log.notify.confirmations import Confirmations
from rt.log.write.appender import Appender
from rt.position import START, Position

from .disk import SimDisk

STREAM = "flights"
SESSIONS = {"jfk": "", "lga": "", "red": "pair", "blue": "pair"}  # sessions, each with its group
FILE_BYTES = 1_500
_PIECE_BYTES = 1_000  # bytes carried at once: any of our frames, or a few of them


def payload(source: str, sequence: int) -> bytes:
    """Return the message that a session, or every session of a group, has under a number."""
    return b"%s %d " % (source.encode(), sequence) + b"." * (sequence * 7 % 40)


def headers(session: str, sequence: int) -> dict[str, bytes]:
    """Return a message's headers in worlds that have any; sessions of a group have their own."""
    return {"of": session.encode(), "number": b"%d" % sequence} if sequence % 3 else {}


def source_of(stream: str, session: str) -> str:
    """Return what the payloads of a session, or of its group, begin with."""
    source = SESSIONS[session] or session
    return source if stream == STREAM else f"{stream}/{source}"


FIRST_PEER: Final = "p"


class Publisher:
    """One session: numbered messages in frames, files that roll, runs that end."""

    def __init__(
        self, name: str, chance: Random, disk: SimDisk | None = None, stream: str = STREAM
    ) -> None:
        self.name, self.group = name, SESSIONS[name]
        self._source = source_of(stream, name)
        self._chance = chance
        self.disk = disk or SimDisk(chance)
        tag = crc32(name.encode() if stream == STREAM else f"{stream}/{name}".encode())
        identity = LogIdentity(SESSION, stream, name, f"{tag:032x}", 0, self.group)
        self.log = Appender(self.disk, name, identity)
        self._backup = self.disk.backed_up()
        self._next_file = START
        self._sequence = 0
        self.alive = True
        self.has_headers = False
        self.peer = FIRST_PEER  # the name in its certificate
        self.confirmed = Confirmations()
        self._reached: dict[str, progress.NodeReached] = {}
        self.news = 0  # how often there was something new to send
        self.lives = 0  # how often it lost what it had sent
        # frames of the active file, and the next numbers
        self._frames: list[tuple[Position, int]] = []

    @property
    def end(self) -> Position:
        """Return up to where it has published, durably."""
        return self.log.end

    def last_byte(self, end: Position) -> Position:
        """Return the end of the bytes before `end`; a new file may hold none."""
        if end.offset:
            return end
        rolled = self.log.manifest.rolled.values()
        ends = (Position(line.file + line.end) for line in rolled if line.file < end)
        return max(ends, default=START)

    @property
    def identity(self) -> LogIdentity:
        """Return the identity of its log."""
        return self.log.identity

    def hear(self, node: str, ack: Ack) -> bool:
        """Record what a node confirmed, as a pusher does; return whether it says anything new."""
        self._reached[node] = self._reached.get(node, progress.NodeReached()).after(ack)
        known = self.confirmed
        self.confirmed = progress.merged_confirmations(known, ack)
        return self.confirmed != known

    def publish(self) -> None:
        """Append a frame."""
        self.news += 1
        log, count = self.log, self._chance.randint(1, 4)
        if not log.is_open:
            log.begin_file(self._next_file)
        numbers = range(self._sequence, self._sequence + count)
        cells = [encode_headers(headers(self.name, number)) for number in numbers]
        has_headers = self.has_headers and any(cells)
        body = encode_columns(
            [self._time_ns(number) for number in numbers],
            [payload(self._source, number) for number in numbers],
            None,
            cells if has_headers else None,
        )
        frame = encode_frame(
            body, position=log.end, sequence=self._sequence, time_ns=self._time_ns(self._sequence),
            messages=count, durable=log.end, session_tag=session_tag(self.name),
            columns=HEADERS_COLUMN * has_headers,
        )  # fmt: skip
        after = log.walk.copy()
        after.step(frame.header)
        self._frames.append((log.end, self._sequence))
        log.append(frame.parts, (frame.header,), after)
        log.sync()
        self._sequence += count
        if log.end.offset > FILE_BYTES or self._chance.random() < 0.04:
            self.roll_file(is_new_run=self._chance.random() < 0.2)

    def _time_ns(self, number: int) -> int:
        """Return when a message is published: no life repeats the times of another."""
        return 1_000 * number + self.lives

    def roll_file(self, *, is_new_run: bool = False) -> None:
        following = self.log.end.next_run() if is_new_run else self.log.end.next_file()
        self.log.roll(self._time_ns(self._sequence))
        self._next_file = following
        self._frames.clear()

    def begin_again(self) -> str:
        """Begin another log under the same name; return the id of the lost one."""
        last = self.identity.id
        self.news += 1
        self.disk = SimDisk(self._chance)
        tag = crc32(f"{self.name} after {last}".encode())
        identity = self.identity._replace(id=f"{tag:032x}")
        self.log = Appender(self.disk, self.name, identity)
        self._next_file, self._sequence, self.confirmed = START, 0, Confirmations()
        self._frames.clear()
        self._reached.clear()
        return last

    def lose_unsynced(self) -> None:
        """Lose some of the last frames in a power cut, and continue with other bytes.

        The nodes may have received the lost ones. The next life writes in their place if the file
        was new, or if the publisher is hostile; otherwise it begins the next run.
        """
        if not self._frames:
            return
        self.news += 1
        self.lives += 1
        self._reached.clear()
        place = self._chance.randrange(len(self._frames))
        end, self._sequence = self._frames[place]
        del self._frames[place:]
        self.log.cut(end)
        if end.offset and self._chance.random() < 0.5:
            self.roll_file(is_new_run=True)

    def back_up(self) -> None:
        """Copy its directory, to be restored one day."""
        self._backup = self.disk.backed_up()

    def restore(self) -> None:
        """Restore the backup and continue, as `rt.log.write.writer.Writer` does at a start."""
        self.news += 1
        self.lives += 1
        self._reached.clear()
        self.log.close()
        self.disk.restore(self._backup)
        self.log = log = Appender(self.disk, self.name, self.identity)
        log.recover(cut=False)
        self._sequence = log.next_number
        if log.is_open:
            self.roll_file(is_new_run=True)
        else:
            self._next_file = log.end.next_run() if log.manifest.order else START
        self._frames.clear()

    def released(self, voices: int) -> Position:
        """Return up to where so many nodes have merged what this life has sent to them."""
        return progress.agreed([each.released for each in self._reached.values()], voices)

    def archive(self, merged: Position) -> None:
        """Archive the rolled files that were merged."""
        self.news += 1
        known = self.log.manifest
        for line in list(known.rolled.values()):
            if line.file not in known.archived and line.file + line.end <= merged:
                self.log.archive(ArchivedLine(line.file, 0, "merged"))


class Pipe:
    """A connection that fills a copy of a log."""

    _buffer = FrameBuffer(_PIECE_BYTES)  # shared by all pipes, since a piece is taken at once
    _decoder = Decoder()

    def __init__(
        self,
        disk: Disk,
        path: str,
        inbox: Inbox,
        end: Callable[[], Position] | None = None,
        *,
        damaged: DamagedFiles | None = None,
        is_whole: Callable[[], bool] = lambda: True,
        recent: Recent = lambda _first, _end: None,
    ) -> None:
        """Connect.

        Raises:
            Refused: the copy is not the beginning of the log, or the log is damaged.
        """
        log = LogDirectory(path, disk, damaged)
        log.refresh()
        self.inbox = inbox
        self.caught_up = False
        self.seen = -1  # the publisher's `news` when there was nothing more to send
        self._end = end
        self._inlet = SinkChannel(0, inbox)
        self._outlet = SourceChannel(0, log, end, is_whole=is_whole, recent=recent)
        self._outlet.begin(self._inlet.standing())

    @property
    def position(self) -> Position:
        """Up to where the log was sent."""
        return self._outlet.position

    def acked(self) -> Ack | None:
        """Return the report that the copy's side has yet to send."""
        return self._inlet.news()

    def step(self) -> bool:
        """Carry a little; False if there is nothing now. Raises the errors of either end."""
        sent: list[bytes] = []
        more = self._outlet.pump(lambda data: sent.append(bytes(data)), self._buffer)
        for data in sent:
            for message in self._decoder.feed(data):
                self._take(message)
        return more

    def _take(self, message: Any) -> None:
        if isinstance(message, Data):
            self._inlet.take_data(message)
        elif isinstance(message, RolledNotice):
            self._inlet.take_rolled(message)
        elif isinstance(message, ArchivedNotice):
            self._inlet.take_archived(message)
        elif isinstance(message, CaughtUpNotice):
            self.caught_up = True

    @property
    def is_behind(self) -> bool:
        """Whether a relayed copy has more than was carried."""
        return self._end is not None and self._end() > self._outlet.position

    def close(self) -> None:
        """End the connection."""
        self._outlet.rest()
