"""Batcher: a thread that writes pending messages when their linger time is over."""

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

_FRAME_BYTES_MAX: Final = 8 * MIB  # plus one message of 16 MiB, still within the 32 MiB of a body
_RETRY_S: Final = 0.1  # after an error such as a full disk
_EXIT_S: Final = 1.0  # how long a publisher's thread may delay the end of the process


@dataclass(frozen=True, slots=True)
class Batching:
    """How messages are grouped into frames.

    A message after a pause is written at once, by the call that publishes it. A message less than
    `linger_s` after the previous one waits that long for others, or until the frame is full. So a
    single message is not delayed, and in a flood one write covers thousands.

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

    Threads:
        `lock`, which is the publisher's, guards everything here and the pending frame. The thread
        holds it while writing and releases it while waiting. `is_idle` lets the publisher skip
        the wake-up call, which costs 1 us, if the thread already waits for the right moment.
    """

    __slots__ = (
        "__weakref__", "_closing", "_linger_s", "_pending", "_roll_if_old", "_thread", "_wake",
        "_write", "_written_s", "is_idle",
    )  # fmt: skip

    def __init__(
        self,
        lock: threading.Lock,
        pending: PendingFrame,
        linger_s: float,
        write: Callable[[], object],
        roll_if_old: Callable[[], None] | None = None,
    ) -> None:
        """Start the thread.

        Args:
            lock: held by every caller of a method here, except `stop`.
            pending: the messages that wait.
            linger_s: how long a message waits for others.
            write: writes the pending frame and clears it; called again after an `OSError`.
            roll_if_old: called about once a second while nothing waits, if files roll by age.
        """
        self.is_idle = True
        self._closing = False
        self._pending = pending
        self._linger_s = linger_s
        self._write = write
        self._roll_if_old = roll_if_old
        self._written_s = 0.0  # when a frame was last written; pending messages are newer
        self._wake = threading.Condition(lock)
        self._thread = threading.Thread(target=self._run, name="batch", daemon=True)
        self._thread.start()
        _running.add(self)

    def rouse(self) -> None:
        """Wake the thread if it has not seen a waiting message."""
        self.is_idle = False
        self._wake.notify()

    def written(self) -> None:
        """Record that the pending frame was just written."""
        self._written_s = time.monotonic()

    def stop(self) -> None:
        """End the thread. Call it without the lock, after the last message."""
        _running.discard(self)
        with self._wake:
            self._closing = True
            self._wake.notify()
        self._thread.join()

    def write_last(self) -> None:
        """Write what is pending, at process exit; in a forked child nothing is pending."""
        if self._pending.payloads and self._wake.acquire(timeout=_EXIT_S):
            try:
                with suppress(RtError, OSError):  # no caller is left to handle an error
                    self._write()
            finally:
                self._wake.release()

    def _run(self) -> None:
        with self._wake:
            while not self._closing:
                try:
                    self._turn()
                except WriterFailed:
                    return  # the publisher's next call raises the error
                except OSError:
                    self._wake.wait(_RETRY_S)

    def _turn(self) -> None:
        pending, linger_s = self._pending, self._linger_s
        if not pending.payloads:
            self.is_idle = True
            self._wake.wait(linger_s + 1 if self._roll_if_old else None)
            if self._roll_if_old:
                self._roll_if_old()
            return
        oldest, due_s = pending.payloads[0], time.monotonic() + linger_s
        while pending.payloads and not self._closing and (left_s := due_s - time.monotonic()) > 0:
            self._wake.wait(left_s)
            # the frame filled up and was written
            if pending.payloads and pending.payloads[0] is not oldest:
                oldest, due_s = pending.payloads[0], self._written_s + linger_s
        self._write()


_running: Final[WeakSet[Batcher]] = WeakSet()


@atexit.register
def _write_all() -> None:
    """Write the pending messages of publishers left open, which would be lost at exit."""
    for batcher in list(_running):
        batcher.write_last()
