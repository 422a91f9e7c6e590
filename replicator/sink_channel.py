"""Inlet: takes what a source sends of one log, checks it, and appends it to a copy."""

from replicator.host import Inbox
from replicator.sink import Do, Stand, check_frames, place_archived, place_data, place_rolled
from replicator.wire import TAIL_BYTES_MAX, Ack, ArchivedNotice, Data, RolledNotice, Standing
from rt.errors import Refused
from rt.format.checksum import crc32
from rt.log.appender import Appender
from rt.log.directory import LogDirectory
from rt.position import Position


class SinkChannel:
    """One channel's sink side: the end of a copy, which only this appends to."""

    def __init__(self, channel: int, inbox: Inbox) -> None:
        self.channel = channel
        self.inbox = inbox
        self._appender: Appender = inbox.appender
        self._acked: Ack | None = None

    def standing(self) -> Standing:
        """Return where the copy ends, and proof of its last bytes."""
        end, tail = self._appender.end, b""
        if end.file not in self._appender.manifest.archived:
            length = min(end.offset, TAIL_BYTES_MAX)
            try:
                tail = self._read(Position(end - length), length)
            except FileNotFoundError:
                tail = b""  # a power cut between its lines: the source, who archived it, says so
        archived = self._appender.manifest.archived
        archived_to = max(archived).next_file() if archived else Position(0)
        return Standing(self.channel, end, len(tail), crc32(tail), archived_to)

    def take_data(self, message: Data) -> None:
        """Append frames, once each of them was checked.

        Raises:
            Refused: they are damaged, or differ from those that are here.
            PeerError: there are bytes missing before them.
            OSError: they could not be written.
        """
        position, payload = message.position, message.payload
        do = place_data(position, self._stand)
        if do is Do.COMPARE:
            payload = self._new_part(position, payload)
            position = Position(message.position + len(message.payload) - len(payload))
            if not payload:
                return
            do = place_data(position, self._stand)
        if do is Do.BEGIN:
            self._appender.begin_file(position)
        after = self._appender.walk.copy()
        headers = check_frames(payload, after)
        self._appender.append((payload,), headers, after)
        self.inbox.written()

    def take_rolled(self, message: RolledNotice) -> None:
        """End the active file; errors as for `take_data`."""
        line = message.line
        do = place_rolled(line, self._stand, self._appender.manifest.rolled.get(line.file))
        if do is Do.NOTHING:
            return
        if do is Do.BEGIN_AND_ROLL:
            self._appender.begin_file(line.file)
        self._appender.follow_roll(line)
        self.inbox.written()

    def take_archived(self, message: ArchivedNotice) -> None:
        """Give up the bytes of a file, if the host wants that; errors as for `take_data`.

        Raises:
            Refused: part of the file is here, and the host needs it yet; it is told again soon.
        """
        known = self._appender.manifest
        file = message.line.file
        if file in known.archived and file in known.rolled:
            return
        do = place_archived(message.rolled, self._stand, known.rolled.get(message.line.file))
        if do is Do.SKIP:
            end = self._appender.end
            if end.file == file and end.offset and self.inbox.needs(end):
                words = f"{file.file_name} was archived before it was merged here up to {end}"
                raise Refused("busy", words)
            self._appender.skip_archived(message.rolled, message.line)
            self.inbox.written()
            return
        if do is Do.ROLL:
            self._appender.follow_roll(message.rolled)
            self.inbox.written()
        if not self.inbox.keeps(message.line):
            self._appender.archive(message.line)

    @property
    def is_merging(self) -> bool:
        """Whether more of the log is durable than merged."""
        reached = self.inbox.confirmed()
        return reached.merged < reached.received

    def news(self) -> Ack | None:
        """Return how far the log has come, if that was not told yet."""
        reached = self.inbox.confirmed()
        ack = Ack(
            self.channel, self._appender.end, reached.received, reached.replicated,
            reached.merged, reached.merged_at,
        )  # fmt: skip
        if ack == self._acked:
            return None
        self._acked = ack
        return ack

    @property
    def _stand(self) -> Stand:
        return Stand(self._appender.end, self._appender.is_open)

    def _new_part(self, position: Position, payload: memoryview) -> memoryview:
        """Compare what is here already; return what goes beyond it."""
        file, appender = position.file, self._appender
        if file in appender.manifest.archived:
            return payload[:0]
        ours = appender.manifest.rolled_end(file)
        if ours is None:
            ours = appender.end.offset if appender.end.file == file else 0
        length = min(len(payload), max(0, ours - position.offset))
        beyond = length < len(payload) and file in appender.manifest.rolled
        if beyond or self._read(position, length) != payload[:length]:
            words = f"other bytes came for {position} than are here; both are kept"
            raise Refused("diverged", words)
        return payload[length:]

    def _read(self, position: Position, length: int) -> bytes:
        if not length:
            return b""
        log = LogDirectory(self._appender.directory, self._appender.disk)
        file = log.open_file(position.file)
        try:
            return file.pread(length, position.offset)
        finally:
            file.close()
