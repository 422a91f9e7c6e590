"""StopSignals: lets a command end by its own order where a signal asks it to."""

import select
import signal
from collections.abc import Callable
from types import FrameType
from typing import Any, Final, Protocol, Self

from rt.log.watch import Wake

_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class Readable(Protocol):
    """What can be waited for."""

    def fileno(self) -> int:
        """The descriptor to poll for reading."""


class StopSignals:
    """While open, the first signal is remembered and wakes who waits; a second one interrupts.

    Not a hang-up, of which a closed terminal and its shell send one each, and which is left alone
    where it is ignored (nohup). Made by the main thread, since only that one is told of signals.
    """

    def __init__(self, on_stop: Callable[[], None] | None = None) -> None:
        """Stand ready.

        Args:
            on_stop: is called by the first signal; must be quick and take no lock.
        """
        self._received = 0
        self._on_stop = on_stop
        self._wake = Wake()
        self._before: dict[signal.Signals, Any] = {}

    def has_come(self) -> bool:
        """Whether a signal has come."""
        return bool(self._received)

    def wait_readable(self, source: Readable) -> bool:
        """Wait until `source` can be read; False when a signal has come."""
        poller = select.poll()
        poller.register(source.fileno(), select.POLLIN)
        poller.register(self._wake.fileno(), select.POLLIN)
        poller.poll()
        return not self._received

    def wait(self, timeout_s: float) -> bool:
        """Wait for so long; False when a signal has come."""
        if timeout_s > 0 and not self._received:
            poller = select.poll()
            poller.register(self._wake.fileno(), select.POLLIN)
            poller.poll(timeout_s * 1000)
        return not self._received

    def raise_interrupt(self) -> None:
        """Raise `KeyboardInterrupt` if it was SIGINT, now that everything is in order."""
        if self._received == signal.SIGINT:
            raise KeyboardInterrupt

    def __enter__(self) -> Self:
        for number in _SIGNALS:
            if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:
                self._before[number] = signal.signal(number, self._receive)
        return self

    def __exit__(self, *_error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._wake.close()

    def _receive(self, number: int, _frame: FrameType | None) -> None:
        if self._received:
            if number == signal.SIGHUP:
                return
            raise KeyboardInterrupt
        self._received = number
        self._wake.set()
        if self._on_stop is not None:
            self._on_stop()
