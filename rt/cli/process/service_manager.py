"""ServiceManager: notifies systemd that a program is ready, alive, reloading or stopping."""

import gc
import os
import socket
import time
from collections.abc import Callable, Mapping
from contextlib import suppress

from rt.cli.process.stop_signals import StopSignals


class ServiceManager:
    """Sends notifications to systemd's socket in `NOTIFY_SOCKET`; if that is not set, sends none.

    Notifies the watchdog at half its interval, from the main loop and only while no loop of the
    program is stuck; a separate thread would notify even while the main loop is stuck. A
    notification that cannot be sent is dropped and not an error: at worst, systemd restarts the
    program.
    """

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        """Read the socket's address.

        Args:
            environment: The process's environment.
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
        """Report that the program is ready; return a function for its main loop to call each turn.

        That function reloads on request, and notifies the watchdog. `attend` also exempts all
        objects made so far from garbage collection, which would otherwise traverse them in vain,
        and stop all threads for some 20 ms each time.

        Args:
            signals: Records whether SIGHUP has requested a reload.
            reload: Loads certificates and settings again.
            stuck: Returns the name of a loop that is stuck; "" if none is.
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
        """Send a notification of these lines, such as `READY=1`; do nothing without a socket."""
        if self._address:
            with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
                sock.setblocking(False)
                sock.sendto("\n".join(lines).encode(), self._address)

    def stopping(self) -> None:
        """Report that the program is stopping, before it ships or syncs what is left."""
        self.tell("STOPPING=1")
