"""Batcher: writes messages after they have waited long enough for others."""

import atexit
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final
from weakref import WeakSet

from rt.errors import Misuse, RtError, WriterFailed
from rt.limits import FRAME_BYTES_DEFAULT, KIB, MESSAGE_BYTES_MAX, MIB
from rt.log.write.pending import PendingFrame
from rt.log.write.sync_threads import batch_threads

_FRAME_BYTES_MAX: Final = 8 * MIB  # plus one message of 16 MiB, still within the 32 MiB of a body
_RETRY_S: Final = 0.1  # after an error such as a full disk
_AGE_S: Final = 1.0  # between two looks whether a file is old enough to be rolled
_EXIT_S: Final = 1.0  # how long another thread may delay the end of the process


@dataclass(frozen=True, slots=True)
class Batching:
    """How messages are grouped into frames.

    A message that follows a pause is written immediately, by the call that publishes it. A message
    that comes less than `linger_s` after the previous one waits that long for others, or until the
    frame is full. So a single message is not delayed, and in a flood one write covers thousands.

    Args:
        frame_bytes: a frame is written when it holds this many bytes; 1 KiB to 8 MiB.
        linger_s: how long a message waits for others, 0 to 60 s; 0 writes each one at once.
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


class Batcher:
    """Writes a publisher's pending frame `linger_s` after its first message arrived.

    Its turns run in threads shared by all publishers of the process on the same disk
    (`batch_threads`).

    Threads:
        `lock`, which is the publisher's, guards everything here and the pending frame; `turn` takes
        it. `is_idle` lets the publisher skip `rouse` if a turn is planned already.
    """

    __slots__ = (
        "__weakref__", "_closing", "_linger_s", "_lock", "_pending", "_roll_if_old", "_roused_s",
        "_threads", "_write", "_written_s", "is_idle",
    )  # fmt: skip

    def __init__(
        self,
        directory: str,
        lock: threading.Lock,
        pending: PendingFrame,
        linger_s: float,
        write: Callable[[], object],
        *,
        roll_if_old: Callable[[], None] | None = None,
    ) -> None:
        """Start batching; `RuntimeError` if the system allows no further thread.

        `write` writes the pending frame and clears it; it is called again after an `OSError`.
        `roll_if_old` is called about once a second while nothing waits, if files roll by age.
        """
        self.is_idle = True
        self._closing = False
        self._lock = lock
        self._pending = pending
        self._linger_s = linger_s
        self._write = write
        self._roll_if_old = roll_if_old
        self._roused_s = 0.0  # when the message came that a turn was planned for
        self._written_s = 0.0  # when a frame was last written; pending messages are newer
        self._threads = batch_threads(directory)
        self._threads.join(self)
        if roll_if_old is not None:
            self._threads.ask(self, linger_s + _AGE_S)
        _running.add(self)

    def rouse(self) -> None:
        """Plan a turn that writes the waiting message; call this only if `is_idle`."""
        self.is_idle = False
        self._roused_s = time.monotonic()
        self._threads.ask(self, self._linger_s)

    def written(self) -> None:
        """Record that the pending frame was just written."""
        self._written_s = time.monotonic()

    def stop(self) -> None:
        """Stop batching. Call it without the lock, after the last message."""
        _running.discard(self)
        with self._lock:
            self._closing = True
        self._threads.leave(self)

    def write_last(self) -> None:
        """Write waiting messages at process exit; in a forked child there are none."""
        if self._pending.payloads and self._lock.acquire(timeout=_EXIT_S):
            try:
                with suppress(RtError, OSError):  # no caller is left to handle an error
                    self._write()
            finally:
                self._lock.release()

    def turn(self) -> float | None:
        """Write messages that have waited long enough; return the seconds until the next turn.

        Returns None if no turn should follow: the publisher is closing, or its writer has failed,
        and the publisher's next call raises the error.
        """
        with self._lock:
            if self._closing:
                return None
            try:
                return self._take_turn()
            except WriterFailed:
                return None  # the publisher's next call raises it
            except OSError:
                return _RETRY_S

    def _take_turn(self) -> float | None:
        if self._pending.payloads:
            # if the frame filled up and was written, the messages waiting now came after that
            waits_since_s = max(self._roused_s, self._written_s)
            left_s = waits_since_s + self._linger_s - time.monotonic()
            if left_s > 0:
                return left_s
            self._write()
        elif self._roll_if_old is not None:
            self._roll_if_old()
        self.is_idle = True
        return None if self._roll_if_old is None else self._linger_s + _AGE_S


_running: Final[WeakSet[Batcher]] = WeakSet()


@atexit.register
def _write_all() -> None:
    """Write the pending messages of publishers left open, which would be lost at exit."""
    for batcher in list(_running):
        batcher.write_last()
