"""Outlet: reads one log directory for one sink, and says what the source decides."""

import os
import time
from collections.abc import Callable
from typing import Final

from replicator.source import (
    Difference,
    Effect,
    GoOn,
    Held,
    Looked,
    Refuse,
    Send,
    Source,
    TellArchived,
    TellRolled,
    difference,
)
from replicator.wire import (
    DATA_HEAD_BYTES,
    ArchivedNotice,
    CaughtUpNotice,
    Message,
    Open,
    RolledNotice,
    Standing,
    encode,
    put_data_head,
)
from rt.errors import FrameError, Misuse, Refused
from rt.format import manifest
from rt.format.checksum import crc32
from rt.format.frame import HEADER_BYTES, parse_header
from rt.format.seek import walk_before
from rt.limits import KIB, READ_BYTES
from rt.log.directory import LogDirectory
from rt.log.disk import File, OsFile
from rt.log.growth import BadFrames, DamagedFrame, EmptiedFile
from rt.position import FILE_BYTES_MAX, START, Position

Sender = Callable[[bytes | memoryview], None]
# The clock of a file system ticks every few milliseconds: a younger time may stand for two changes.
_TIME_IS_SURE_NS: Final = 2_000_000_000
_BEHIND_BYTES: Final = READ_BYTES // 2  # who gets this much at once was not at the end
_LITTLE_BYTES: Final = 8 * KIB  # one TLS record, which a socket that is writable has room for


class SendBuffer:
    """Where frames are read to, with room before them for the head of the message.

    One for each connection: what is sent from it is gone when the next read begins.
    """

    __slots__ = ("data", "view")

    def __init__(self) -> None:
        self.data = bytearray(DATA_HEAD_BYTES + READ_BYTES)
        self.view = memoryview(self.data)


