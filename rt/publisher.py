"""Publisher: puts messages into a session's log, and waits for nobody."""

import threading
import time
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from time import time_ns as time_ns_now
from typing import Final, Self

from rt.errors import FlushTimeout, Misuse, Stopped, WriterFailed
from rt.limits import FRAME_BYTES_DEFAULT, KIB, MESSAGE_BYTES_MAX, MIB
from rt.log.confirmations import ConfirmationsFile, Level
from rt.log.disk import Disk
from rt.log.writer import SessionWriter, WriterSettings
from rt.names import parse_group
from rt.position import Position

_COLUMN_BYTES: Final = 12  # a message's share of the columns: its time and its end
_FRAME_BYTES_MAX: Final = 8 * MIB  # and one message of 16 MiB more: still within a body's 32 MiB
_POLL_FIRST_S: Final = 0.0001
_POLL_LAST_S: Final = 0.02
_RETRY_S: Final = 0.1  # after a full disk


@dataclass(frozen=True, slots=True)
class Batching:
    """How messages become frames.

    A message after a pause is written at once, by the call that publishes it. One that comes
    within `linger_s` of the message before it waits as long for company, or until the frame is
    full: so a lone message pays no delay, and a flood pays one write for thousands.

    Args:
        frame_bytes: a frame is written when it holds this much; 1 KiB to 8 MiB.
        linger_s: the longest a message waits for company; 0 writes each one at once.
        message_bytes_max: larger messages, key included, are refused; at most 16 MiB.
    """

    frame_bytes: int = FRAME_BYTES_DEFAULT
    linger_s: float = 0.0005
    message_bytes_max: int = MESSAGE_BYTES_MAX

    def __post_init__(self) -> None:
        if not KIB <= self.frame_bytes <= _FRAME_BYTES_MAX:
            raise Misuse(f"frame_bytes is {self.frame_bytes}; use {KIB} to {_FRAME_BYTES_MAX}")
        if not 0 <= self.linger_s <= 60:
            raise Misuse(f"linger_s is {self.linger_s}; use 0 to 60")
        if not 0 < self.message_bytes_max <= MESSAGE_BYTES_MAX:
            raise Misuse(
                f"message_bytes_max is {self.message_bytes_max}; use 1 to {MESSAGE_BYTES_MAX}"
            )


@dataclass(frozen=True, slots=True)
class Confirmed:
    """What a flush returns: everything published before it has reached `level`."""

    level: Level
    position: Position  # the end, in the session, of what is confirmed
    merged_at: Position | None  # where it ends in the merged log; None below `merged`


