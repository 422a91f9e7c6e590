"""SourceChannel: reads a log directory and sends it to one sink, as a `Source` decides."""

from collections.abc import Callable
from contextlib import closing
from typing import Final

from replicator.source.change_detector import ChangeDetector
from replicator.source.cursor_file import CursorFile
from replicator.source.held import held_of
from replicator.source.source import (
    Difference,
    Effect,
    GoOn,
    Looked,
    Refuse,
    Send,
    Source,
    TellArchived,
    TellRolled,
    difference,
    false_claim,
)
from replicator.wire.codec import DATA_HEAD_BYTES, encode
from replicator.wire.frame_buffer import FrameBuffer
from replicator.wire.messages import (
    BEHIND,
    Ack,
    ArchivedNotice,
    CaughtUpNotice,
    Message,
    RolledNotice,
    Standing,
)
from rt.errors import CorruptLog, FrameError, Misuse, Refused
from rt.format import manifest
from rt.format.scan import Scan
from rt.limits import MIB, READ_BYTES, SMALL_BYTES
from rt.log.files.archived import is_dropped, is_own_choice, not_copied
from rt.log.files.directory import LogDirectory
from rt.log.files.disk import File
from rt.log.notify.in_process_notify import WrittenFrame
from rt.log.read.growth import BadFrames, DamagedFrame, EmptiedFile
from rt.log.read.start import parse_start, resolve
from rt.log.write.recent_frames import Appended
from rt.position import START, Position

Sender = Callable[[bytes | memoryview], None]
Recent = Callable[[Position, Position], Appended | None]
_VERIFY_BYTES: Final = 64 * MIB  # more than is in flight; limits what a sink can have read
_BEHIND_BYTES: Final = READ_BYTES // 2  # a sink that is sent so much at once was lagging


