"""StopSignals: lets a command shut down cleanly when a signal arrives."""

import os
import select
import signal
from collections.abc import Callable
from contextlib import suppress
from types import FrameType
from typing import IO, Any, Final, Self

_BYTES: Final = 4096  # more signals than come between two looks
_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class StopSignals:
    """While open, records the first SIGTERM, SIGINT or SIGHUP and ends waits.

    A second signal raises `KeyboardInterrupt`. A second SIGHUP does not, since a closing terminal
    and its shell send one each. After a SIGHUP, later ones are ignored even after the context ends,
    so that they cannot end the process early. If SIGHUP was ignored before (nohup), it stays
    ignored. Use it in the main thread, in which Python handles signals.

    Threads: The main thread only. `_received` is set by the signal handler, between any two
        instructions. A signal also makes the interpreter write a byte to a pipe, and that byte ends
        a poll. The handler could not: if a signal arrives just before a poll, the interpreter calls
        the handler only after the poll.
    """

    def __init__(self, on_stop: Callable[[], None] | None = None, *, reloads: bool = False) -> None:
        """Prepare the handlers; `__enter__` installs them.

        Args:
            on_stop: Called by the handler on the first signal; must be quick and take no lock.
            reloads: Whether SIGHUP asks for a reload instead of a stop. In a terminal, SIGHUP
                always stops the command, since a closing terminal sends it.
        """
        self._reloads = reloads and not os.isatty(0)
        self._is_to_reload = False
        self._received = 0
        self._on_stop = on_stop
        self._pipe = (-1, -1)
        self._wakeup_before = -1
        self._before: dict[signal.Signals, Any] = {}

    def has_come(self) -> bool:
        """Return whether a signal has arrived."""
        return bool(self._received)

    @property
    def is_interrupt(self) -> bool:
        """Return whether the signal that arrived was ctrl-C."""
        return self._received == signal.SIGINT

    def wait_readable(self, source: IO[bytes]) -> bool:
        """Wait until `source` is readable or a signal arrives; return False for a signal."""
        poller = select.poll()
        poller.register(source.fileno(), select.POLLIN)
        poller.register(self._pipe[0], select.POLLIN)
        while not self._received:
            ready = dict(poller.poll())
            self._drain()
            if source.fileno() in ready:
                break
        return not self._received

    def wait(self, timeout_s: float) -> bool:
        """Wait for `timeout_s` seconds, or until a signal arrives; return False for a signal."""
        if timeout_s > 0 and not self._received:
            poller = select.poll()
            poller.register(self._pipe[0], select.POLLIN)
            poller.poll(timeout_s * 1000)
            self._drain()
        return not self._received

    def take_reload(self) -> bool:
        """Return whether SIGHUP has asked for a reload since the last call."""
        is_to_reload, self._is_to_reload = self._is_to_reload, False
        return is_to_reload

    def raise_interrupt(self) -> None:
        """Raise `KeyboardInterrupt` if the signal was SIGINT; call it after cleaning up."""
        if self.is_interrupt:
            raise KeyboardInterrupt

    def __enter__(self) -> Self:
        self._pipe = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._wakeup_before = signal.set_wakeup_fd(self._pipe[1], warn_on_full_buffer=False)
        for number in _SIGNALS:
            if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:
                self._before[number] = signal.signal(number, self._receive)
        return self

    def __exit__(self, *_error: object) -> None:
        for number, handler in self._before.items():
            has_hung_up = number == signal.SIGHUP == self._received
            signal.signal(number, signal.SIG_IGN if has_hung_up else handler)
        signal.set_wakeup_fd(self._wakeup_before)
        for fd in self._pipe:
            os.close(fd)
        self._pipe = (-1, -1)

    def _drain(self) -> None:
        with suppress(BlockingIOError):
            os.read(self._pipe[0], _BYTES)

    def _receive(self, number: int, _frame: FrameType | None) -> None:
        if number == signal.SIGHUP and self._reloads:
            self._is_to_reload = True
            return
        if self._received:
            if number == signal.SIGHUP:
                return
            raise KeyboardInterrupt
        self._received = number
        if self._on_stop is not None:
            self._on_stop()
