"""Publisher: appends messages to a session's log without waiting for any other process."""

import os
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, Final, NamedTuple, Self

from rt.errors import NO_HEADERS, FlushTimeout, MessagesDropped, Misuse, Refused, Stopped
from rt.events import Dropped
from rt.format.dropped_notice import DroppedSpan
from rt.format.headers import Headers, encode_headers
from rt.limits import SMALL_BYTES
from rt.log.files.disk import Disk
from rt.log.notify.confirmations import ConfirmationsFile, Confirmed, Level
from rt.log.notify.fork_guard import ForkGuard
from rt.log.notify.headers_note import UNKNOWN, HeadersNote
from rt.log.notify.in_process_notify import WrittenFrame
from rt.log.notify.shipping import ShippingNote
from rt.log.write.batcher import Batcher, Batching
from rt.log.write.checked import (
    Bytes,
    as_bytes,
    checked_list,
    checked_seconds,
    checked_times,
    demand_kind,
)
from rt.log.write.disk_room import DiskLimit, DiskRoom, SessionFill
from rt.log.write.dropping import dropped_spans
from rt.log.write.frame_gate import FrameGate, Room
from rt.log.write.pending import Beside, PendingFrame, frame_cuts
from rt.log.write.writer import SessionWriter, WriterSettings
from rt.names import parse_group
from rt.position import Position

_POLL_FIRST_S: Final = 0.0001
_POLL_LAST_S: Final = 0.02
_ASK_S: Final = 1.0  # as often as a pusher renews its note
# as the largest size that is allowed, so that one comparison refuses both a large message and any
# message to a closed publisher
_CLOSED: Final = -1


class Flushing(NamedTuple):
    """The end of what was published, and up to where the log must be synced to make it durable."""

    end: Position
    synced_at: Position