class Publisher:
    """Publishes to one session of a stream, by appending to a local log directory.

    Needs no other process: the session can be read where it lies, and is shipped by `rt push`
    whenever that runs. Safe to use from several threads.

    Example:
        >>> import tempfile
        >>> root = tempfile.mkdtemp()
        >>> with Publisher(root, stream="flights", session="jfk") as publisher:
        ...     publisher.publish(b"AA1 departed", key=b"AA1")
        ...     publisher.flush("synced").position
        0
        Position('0.0.104')
    """

    def __init__(
        self,
        root: str,
        *,
        stream: str,
        session: str,
        group: str = "",
        writer: WriterSettings | None = None,
        batching: Batching | None = None,
        disk: Disk | None = None,
    ) -> None:
        """Open the session for writing; it is made if it is not there.

        Args:
            root: directory under which streams live.
            stream: name of the stream.
            session: this publisher's own name in the stream; one live writer at a time.
            group: redundant publishers, each with a session of its own, that publish the same
                messages under the same sequence numbers name one group, which their certificates
                have to grant as they grant the session: each number is merged
                once, from whoever brings it first. It is fixed when the session is made.
            writer: durability, sizes, compression.
            batching: how messages become frames.
            disk: the file system; a test may give one that fails.

        Raises:
            Misuse: a name is none, or the session has a live writer.
            CorruptLog: the session's log was damaged.
        """
        self._batching = batching or Batching()
        self._writer = SessionWriter(root, stream, session, writer, disk, group=parse_group(group))
        self.name = session
        self._linger_ns = int(self._batching.linger_s * 1e9)
        self._frame_bytes = self._batching.frame_bytes
        self._size_max = self._batching.message_bytes_max  # -1 once closed: one test for both
        self._confirmations = ConfirmationsFile(self._writer.directory)
        self._payloads: list[bytes] = []
        self._times: list[int] = []
        self._keys: list[bytes] | None = None
        self._room = self._frame_bytes  # what is left of the frame that is being filled
        # a message from then on is alone and written at once; counted from the message before it,
        # not from when that was written, or each that waits would make the next one wait
        self._alone_after_ns = 0
        self._written_s = 0.0  # when a frame was written last: what waits has come since then
        self._next_sequence = self._writer.next_sequence
        self._closed = False
        self._lock = threading.Lock()
        self._wake = threading.Condition(self._lock)
        self._batcher_sleeps = True
        self._batcher = threading.Thread(target=self._batch_loop, name="batch", daemon=True)
        self._batcher.start()

    @property
    def next_sequence(self) -> int:
        """The sequence number the next message gets."""
        return self._next_sequence

    def publish(self, payload: bytes, key: bytes | None = None, time_ns: int | None = None) -> int:
        """Publish one message and return its sequence number.

        It is in the session's file when this returns, or at most `linger_s` later.

        Args:
            payload: the message.
            key: by which subscribers may select; optional.
            time_ns: when it happened, ns since the epoch; now if not given.

        Raises:
            Misuse: wrong type, larger than the limit, or a time that is none.
            Stopped: the publisher is closed.
            WriterFailed: the disk failed; nothing more can be published.
            OSError: the disk is full; this message was not taken, those before it still are.
        """
        if type(payload) is not bytes:
            payload = _as_bytes(payload)
        size = len(payload)
        if key is not None:
            key = _as_bytes(key)
            size += len(key)
        if time_ns is not None:
            time_ns = _checked_times([time_ns])[0]
        now = time_ns_now()
        with self._lock:
            if size > self._size_max:
                raise self._refusal(size)
            if key is not None or self._keys is not None:
                self._take_key(key)
            self._payloads.append(payload)
            self._times.append(now if time_ns is None else time_ns)
            self._room -= size + _COLUMN_BYTES
            sequence = self._next_sequence
            self._next_sequence = sequence + 1
            is_alone = now >= self._alone_after_ns
            self._alone_after_ns = now + self._linger_ns
            if is_alone or self._room <= 0:
                self._write_or_give_back(size)
            elif self._batcher_sleeps:
                self._batcher_sleeps = False
                self._wake.notify()
        return sequence

    def publish_many(
        self,
        payloads: Iterable[bytes],
        keys: Iterable[bytes] | None = None,
        times_ns: Iterable[int] | None = None,
    ) -> range:
        """Publish messages in order and return their sequence numbers.

        Args:
            payloads: the messages.
            keys: one for each message, or None for no keys.
            times_ns: one for each message, or None for now.

        Raises:
            As `publish`; `Misuse` before anything is taken. On a full disk the numbers up to
            `next_sequence` were taken and the rest were not.
        """
        payloads = _checked_list(payloads, "payload")
        keys = None if keys is None else _checked_list(keys, "key")
        times = [time_ns_now()] * len(payloads) if times_ns is None else _checked_times(times_ns)
        if len(times) != len(payloads) or (keys is not None and len(keys) != len(payloads)):
            raise Misuse("publish_many needs as many keys and times as payloads")
        sizes = list(map(len, payloads))
        if keys is not None:
            sizes = [size + len(key) for size, key in zip(sizes, keys, strict=True)]
        with self._lock:
            if max(sizes, default=0) > self._size_max:
                raise self._refusal(max(sizes, default=0))
            self._write_pending()
            self._alone_after_ns = time_ns_now() + self._linger_ns
            first = self._next_sequence
            for start, end in _cuts(sizes, self._frame_bytes):
                self._writer.write(times[start:end], payloads[start:end], keys and keys[start:end])
                self._next_sequence = self._writer.next_sequence
        return range(first, first + len(payloads))

    def skip_to(self, sequence: int) -> None:
        """Let the next message have the number `sequence`, which must not go back.

        For publishers that number their messages themselves: the sequencer drops a number it has
        merged before, so that two of them may publish the same messages.
        """
        with self._lock:
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
            FlushTimeout: with the level that was reached; the messages stay and go on shipping.
            WriterFailed: the disk failed.
        """
        wanted = level if isinstance(level, Level) else Level.parse(level)
        deadline = time.monotonic() + timeout_s
        with self._lock:
            if self._closed:
                raise self._refusal(0)
            self._write_pending()
            target = self._writer.end
        if wanted is Level.WRITTEN:
            return Confirmed(wanted, target, None)
        if not self._writer.sync(timeout_s):
            raise FlushTimeout(Level.WRITTEN.name, wanted.name, timeout_s)
        if wanted is Level.SYNCED:
            return Confirmed(wanted, target, None)
        return self._await_nodes(wanted, target, deadline, timeout_s)

    def close(self) -> None:
        """Write and sync what was published, and release the session. Twice is once."""
        with self._lock:
            if self._closed:
                return
            self._closed, self._size_max = True, -1
            self._wake.notify()
        self._batcher.join()
        try:
            self._write_pending()
        finally:
            self._writer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def _take_key(self, key: bytes | None) -> None:
        if self._keys is None:
            self._keys = [b""] * len(self._payloads)
        self._keys.append(key or b"")

    def _write_or_give_back(self, size: int) -> None:
        try:
            self._write_pending()
        except OSError:
            self._payloads.pop()
            self._times.pop()
            if self._keys:
                self._keys.pop()
            self._room += size + _COLUMN_BYTES
            self._next_sequence -= 1
            raise

    def _write_pending(self) -> None:
        if not self._payloads:
            return
        self._writer.write(self._times, self._payloads, self._keys)
        self._payloads, self._times, self._keys = [], [], None
        self._room = self._frame_bytes
        self._written_s = time.monotonic()

    def _batch_loop(self) -> None:
        with self._lock:
            while not self._closed:
                try:
                    self._batch_once()
                except WriterFailed:
                    return  # the next call of the publisher is told
                except OSError:
                    self._wake.wait(_RETRY_S)

    def _batch_once(self) -> None:
        if not self._payloads:
            self._batcher_sleeps = True
            self._wake.wait(self._batching.linger_s + 1)
            self._writer.roll_if_old()
            return
        linger_s = self._batching.linger_s
        oldest, due_s = self._payloads[0], time.monotonic() + linger_s
        while self._payloads and not self._closed and (left_s := due_s - time.monotonic()) > 0:
            self._wake.wait(left_s)
            if self._payloads and self._payloads[0] is not oldest:  # a frame was filled meanwhile
                oldest, due_s = self._payloads[0], self._written_s + linger_s
        self._write_pending()

    def _await_nodes(
        self, level: Level, target: Position, deadline: float, timeout_s: float
    ) -> Confirmed:
        pause_s = _POLL_FIRST_S
        while True:
            confirmed = self._confirmations.read()
            if confirmed.reached(level) >= target:
                merged_at = confirmed.merged_at if level is Level.MERGED else None
                return Confirmed(level, target, merged_at)
            if time.monotonic() >= deadline:
                reached = [
                    each for each in Level if each >= Level.RECEIVED
                    and confirmed.reached(each) >= target
                ]  # fmt: skip
                best = max(reached, default=Level.SYNCED)
                raise FlushTimeout(best.name, level.name, timeout_s)
            time.sleep(pause_s)
            pause_s = min(1.3 * pause_s, _POLL_LAST_S)

    def _refusal(self, size: int) -> Misuse | Stopped:
        if self._closed:
            return Stopped(f"publisher {self.name!r} is closed")
        return Misuse(
            f"a message of {size} bytes is larger than the limit of {self._size_max} "
            "(message_bytes_max); send it in parts"
        )


def _as_bytes(value: object) -> bytes:
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    raise Misuse(f"a message is bytes, not {type(value).__name__}; encode it first")


def _checked_list(values: Iterable[bytes], noun: str) -> list[bytes]:
    values = list(values)
    if strange := set(map(type, values)) - {bytes}:
        names = ", ".join(sorted(each.__name__ for each in strange))
        raise Misuse(f"each {noun} of publish_many is bytes, not {names}; encode it first")
    return values


def _checked_times(times_ns: Iterable[int]) -> list[int]:
    try:
        return array("q", times_ns).tolist()
    except (TypeError, OverflowError) as error:
        raise Misuse(f"a time is ns since the epoch, an integer of 64 bits: {error}") from None


def _cuts(sizes: Sequence[int], frame_bytes: int) -> Iterable[tuple[int, int]]:
    """Cut a run of messages so that each piece fills a frame and no more."""
    totals = [0, *accumulate(sizes)]
    start, count = 0, len(sizes)
    while start < count:
        full = totals[start] + _COLUMN_BYTES * start + frame_bytes
        end = bisect_left(
            range(count),
            full,
            lo=start + 1,
            key=lambda place: totals[place] + _COLUMN_BYTES * place,
        )
        yield start, end
        start = end