class SourceChannel:
    """SourceChannel: the source side of a channel; sends one log, which others write, to a sink."""

    def __init__(
        self,
        channel: int,
        log: LogDirectory,
        end: Callable[[], Position] | None = None,
        *,
        is_whole: Callable[[], bool] = lambda: True,
        recent: Recent = lambda _first, _end: None,
    ) -> None:
        """Prepare channel number `channel` for a log that exists and was refreshed.

        `end` returns the end of what may be served now; None for the end on disk. `is_whole`
        returns whether nothing exists past that end. `recent` returns the frames between two
        positions, or only the first of these frames; None if they are not in memory.
        """
        if log.manifest.identity is None:
            raise Misuse(f"{log.path} is not there yet")
        self.channel = channel
        self.log = log
        self.identity: manifest.LogIdentity = log.manifest.identity
        self.acked = START  # the end up to which the sink has written the log
        self._end = end
        self._is_whole = is_whole
        self._recent = recent
        self._source: Source | None = None
        self.has_begun = False  # whether the sink has sent its Standing
        self.cursor_file = CursorFile(log, is_own=end is None)
        self._begins = START  # files before this one are not copied
        self._archived_sent = 0  # archived lines of the manifest skipped or sent
        self._bad_frames = BadFrames(log)
        self.changes = ChangeDetector(log, is_copy=end is not None)

    @property
    def position(self) -> Position:
        """The end up to which the log was sent; `START` until the sink has reported its end."""
        return START if self._source is None else self._source.cursor

    def begin(self, standing: Standing) -> None:
        """Begin to send where the sink's copy ends, as its Standing message reports.

        Raises:
            Refused: the sink's copy is not a prefix of this log, or this was already called.
        """
        if self._source is not None:
            raise Refused("protocol", "a second Standing came on one channel")
        self.log.refresh()
        found = difference(
            standing, held_of(self.log, standing, self._served), is_copy=self._end is not None
        )
        if found is not None:
            raise self._refused(found)
        self._begins = self._starting_file(standing.start)
        self._source = Source(self._begin_at(standing.end))
        self.acked, self.has_begun = self._source.cursor, True
        archived = self.log.manifest.archived
        self._archived_sent = sum(file < standing.archived_to for file in archived)

    def check(self, ack: Ack) -> None:
        """Record an acknowledgement; refuse a false one, because it would let files be archived.

        If the log is a node's copy, the sink may report that more was replicated or merged than was
        sent here, because it also receives from other nodes.

        Raises:
            Refused: the acknowledgement is false, or the log was replaced.
        """
        self.changes.demand_in_place()
        sent = log_end = self.position
        beyond = max(ack.replicated, ack.merged)
        if beyond > sent:  # received through another node: only then read the disk
            log_end = beyond if self._end is not None else self._log_end()
        found = false_claim(ack, sent, log_end)
        if found is not None:
            raise self._refused(found)
        self.acked = ack.written

    def verify(self) -> None:
        """Check every byte of the unacknowledged frames in the first file that has such frames.

        Call this when the sink refuses a frame as damaged. The frame's body may be damaged in this
        log, too, because only headers are checked before sending.

        Raises:
            CorruptLog: a frame is damaged.
            OSError: the file cannot be read.
        """
        log, since, until = self.log, self.acked, self.position
        with closing(log.open_file(since.file)) as file:
            end = until.offset if until.file == since.file else file.size()
            walk = log.walk_before(file, since.file, lambda entry: entry.offset > since.offset)
            scan = Scan(file.pread, walk)
            last = walk.position.offset + _VERIFY_BYTES
            try:
                while walk.position.offset < last and scan.next(end):
                    pass
            except FrameError as error:
                raise CorruptLog(log.file_path(since), walk.position, str(error)) from None

    def pump(self, send: Sender, buffer: FrameBuffer) -> bool:
        """Send the next bytes or notices, about 1 MiB at most; False if there is nothing for now.

        Raises:
            Refused: the log was replaced, or no longer has bytes that were sent.
            CorruptLog: the log is damaged.
            OSError: the log cannot be read.
        """
        source = self._source
        if source is None:
            return False
        self.changes.is_quiet = False  # before anything that `has_news` reads
        is_whole = self._is_whole()  # before the end, so it cannot count later bytes
        looked = self._look(source)
        self._tell_archived(send, source)
        effect = source.step(looked)
        if isinstance(effect, Send):
            sent = self._send(send, buffer, source, effect.limit)
            more = source.cursor.offset < effect.limit or looked.rolled is not None
            self.changes.is_quiet = not (sent and (more or not source.caught_up))
        else:
            self.changes.is_quiet = not self._perform(send, effect)
        if self.changes.is_quiet and is_whole and not source.caught_up:
            source.caught_up = True
            send(encode(CaughtUpNotice(self.channel, source.cursor)))
        return not self.changes.is_quiet

    def send_little(self, send: Sender, buffer: FrameBuffer) -> bool:
        """Send the new bytes of the current file, if they are few and the sink lacks nothing else.

        Returns:
            Whether the sink was sent everything; otherwise `pump` must run.

        Raises:
            As `pump`.
        """
        source, file = self._source, self.cursor_file.file
        if source is None or file is None or not source.caught_up or source.ended:
            return False
        cursor = source.cursor
        if self.cursor_file.start != cursor.file:
            return False
        if self._end is not None:
            end = self._end()
        else:  # it may have been rolled, if the manifest has changed
            end = Position(cursor.file + (file.size() if self.log.is_as_read() else 0))
        if not 0 < end - cursor <= SMALL_BYTES:
            return False
        quiet = self.changes
        was_quiet, quiet.is_quiet = quiet.is_quiet, False
        quiet.looked(end.offset)
        sent = self._send(send, buffer, source, end.offset) and source.cursor == end
        quiet.is_quiet = was_quiet and sent
        return sent

    def send_frame(self, send: Sender, buffer: FrameBuffer, frame: WrittenFrame) -> bool:
        """Send a frame that was just appended to the log, if the sink lacks nothing else.

        The writer of the frame passes the bytes, so the file need not be read.

        Returns:
            Whether the frame was sent.
        """
        source = self._source
        if source is None or not source.caught_up or source.ended or self._end is not None:
            return False
        if frame.position != source.cursor or frame.log != self.identity.id:
            return False
        quiet, length = self.changes, len(frame.data)
        was_quiet, quiet.is_quiet = quiet.is_quiet, False
        quiet.looked(frame.position.offset + length)
        send(buffer.frame_message(self.channel, frame))
        source.sent(length)
        quiet.is_quiet = was_quiet
        return True

    def has_news(self) -> bool:
        """Whether there may be more to send than at the last `pump`; any thread may ask.

        Bytes being sent count as news until they are sent.
        """
        source = self._source
        if source is None or self.cursor_file.is_held_back:
            return True
        if self._end is not None:
            try:
                return self._end() > self.position
            except Refused:
                return True  # `pump` gets the refusal, and ends the channel
        return self.changes.has_changed(
            source.cursor, ended=source.ended,
            follows=lambda: self.cursor_file.following(source.cursor.file) is not None,
        )  # fmt: skip

    def rest(self) -> None:
        """Close the descriptors until there is something to send."""
        self.cursor_file.close()
        self.log.close()
        self.changes.has_rested = True

    def _starting_file(self, start: str) -> Position:
        """Return the file in which an empty copy begins if its reader asked for `start`.

        Raises:
            Refused: `start` is not valid, or this node's log does not reach it.
            CorruptLog: the log is damaged where it was searched.
        """
        if not start:
            return START
        if self._end is None:
            raise Refused("protocol", "a session is copied from its beginning")
        try:
            found = resolve(self.log, parse_start(start))
        except Misuse as error:
            raise Refused("protocol", str(error)) from None
        if (
            found
            and not self.log.has_file(found.file)
            and found.file not in self.log.manifest.rolled
        ):
            raise Refused("behind", f"{self.log.path} does not reach {found}")
        return found.file

    def _begin_at(self, end: Position) -> Position:
        if not end:
            return self.cursor_file.first()
        if is_dropped(self.log.manifest, end.file):
            words = f"the sink ends at {end}, in a file that was dropped here"
            raise self._refused(Difference("diverged", words))
        return self.cursor_file.record_end(end)

    def _log_end(self) -> Position:
        self.log.refresh()
        last = max([*self.log.manifest.order[-1:], *self.log.files()[-1:]], default=START)
        rolled_end = self.log.manifest.rolled_end(last)
        if rolled_end is not None:
            return Position(last + rolled_end)
        return Position(last + self.changes.bytes_after(last))

    def _served(self, file: Position, size: int) -> int:
        if self._end is None:
            return size
        end = self._end()
        return max(0, min(size, end - file))

    def _look(self, source: Source) -> Looked:
        start = source.cursor.file
        file = self.cursor_file.open(start)
        size = 0 if file is None else file.size()
        self.changes.looked(size)
        limit = None if file is None else self._served(start, size)
        self.changes.refresh()  # after the size: the manifest's latest lines count
        rolled = self.log.manifest.rolled.get(start)
        archived = self.log.manifest.archived.get(start)
        not_here = archived is not None and is_own_choice(archived)
        if rolled is not None and (start < self._begins or not_here):
            archived = not_copied(rolled)
        if rolled is None:
            return Looked(limit)
        if self._served(start, rolled.end) < rolled.end:
            rolled = None
        elif limit is not None:
            limit = min(limit, rolled.end)
        following = None
        if source.ended:
            self.changes.listing()
            following = self.cursor_file.next_after(start)
            if following is not None:
                self.changes.demand_same_log()  # a file of that name may be of another log
        return Looked(limit, rolled, archived, following)

    def _tell_archived(self, send: Sender, source: Source) -> None:
        """Announce files that were sent completely and have been archived since."""
        known, cursor = self.log.manifest, source.cursor
        if self._archived_sent == len(known.archived):
            return
        sent_to = cursor.file.next_file() if source.ended else cursor.file
        for line in list(known.archived.values())[self._archived_sent :]:
            if line.file < sent_to and line.file in known.rolled and not is_own_choice(line):
                send(encode(ArchivedNotice(self.channel, known.rolled[line.file], line)))
        self._archived_sent = len(known.archived)

    def _perform(self, send: Sender, effect: Effect) -> bool:
        message: Message
        if isinstance(effect, GoOn):
            return True
        if isinstance(effect, TellRolled):
            message = RolledNotice(self.channel, effect.line)
        elif isinstance(effect, TellArchived):
            message = ArchivedNotice(self.channel, effect.rolled, effect.line)
        elif isinstance(effect, Refuse):
            code = "diverged" if self._end is None else BEHIND  # a node has set its end aside
            raise Refused(code, f"{self.log.path}: {effect.words}")
        else:
            return False
        send(encode(message))
        return True

    def _send(self, send: Sender, buffer: FrameBuffer, source: Source, limit: int) -> bool:
        file, start = self.cursor_file.file, source.cursor
        if file is None:
            return False
        if (frames := self._recent(start, Position(start.file + limit))) is not None:
            send(buffer.recent_message(self.channel, frames))
            source.cursor = frames.end
            return True
        message = buffer.data_message(self.channel, file, start, limit)
        if not message:
            return self._is_emptied(start, file)  # archived meanwhile: the next pump finds its line
        send(message)
        whole = len(message) - DATA_HEAD_BYTES
        source.sent(whole)
        if whole >= _BEHIND_BYTES:
            source.caught_up = False
        return True

    def _is_emptied(self, at: Position, file: File) -> bool:
        """Whether the frame at the cursor is invalid because its file was archived meanwhile.

        Raises:
            CorruptLog: the frame is damaged, rather than unfinished or archived.
        """
        durable = START if self._end is None else self._end()
        walk = self.log.walk_before(file, at.file, lambda entry: entry.offset > at.offset)
        meaning = self._bad_frames.explain(file, walk, durable=durable)
        if isinstance(meaning, DamagedFrame):
            raise CorruptLog(self.log.file_path(at), meaning.at, meaning.reason)
        return isinstance(meaning, EmptiedFile)

    def _refused(self, found: Difference) -> Refused:
        return Refused(found.code, f"{self.log.path}: {found.words}{found.kept}")