class Publisher:
    """Publishes to one session of a stream, by appending to a local log directory.

    No other process is needed: the session can be read in place, and `rt push` ships it whenever it
    runs. Any number of threads may publish.

    Examples:
        >>> import tempfile
        >>> root = tempfile.mkdtemp()
        >>> with Publisher(root, stream="flights", session="jfk") as publisher:
        ...     publisher.publish(b"AA1 departed", key=b"AA1")
        ...     publisher.flush("synced").position
        0
        Position('0.0.104')

    Threads:
        `_lock` guards every field except those that never change (`name`, `_linger_ns`, the
        confirmations file and the objects themselves); a thread that all publishers share takes the
        lock for `_batcher`. `next_sequence` may be read without the lock, and `flush` waits without
        it.
        After a fork the child's copy holds no descriptor and no message, and raises `Misuse`; the
        parent's continues.
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        *,
        stream: str,
        session: str,
        group: str = "",
        writer: WriterSettings | None = None,
        batching: Batching | None = None,
        disk_limit: DiskLimit | None = None,
        disk: Disk | None = None,
        clock: Callable[[], int] = time.time_ns,
    ) -> None:
        """Open the session for writing, creating it if it does not exist.

        Args:
            root: directory that holds the streams.
            stream: name of the stream.
            session: this publisher's own name in the stream; it has one live writer at a time.
            group: a name shared by redundant publishers, each with its own session, that publish
                the same messages under the same sequence numbers. Each number is merged once, from
                the session that delivers it first. Certificates must grant the group just as they
                grant the session, and it cannot be changed once the session exists.
            writer: durability, sizes, compression.
            batching: how messages are grouped into frames.
            disk_limit: how much the session's files may hold here; unlimited by default.
            disk: the file system; a test may pass one that fails.
            clock: returns ns since the epoch.

        Raises:
            Misuse: a name is not valid, the session has a live writer, `disk_limit` is larger than
                the disk, or `disk_limit` would drop messages of a session in a group.
            CorruptLog: the session's log is damaged.
        """
        demand_kind("writer", writer, WriterSettings)
        demand_kind("batching", batching, Batching)
        demand_kind("disk_limit", disk_limit, DiskLimit)
        batching = batching or Batching()
        self.name, self._now_ns = session, clock
        self._writer = SessionWriter(
            os.fspath(root), stream, session, writer, disk,
            group=parse_group(group), limit=disk_limit,
        )  # fmt: skip
        self._confirmations = ConfirmationsFile(self._writer.directory)
        self._linger_ns = int(batching.linger_s * 1e9)
        self._size_max = batching.message_bytes_max
        # A message at or after this time follows a pause, and is written at once. The pause is
        # counted from the previous message, not from its write; otherwise each message that waits
        # would make the next one wait.
        self._alone_after_ns = 0
        self._ask_after_s = 0.0  # when to check again whether the nodes refuse the session for good
        self._ask_headers_s = 0.0  # when to check again whether they can all read headers
        self._next_sequence = self._writer.next_sequence
        self._lock = threading.Lock()
        frame_bytes = batching.frame_bytes
        if disk_limit is not None:  # a frame that has been started may exceed the limit
            frame_bytes = min(frame_bytes, disk_limit.frame_bytes_max)
        self._pending = PendingFrame(frame_bytes)
        self._batcher = Batcher(
            self._writer.directory, self._lock, self._pending, batching.linger_s,
            self._write_pending,
            roll_if_old=self._writer.roll_if_old if self._writer.settings.file_age_s else None,
        )  # fmt: skip
        self._gate = self._gate_of(disk_limit)
        self._guard = ForkGuard("a Publisher", self._abandon)

    @property
    def next_sequence(self) -> int:
        """The sequence number of the next message."""
        return self._next_sequence

    @property
    def shipping_note(self) -> str:
        """Why the session is not being merged, according to its pusher; "" if it gives none."""
        return ShippingNote(self._writer.directory).read()

    def publish(
        self,
        payload: Bytes,
        key: Bytes | None = None,
        time_ns: int | None = None,
        headers: Headers | None = None,  # keyword-only would cost 30 ns a message
    ) -> int:
        """Publish one message and return its sequence number.

        The message is in the session's file when this returns, or at most `linger_s` later.

        Args:
            payload: the message; with its key and headers up to `message_bytes_max` bytes.
            key: a key that subscribers may select by; None or empty for none.
            time_ns: when it happened, ns since the epoch; None for now.
            headers: bytes by name, such as `{"content-type": b"text/csv"}`; 64 at most, in 16 KiB.

        Returns:
            The message's number in its session; numbers are consecutive, from 0.

        Raises:
            Misuse: an argument has a wrong type or is too large, or this is a forked child's copy.
            Stopped: the publisher is closed.
            WriterFailed: the disk failed; nothing more can be published.
            SessionFull: the disk limit is reached; nothing was taken.
            Refused: `name-taken` if the nodes report that another directory uses the session's
                name; `headers` if not all nodes can read headers yet. Nothing was taken.
            OSError: the disk is full; this message was not taken, earlier ones still are.
        """
        if type(payload) is not bytes:
            payload = as_bytes(payload)
        size = len(payload)
        if key is not None:
            key = as_bytes(key, "a key")
            size += len(key)
        if headers is not None or time_ns is not None:
            key, time_ns, size = self._checked(key, time_ns, headers, size)
        if self._gate is not None and not self._pending.payloads:  # once for each frame
            self._gate.begin(size)
        now = self._now_ns()
        with self._lock:
            if size > self._size_max:
                raise self._refusal(size)
            pending = self._pending
            if key is not None or pending.keys is not None:
                pending.take_key(key)
            pending.payloads.append(payload)
            pending.times_ns.append(now if time_ns is None else time_ns)
            pending.room -= size + pending.weight
            sequence = self._next_sequence
            self._next_sequence = sequence + 1
            is_alone = now >= self._alone_after_ns
            self._alone_after_ns = now + self._linger_ns
            frame = None
            if is_alone or pending.room <= 0:
                frame = self._write_or_give_back(size, alone=is_alone)
            elif self._batcher.is_idle:
                self._batcher.rouse()
        if is_alone:
            # without the lock, since this call may send the message
            self._writer.news.grown_alone(frame)
        return sequence

    def publish_many(
        self,
        payloads: Iterable[Bytes],
        keys: Iterable[Bytes] | None = None,
        times_ns: Iterable[int] | None = None,
        *,
        headers: Iterable[Headers | None] | None = None,
    ) -> range:
        """Publish messages in order and return their sequence numbers.

        Args:
            payloads: the messages.
            keys: one for each message, or None for no keys.
            times_ns: one for each message, ns since the epoch, or None for now.
            headers: the headers of each message, as for `publish`, or None for none.

        Returns:
            The messages' consecutive numbers; an empty range if there were no messages.

        Raises:
            Misuse: as for `publish`, before any message is accepted.
            Stopped: the publisher is closed.
            WriterFailed: the disk failed; nothing more can be published.
            SessionFull: the disk limit is reached; nothing was taken.
            Refused: as for `publish`.
            OSError: the disk is full. Messages numbered below `next_sequence` were taken, the rest
                were not.
        """
        taken = checked_list(payloads, "payload")
        with_keys = None if keys is None else checked_list(keys, "key")
        times = [self._now_ns()] * len(taken) if times_ns is None else checked_times(times_ns)
        with_headers = None if headers is None else self._encoded(headers)
        columns = [each for each in (taken, with_keys, with_headers) if each is not None]
        if any(len(each) != len(times) for each in columns):
            raise Misuse("publish_many needs as many keys, times and headers as payloads")
        sizes = list(map(len, taken))
        for column in columns[1:]:
            sizes = [size + len(each) for size, each in zip(sizes, column, strict=True)]
        size = sum(sizes)
        if self._gate is not None:
            self._gate.admit(len(sizes), size)
        with self._lock:
            if max(sizes, default=0) > self._size_max:
                raise self._refusal(max(sizes, default=0))
            self.demand_name()
            self._write_pending()
            now = self._now_ns()
            self._pending.taken += size
            is_alone = now >= self._alone_after_ns and size <= SMALL_BYTES
            self._alone_after_ns = now + self._linger_ns
            first, frame = self._next_sequence, None
            for start, end in frame_cuts(sizes, self._pending.frame_bytes):
                part = None if with_keys is None else with_keys[start:end]
                its = None if with_headers is None else with_headers[start:end]
                frame = self._writer.write(
                    times[start:end], taken[start:end], part, its if its and any(its) else None
                )
                self._next_sequence = self._writer.next_sequence
                if not is_alone:
                    self._writer.news.grown()
        if is_alone:
            self._writer.news.grown_alone(frame)
        return range(first, first + len(taken))

    def skip_to(self, sequence: int) -> None:
        """Give the next message the number `sequence`; numbers can only be skipped, not reused.

        This is for redundant publishers that number their messages themselves: the sequencer merges
        each number once from the sessions of a group.

        Raises:
            Misuse: the number was used already, or is not below 2^63.
            Stopped: the publisher is closed.
        """
        with self._lock:
            if self._size_max == _CLOSED:
                raise self._refusal(0)
            if not self._next_sequence <= sequence < 1 << 63:
                raise Misuse(f"the next sequence number is {self._next_sequence}, not {sequence}")
            self._write_pending()
            self._writer.next_sequence = self._next_sequence = sequence

    def flush(self, level: str | Level = Level.SYNCED, timeout_s: float = 30.0) -> Confirmed:
        """Wait until everything published so far has reached `level`.

        Args:
            level: `written`, `synced`, `received`, `replicated` or `merged`.
            timeout_s: how long to wait.

        Raises:
            FlushTimeout: names the level that was reached, and what holds up the rest; the messages
                stay in the log and shipping continues.
            MessagesDropped: some messages were dropped, and the rest have reached the level; each
                drop is reported once.
            Stopped: the publisher is closed.
            Refused: `name-taken` if no node will ever accept these messages; see `publish`.
            WriterFailed: the disk failed.
        """
        wanted = level if isinstance(level, Level) else Level.parse(level)
        deadline = time.monotonic() + (timeout_s := checked_seconds(timeout_s, "timeout_s"))
        target = self.begin_flush(synced=False).end
        if wanted is Level.WRITTEN:
            return Confirmed(wanted, target, None)
        if not self._writer.sync(timeout_s):
            raise FlushTimeout(Level.WRITTEN.name, wanted.name, timeout_s)
        if wanted is Level.SYNCED:
            return Confirmed(wanted, target, None)
        confirmed = self._await_nodes(wanted, target, deadline, timeout_s)
        self._demand_kept()
        return confirmed

    def begin_flush(self, *, synced: bool) -> Flushing:
        """Write everything published so far; with `synced`, have it synced soon.

        Raises:
            Stopped: the publisher is closed.
            WriterFailed: the disk failed.
            OSError: the disk is full; nothing was written.
        """
        with self._lock:
            if self._size_max == _CLOSED:
                raise self._refusal(0)
            self._write_pending()
            return self._flushing(synced=synced)

    def begin_flush_now(self, *, synced: bool) -> Flushing | None:
        """Do as `begin_flush` does; return None if that would wait for a thread or the disk."""
        if not self._lock.acquire(blocking=False):
            return None
        try:
            if self._pending.payloads:
                return None
            if self._size_max == _CLOSED:
                raise self._refusal(0)
            return self._flushing(synced=synced)
        finally:
            self._lock.release()

    def _flushing(self, *, synced: bool) -> Flushing:
        end = self._writer.end
        return Flushing(end, self._writer.ask_sync() if synced else end)

    def synced_to(self) -> Position:
        """Return the end of what is on stable storage, to compare with `Flushing.synced_at`.

        Raises:
            WriterFailed: the disk failed.
        """
        return self._writer.synced_to()

    def hear_syncs(self, heard: Callable[[], None]) -> None:
        """Have `heard` called after each sync and when the disk fails; `heard` must not wait."""
        self._writer.hear_syncs(heard)

    def demand_name(self) -> None:
        """Raise `Refused` if the nodes report that another directory uses the session's name.

        Any thread may call this; it reads the pusher's note once a second at most. An unreadable
        note is ignored: publishing depends on no other process.
        """
        now_s = time.monotonic()
        if now_s >= self._ask_after_s:
            with suppress(OSError):
                if (why := ShippingNote(self._writer.directory).refusal()) is not None:
                    raise why
            self._ask_after_s = now_s + _ASK_S

    def dropped(self) -> list[Dropped]:
        """Return all messages that the session has dropped because of its limit, as ranges.

        Dropped messages are not confirmed, even if `confirmed` names a later position.
        """
        with self._lock:
            return [each.event(self.name) for each in dropped_spans(self._writer.manifest)]

    @property
    def drops(self) -> tuple[DroppedSpan, ...]:
        """The spans that this object has dropped, which never change; any thread may read them."""
        return () if self._writer.dropping is None else self._writer.dropping.spans

    def kept(self, position: Position) -> Position:
        """Return the end of the last message up to a position that was not dropped.

        Everything that `drops` lists counts as dropped. Any thread may call this; it does not wait
        for a drop under way, which takes several syncs.
        """
        return self._writer.kept(position)

    def close(self) -> None:
        """Write and sync what was published, and release the session. Idempotent.

        Raises:
            OSError: the disk refuses messages that `publish` had accepted; the error names them.
            WriterFailed: the disk failed.
        """
        with self._lock:
            if self._size_max == _CLOSED:
                return
            self._size_max = _CLOSED
        self._batcher.stop()
        try:
            self._write_pending()
        except OSError as error:
            # the disk is too full even for the manifest; the session is released anyway
            with suppress(OSError):
                self._writer.close()
            raise self._unwritten(error) from error
        except BaseException:
            self._writer.close()
            raise
        self._writer.close()

    def __repr__(self) -> str:
        closed = ", closed" * self._is_closed()
        return f"<Publisher of session {self.name!r} in {self._writer.directory}{closed}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def limit_flight(self, admit: Callable[[int, int], Room]) -> None:
        """Call `admit(messages, bytes)` before each frame from now on.

        It waits until there is room for so much, and returns how much room there is.
        """
        if self._gate is None:
            self._gate = FrameGate(self._pending, self._lock, self._is_closed)
        self._gate.limit_flight(admit)

    @property
    def taken(self) -> Room:
        """The session's size in messages, and the bytes that this object wrote to it."""
        return self._next_sequence, self._pending.taken

    def _gate_of(self, limit: DiskLimit | None) -> FrameGate | None:
        """Return a gate that enforces the disk limit; None without a limit.

        If the disk is too small for the limit, release the session and raise the error.
        """
        if limit is None:
            return None
        try:
            limit.demand_disk(self._writer.directory)
        except (Misuse, OSError):
            self._batcher.stop()
            self._writer.close()
            raise
        gate = FrameGate(self._pending, self._lock, self._is_closed)
        gate.disk = DiskRoom(limit, self.name, self._held, self._make_room)
        if limit.messages is not None:
            self._pending.limit()
        return gate

    def _is_closed(self) -> bool:
        return self._size_max == _CLOSED

    def _held(self) -> SessionFill:
        waiting, messages = self._pending.waiting, self._next_sequence - self._writer.first_held
        return SessionFill(self._writer.held_bytes + waiting, messages)

    def _make_room(self) -> bool:
        """Drop the oldest file, if the limit says so; return whether one was dropped.

        If no older file can be dropped, the active one is rolled, and dropped.
        """
        with self._lock:
            if self._is_closed():
                return False
            if self._writer.drop_oldest():
                return True
            self._write_pending()
            self._writer.roll()
            return self._writer.drop_oldest()

    def _checked(
        self, key: Bytes | None, time_ns: int | None, headers: Headers | None, size: int
    ) -> tuple[Any, int | None, int]:
        """Return the key (with the headers, if any), the checked time, and the size with headers.

        Headers travel with the key as one value, so a message without headers takes no extra step.
        """
        if time_ns is not None:
            time_ns = checked_times([time_ns])[0]
        [encoded] = self._encoded([headers])
        return (Beside(key, encoded) if encoded else key), time_ns, size + len(encoded)

    def _encoded(self, headers: Iterable[Headers | None]) -> list[bytes]:
        cells = [encode_headers(each) if each else b"" for each in headers]
        if any(cells) and time.monotonic() >= self._ask_headers_s:
            self._demand_headers()
        return cells

    def _demand_headers(self) -> None:
        """Raise `Refused` if it is known here that some node cannot read headers.

        A session that was never shipped may have headers: nodes that cannot read them refuse it
        later.
        """
        why_not = HeadersNote(os.path.dirname(self._writer.directory)).read()
        if why_not is None and self._confirmations.read().received:
            why_not = UNKNOWN
        if why_not:
            raise Refused(NO_HEADERS, why_not)
        is_known = why_not is not None  # a yes stays true
        self._ask_headers_s = float("inf") if is_known else time.monotonic() + _ASK_S

    def _write_or_give_back(self, size: int, *, alone: bool) -> WrittenFrame | None:
        try:
            self.demand_name()
            return self._write_pending(alone=alone)
        except (OSError, Refused):
            self._pending.give_back(size)
            self._next_sequence -= 1
            raise

    def _write_pending(self, *, alone: bool = False) -> WrittenFrame | None:
        """Write the pending messages and return their frame; None if no message is pending.

        With `alone`, the caller announces the frame later, without the lock.
        """
        pending = self._pending
        if not pending.payloads:
            return None
        frame = self._writer.write(
            pending.times_ns, pending.payloads, pending.keys, pending.headers_column
        )
        pending.clear()
        self._batcher.written()
        if not alone:
            self._writer.news.grown()
        return frame

    def _unwritten(self, error: OSError) -> OSError:
        """Return a disk error that names the messages that were lost."""
        last, count = self._next_sequence - 1, len(self._pending.payloads)
        lost = f"message {last}" if count == 1 else f"messages {last - count + 1} to {last}"
        words = f"{error.strerror}: session {self.name!r} is closed without {lost}; publish again"
        return OSError(error.errno, words, self._writer.directory)

    def _await_nodes(
        self, level: Level, target: Position, deadline: float, timeout_s: float
    ) -> Confirmed:
        pause_s = _POLL_FIRST_S
        self._ask_after_s = 0.0
        while True:
            confirmed, end = self._confirmations.read(), self._writer.kept(target)
            if confirmed.reached(level) >= end:
                merged_at = confirmed.merged_at if level is Level.MERGED else None
                return Confirmed(level, target, merged_at)
            self.demand_name()
            if time.monotonic() >= deadline:
                reached = [
                    each for each in Level if each >= Level.RECEIVED
                    and confirmed.reached(each) >= end
                ]  # fmt: skip
                best = max(reached, default=Level.SYNCED)
                raise FlushTimeout(best.name, level.name, timeout_s, self.shipping_note)
            time.sleep(pause_s)
            pause_s = min(1.3 * pause_s, _POLL_LAST_S)

    def _demand_kept(self) -> None:
        """Raise `MessagesDropped` if messages were dropped since it was last raised."""
        if self._writer.dropping is not None:
            with self._lock:
                untold = self._writer.dropping.take_untold()
            if untold:
                raise MessagesDropped([each.event(self.name) for each in untold])

    def _abandon(self) -> None:
        """In a forked child: drop the parent's pending messages, and locks its threads may hold."""
        self._lock = threading.Lock()
        self._size_max = _CLOSED
        self._pending.clear()

    def _refusal(self, size: int) -> Misuse | Stopped:
        if self._guard.is_copy:
            return self._guard.misuse()
        if self._size_max == _CLOSED:
            return Stopped(f"publisher {self.name!r} is closed")
        return Misuse(
            f"a message of {size} bytes is larger than the limit of {self._size_max} "
            "(message_bytes_max); send it in parts"
        )
