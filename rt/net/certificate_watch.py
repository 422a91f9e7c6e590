"""CertificateWatch: ends each connection within a second after a certificate becomes invalid.

A handshake checks a certificate once, but a connection lasts for weeks. So every connection of the
process is checked here several times a second, whatever its protocol and whichever side dialled.
"""

import logging
import socket
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from typing import Final

from cryptography import x509

from rt.net.authority.trust import FileStamp, Trust, TrustFacts, file_stamp
from rt.net.repeated import RepeatedLines

_log: Final = logging.getLogger("rt.net")
# Two fifths of the promised second. A check costs two `stat` calls, and after a change up to 0.3 s
# of processor time: 512 signatures at 0.15 ms, and 100,000 revocations at 2 us.
PERIOD_S: Final = 0.4
_REMIND_LOOKS: Final = 5  # a warning that is repeated daily may be two seconds late
_WARN_EVERY_S: Final = 86_400.0


@dataclass(slots=True, eq=False)
class _Watched:
    """A connection, and what decides whether it may continue."""

    sock: "weakref.ref[socket.socket]"
    name: str
    certificate: x509.Certificate
    expires_s: float  # expiry of the peer's certificate, seconds since the epoch
    trust: Trust
    facts: TrustFacts | None  # the facts under which it was last found good
    change: Callable[[], str]  # returns what changed on our side and ends the connection, or ""


class CertificateWatch:
    """Ends a connection once the peer's certificate or the authority's files forbid it.

    It watches all connections of a process, and ends a connection within `PERIOD_S` plus the time
    of two checks after the files have changed.

    Threads: `watch` and `remind` may be called by any thread. `_lock` guards `_watched`,
    `_reminders` and `_thread`; only the watching thread examines their contents, on copies, and
    uses `_due_s` and `_stamps`.
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.time,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        """Watch nothing until `start`.

        Args:
            clock: returns the time in seconds since the epoch.
            pause: waits for a number of seconds.
        """
        self._clock = clock
        self._pause = pause
        self._lock = threading.Lock()
        self._watched: list[_Watched] = []
        self._reminders: list[tuple[str, weakref.WeakMethod[Callable[[], str]]]] = []
        self._due_s: dict[str, float] = {}  # when each subject may be logged again
        # stamps at the current check, by the paths of a context's files
        self._stamps: dict[tuple[str, ...], tuple[FileStamp, ...]] = {}
        self._repeats = RepeatedLines(_log)
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start watching; idempotent."""
        with self._lock:
            if self._thread is None or not self._thread.is_alive():  # not alive in a forked child
                self._thread = threading.Thread(target=self.run, name="certificates", daemon=True)
                self._thread.start()

    def watch(
        self,
        sock: socket.socket,
        name: str,
        certificate: x509.Certificate,
        trust: Trust,
        change: Callable[[], str],
    ) -> None:
        """Check a connection from now on, and end it as soon as it is not allowed any more.

        The first check verifies the certificate again, because the handshake used the authorities
        known when it began, and the files may have changed since.

        Args:
            sock: the connection, or a second descriptor of it; only a weak reference is kept.
            name: the peer's name, for the log.
            certificate: the peer's certificate, verified by `trust`.
            trust: the authorities and revocations to verify it by.
            change: returns what changed on our side that ends the connection; "" if nothing.
        """
        watched = _Watched(
            weakref.ref(sock), name, certificate, certificate.not_valid_after_utc.timestamp(),
            trust, None, change,
        )  # fmt: skip
        with self._lock:
            self._watched.append(watched)

    def remind(self, subject: str, warning: Callable[[], str]) -> None:
        """Call a bound method regularly; log its result, if not "", once a day for each subject."""
        with self._lock:
            self._reminders.append((subject, weakref.WeakMethod(warning)))

    def run(self) -> None:
        """Check the connections repeatedly; for a thread of its own."""
        for looks in count():
            self.check()
            if looks % _REMIND_LOOKS == 0:
                self._remind()
            self._repeats.flush()
            self._pause(PERIOD_S)

    def stamps(self, paths: tuple[str, ...]) -> tuple[FileStamp, ...]:
        """Return the stamps that files had at the current check; for the watching thread.

        A check makes only one `stat` call for each file, even if a hundred streams share the file.
        """
        if (found := self._stamps.get(paths)) is None:
            found = self._stamps[paths] = tuple(map(file_stamp, paths))
        return found

    def check(self) -> None:
        """Check all connections once, and end those that may not continue."""
        self._stamps.clear()
        with self._lock:
            watched = self._watched.copy()
        for trust in {each.trust for each in watched}:
            trust.refresh()
        gone = {each for each in watched if not self._is_good(each)}
        if gone:
            with self._lock:
                self._watched = [each for each in self._watched if each not in gone]

    def _is_good(self, watched: _Watched) -> bool:
        """Return whether a connection may continue; ends it if not."""
        sock = watched.sock()
        if sock is None or sock.fileno() < 0:
            return False
        why = _objection(watched, self._clock())
        if not why:
            return True
        kind = f"{watched.name} {why}"
        self._repeats.warn(kind, f"the connection with {watched.name} was ended: {why}")
        with suppress(OSError):
            # its TLS object belongs to another thread
            socket.socket.shutdown(sock, socket.SHUT_RDWR)
        return False

    def _remind(self) -> None:
        now_s = time.monotonic()
        with self._lock:
            self._reminders = [each for each in self._reminders if each[1]() is not None]
            reminders = dict(self._reminders)  # a hundred streams share the same certificate
        for subject, reference in reminders.items():
            warning = reference()
            is_due = now_s >= self._due_s.get(subject, 0.0)
            if warning is not None and is_due and (line := warning()):
                _log.warning("%s", line)
                self._due_s[subject] = now_s + _WARN_EVERY_S


def _objection(watched: _Watched, now_s: float) -> str:
    """Return why a connection may not continue; "" if it may."""
    if now_s >= watched.expires_s:
        return "its certificate has expired"
    facts = watched.trust.facts
    if facts is not watched.facts:
        if why := watched.trust.objection(watched.certificate):
            return f"its certificate is not good any more: {why}"
        watched.facts = facts
    return watched.change()


certificate_watch: Final = CertificateWatch()