class SourceChannel:
    """One channel's source side: a log directory that others write, and how far it was sent."""

    def __init__(
        self,
        channel: int,
        log: LogDirectory,
        end: Callable[[], Position] | None = None,
    ) -> None:
        """Stand ready to open the channel.

        Args:
            channel: its number on the connection.
            log: refreshed, and there.
            end: where serving ends now; the end of what is on disk if not given.
        """
        if log.manifest.identity is None:
            raise Misuse(f"{log.path} is not there yet")
        self.channel = channel
        self.log = log
        self.identity: manifest.LogIdentity = log.manifest.identity
        self.caught_up = False
        self._end = end
        self._source: Source | None = None
        self._file: File | None = None
        self._file_start = Position(0)
        self._told = 0  # archived lines of the manifest that were passed or told
        self._bad_frames = BadFrames(log)
        self._idle = False  # there was nothing to send when the log was last looked at
        self._size = 0  # of the file at the cursor then
        self._listed_ns = 0  # when the directory had changed before its files were last listed

    @property
    def position(self) -> Position:
        """Up to where the log was sent; the beginning until the sink has said where it stands."""
        return Position(0) if self._source is None else self._source.cursor

    def opening(self) -> Open:
        """Return the message that opens the channel."""
        return Open(self.channel, self.identity)

    def stand(self, standing: Standing) -> None:
        """Begin where the sink stands.

        Raises:
            Refused: its copy is not the beginning of this log.
        """
        self.log.refresh()
        found = difference(standing, self._held(standing), is_copy=self._end is not None)
        if found is not None:
            raise _refused(found, self.log.path)
        self._source = Source(standing.end or self._first())
        archived = self.log.manifest.archived
        self._told = sum(file < standing.archived_to for file in archived)

    def pump(self, send: Sender, buffer: SendBuffer) -> bool:
        """Send what comes next, about 1 MiB at most; False if there is nothing for now.

        Raises:
            Refused: the log is damaged, or not what it was.
            OSError: it cannot be read.
        """
        source = self._source
        if source is None:
            return False
        self._idle = False  # before anything that `has_news` goes by
        looked = self._look(source)
        self._tell_archived(send, source)
        effect = source.step(looked)
        if isinstance(effect, Send):
            sent = self._send(send, buffer, source, effect.limit)
            more = source.cursor.offset < effect.limit or looked.rolled is not None
            self._idle = not (sent and (more or not self.caught_up))
        else:
            self._idle = not self._perform(send, effect)
        return not self._idle

    def send_little(self, send: Sender, buffer: SendBuffer) -> bool:
        """Send what is new of the file at hand, if the sink has all else and it is little.

        Returns:
            Whether the sink has all now; otherwise `pump` has to look.

        Raises:
            As `pump`.
        """
        source, file = self._source, self._file
        if source is None or file is None or not self.caught_up or source.ended:
            return False
        cursor = source.cursor
        if self._file_start != cursor.file:
            return False
        end = self._end() if self._end is not None else self._grown_to(file)
        if not 0 < end - cursor <= _LITTLE_BYTES:
            return False
        was_idle, self._idle = self._idle, False
        self._size = end.offset
        sent = self._send(send, buffer, source, end.offset) and source.cursor == end
        self._idle = was_idle and sent
        return sent

    def _grown_to(self, file: File) -> Position:
        """Return where the file at hand ends, or its start if it may have been rolled."""
        lines, _ = _status(os.path.join(self.log.path, manifest.FILE_NAME))
        size = file.size() if lines == self.log.manifest.length else 0
        return Position(self._file_start + size)

    def has_news(self) -> bool:
        """Whether there may be more to send than when `pump` last looked; three `stat` calls.

        After a file that has ended the names are listed too, if the directory has changed. Any
        thread may ask. What is on its way counts as news until it was sent.
        """
        return self._has_grown() if self._end is None else self._has_more(self._end)

    def _has_grown(self) -> bool:
        known = self._size, self.log.manifest.length  # before it is asked whether they are moving
        if not self._idle or self._source is None:
            return True
        size, _ = _status(self.log.file_path(self.position))
        lines, _ = _status(os.path.join(self.log.path, manifest.FILE_NAME))
        if (size, lines) != known:
            return True
        if not self._source.ended:
            return False
        _, changed_ns = _status(self.log.path)
        is_young = time.time_ns() - changed_ns < _TIME_IS_SURE_NS
        if changed_ns == self._listed_ns and not is_young:
            return False
        if self._following(self.position.file) is not None:
            return True
        self._listed_ns = changed_ns  # what the nodes confirm is noted in the directory, too
        return False

    def _has_more(self, end: Callable[[], Position]) -> bool:
        try:
            return end() > self.position
        except Refused:
            return True  # `pump` is told why there is no more, and ends the channel

    def rest(self) -> None:
        """Release the descriptors while nothing happens."""
        self._close_file()
        self.log.close()

    def bytes_left(self) -> int:
        """Return how many bytes of the file at the cursor were not sent yet."""
        size, _ = _status(self.log.file_path(self.position))
        return max(0, size - self.position.offset)

    def _first(self) -> Position:
        starts = [*self.log.manifest.order[:1], *self.log.files()[:1]]
        return min(starts, default=Position(0))

    def _held(self, standing: Standing) -> Held:
        end, known = standing.end, self.log.manifest
        rolled_end = known.rolled_end(end.file)
        archived = end.file in known.archived
        try:
            file = self.log.open_file(end.file)
        except FileNotFoundError:
            return Held(None, rolled_end, archived)
        try:
            tail = file.pread(standing.tail_length, end.offset - standing.tail_length)
            return Held(self._served(end.file, file.size()), rolled_end, archived, crc32(tail))
        finally:
            file.close()

    def _served(self, file: Position, size: int) -> int:
        """How many of the bytes of a file may be served now."""
        if self._end is None:
            return size
        end = self._end()
        return max(0, min(size, end - file))

    def _look(self, source: Source) -> Looked:
        start = source.cursor.file
        file = self._opened(start)
        self._size = 0 if file is None else file.size()
        limit = None if file is None else self._served(start, self._size)
        self.log.refresh()  # after the size: what the manifest says last is what counts
        rolled = self.log.manifest.rolled.get(start)
        archived = self.log.manifest.archived.get(start)
        if rolled is None:
            return Looked(limit)
        if self._served(start, rolled.end) < rolled.end:
            rolled = None
        elif limit is not None:
            limit = min(limit, rolled.end)
        following = None
        if source.ended:
            _, self._listed_ns = _status(self.log.path)
            following = self._following(start)
        return Looked(limit, rolled, archived, following)

    def _following(self, start: Position) -> Position | None:
        """The next file: one that has its bytes, or an archived one before that."""
        nexts = (self.log.file_from(start.next_file()), self.log.manifest.successor(start))
        return min((each for each in nexts if each is not None), default=None)

    def _opened(self, start: Position) -> File | None:
        if self._file is not None and self._file_start == start:
            return self._file
        self._close_file()
        try:
            self._file, self._file_start = self.log.open_file(start), start
        except FileNotFoundError:
            return None
        return self._file

    def _close_file(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _tell_archived(self, send: Sender, source: Source) -> None:
        """Tell of files that were sent whole, and have been archived since."""
        known, cursor = self.log.manifest, source.cursor
        if self._told == len(known.archived):
            return
        sent_to = cursor.file.next_file() if source.ended else cursor.file
        for line in list(known.archived.values())[self._told :]:
            if line.file < sent_to and line.file in known.rolled:
                send(encode(ArchivedNotice(self.channel, known.rolled[line.file], line)))
        self._told = len(known.archived)

    def _perform(self, send: Sender, effect: Effect) -> bool:
        message: Message
        if isinstance(effect, GoOn):
            return True
        if isinstance(effect, TellRolled):
            message = RolledNotice(self.channel, effect.line)
        elif isinstance(effect, TellArchived):
            message = ArchivedNotice(self.channel, effect.rolled, effect.line)
        elif isinstance(effect, Refuse):
            raise Refused("diverged", f"{self.log.path}: {effect.words}")
        else:
            self._catch_up(send)
            return False
        send(encode(message))
        return True

    def _catch_up(self, send: Sender) -> None:
        if not self.caught_up:
            self.caught_up = True
            send(encode(CaughtUpNotice(self.channel, self.position)))

    def _send(self, send: Sender, buffer: SendBuffer, source: Source, limit: int) -> bool:
        file, start = self._file, source.cursor
        if file is None:
            return False
        data = buffer.data
        length = _read(file, buffer.view, start.offset, limit)
        whole, needed = self._whole(data, length)
        if whole == 0 and READ_BYTES < needed <= limit - start.offset:
            data = bytearray(DATA_HEAD_BYTES + needed)  # a frame larger than the buffer
            length = _read(file, memoryview(data), start.offset, start.offset + needed)
            whole, _ = self._whole(data, length)
        if whole == 0:
            if self._is_emptied(start, file):
                return True  # since we looked; the next look finds its line
            self._catch_up(send)
            return False
        put_data_head(data, self.channel, start, whole)
        send(memoryview(data)[: DATA_HEAD_BYTES + whole])
        source.sent(whole)
        if whole >= _BEHIND_BYTES:
            self.caught_up = False
        return True

    def _whole(self, data: bytearray, length: int) -> tuple[int, int]:
        """Return how many of the bytes are whole frames, and what the first of them needs."""
        end, offset, needed = DATA_HEAD_BYTES + length, DATA_HEAD_BYTES, 0
        try:
            while end - offset >= HEADER_BYTES:
                size = parse_header(data, offset).size
                needed = needed or size
                if size > end - offset:
                    break
                offset += size
        except FrameError:
            return offset - DATA_HEAD_BYTES, needed  # what it is, the next look at it will tell
        return offset - DATA_HEAD_BYTES, needed

    def _is_emptied(self, at: Position, file: File) -> bool:
        """Explain the bad frame at the cursor: whether its file was archived meanwhile.

        Raises:
            Refused: the frame is damaged, and not merely unwritten.
        """
        index, index_file = self.log.open_index(at.file)
        walk = walk_before(
            file.pread, index, at.file, lambda entry: entry.offset > at.offset,
            merged=self.identity.merged, session=self.identity.session,
        )  # fmt: skip
        if index_file is not None:
            index_file.close()
        durable = START if self._end is None else self._end()
        meaning = self._bad_frames.explain(file, walk, durable=durable)
        if isinstance(meaning, DamagedFrame):
            message = f"{self.log.file_path(at)}: corrupt at {meaning.at}: {meaning.reason}"
            raise Refused("corrupt", message)
        return isinstance(meaning, EmptiedFile)


def _refused(found: Difference, path: str) -> Refused:
    return Refused(found.code, f"{path}: {found.words}; both are kept")


def _read(file: File, view: memoryview, offset: int, limit: int) -> int:
    target = view[DATA_HEAD_BYTES : DATA_HEAD_BYTES + min(limit, FILE_BYTES_MAX) - offset]
    if isinstance(file, OsFile):
        return os.preadv(file.fileno(), [target], offset)
    data = file.pread(len(target), offset)
    target[: len(data)] = data
    return len(data)


def _status(path: str) -> tuple[int, int]:
    try:
        status = os.stat(path)
    except FileNotFoundError:
        return 0, 0
    return status.st_size, status.st_mtime_ns
