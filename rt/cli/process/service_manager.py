"""ServiceManager: tells systemd that a program is ready, alive, reloading or stopping."""

import gc
import os
import socket
import time
from collections.abc import Callable, Mapping
from contextlib import suppress

from rt.cli.process.stop_signals import StopSignals


class ServiceManager:
    """Sends a datagram to the socket that `NOTIFY_SOCKET` names; does nothing without it.

    The watchdog is fed at half its time, and only while no loop of the program is stuck: a thread
    that feeds it by itself would prove nothing. What cannot be sent is dropped, as the service
    manager would rather restart a program than have it fail.
    """

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        """Read who listens.

        Args:
            environment: of the process.
        """
        path = environment.get("NOTIFY_SOCKET", "")
        self._address = f"\0{path[1:]}" if path.startswith("@") else path
        watchdog = environment.get("WATCHDOG_USEC", "")
        is_ours = environment.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        feeds = is_ours and watchdog.isascii() and watchdog.isdecimal()
        self._pause_s = int(watchdog) / 2e6 if feeds else float("inf")
        self._next_s = 0.0

    def attend(
        self, signals: StopSignals, reload: Callable[[], None], stuck: Callable[[], str]
    ) -> Callable[[], None]:
        """Say that the program is ready; return what its main loop has to call at each turn.

        What was made until now stays: it is left out of garbage collections from here on, each of
        which would otherwise hold up all threads for some 20 ms to find nothing.

        Args:
            signals: ask for reloads.
            reload: loads certificates and settings again.
            stuck: returns what is stuck; "" if nothing is.
        """
        gc.collect()
        gc.freeze()
        self.tell("READY=1")

        def turn() -> None:
            if signals.take_reload():
                self.tell("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}")
                reload()
                self.tell("READY=1")
            now_s = time.monotonic()
            if now_s >= self._next_s and self._pause_s < float("inf") and not stuck():
                self._next_s = now_s + self._pause_s
                self.tell("WATCHDOG=1")

        return turn

    def tell(self, *lines: str) -> None:
        """Send a notice."""
        if self._address:
            with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
                sock.setblocking(False)
                sock.sendto("\n".join(lines).encode(), self._address)

    def stopping(self) -> None:
        """Say that the program ends, before it ships or syncs what is left."""
        self.tell("STOPPING=1")
