"""The system of a simulated event loop: epoll with its bell, sockets, a clock, other threads."""

import errno
import heapq
import math
import ssl
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from random import Random
from typing import Any

from rt.errors import PeerError, RtError
from rt.net.loop.poller import READABLE, WRITABLE
from rt.net.loop.turns import Act, LoopTurns

from .checkers import Violation

ERROR, HANG_UP = 8, 16
BELL = 3
SPURIOUS = 0.03  # of the waits report a descriptor that has nothing any more
CUT = 0.1  # of the waits report not all that is ready
FIRST_FD = 1_000  # no real file of this process has such a number


class LoopSystem:
    """A clock that moves as work is done, descriptors, and threads that run between two calls."""

    def __init__(self, chance: Random) -> None:
        self.chance = chance
        self.now_us = 0
        self.jumped_us = 0  # when the machine last woke from a sleep
        self.events = 0
        self.is_loop = False  # whether the loop's thread runs
        self.has_threads = True  # whether the system allows a further one
        self.refused_us = -1  # when it last did not
        self.files: dict[int, SimSocket] = {}
        self.violation: Violation | None = None  # the first
        self._agenda: list[tuple[int, int, Callable[..., None], tuple[Any, ...]]] = []

    def clock(self) -> float:
        """Return the time; other threads may have run before."""
        self.let_others()
        self.now_us += 1
        return self.now_us / 1e6

    def work(self, us: int) -> None:
        """Take some time; other threads may run meanwhile."""
        self.now_us += us
        self.let_others()

    def violate(self, words: str) -> None:
        """Something is wrong; it is said even if what called this catches all errors."""
        self.violation = self.violation or Violation(f"{words}, at {self.now_us} us")
        raise self.violation

    def sleep(self, us: int) -> None:
        """Let the clock jump, as after a suspended machine."""
        self.now_us += us
        self.jumped_us = self.now_us

    def after(self, delay_us: int, act: Callable[..., None], *args: Any) -> None:
        """Have another thread call this later."""
        self.events += 1
        heapq.heappush(self._agenda, (self.now_us + delay_us, self.events, act, args))

    def let_others(self) -> None:
        """Let another thread that could run do so, or not: the loop's is not the only one."""
        if self.is_loop and self._is_due() and self.chance.random() < 0.3:
            self.run_next()

    def run_due(self) -> None:
        """Let the other threads do what they could have done by now."""
        while self._is_due():
            self.run_next()

    def run_next(self) -> None:
        """Go on to what another thread does next."""
        at_us, _, act, args = heapq.heappop(self._agenda)
        self.now_us = max(self.now_us, at_us)
        was_loop, self.is_loop = self.is_loop, False
        act(*args)
        self.is_loop = was_loop

    @property
    def next_us(self) -> float:
        """When another thread does something next."""
        return self._agenda[0][0] if self._agenda else math.inf

    @contextmanager
    def own_thread(self) -> Iterator[None]:
        """Be the loop's thread."""
        self.is_loop = True
        yield
        self.is_loop = False

    def _is_due(self) -> bool:
        return bool(self._agenda) and self._agenda[0][0] <= self.now_us


class SimPoller:
    """Level-triggered epoll, as strict as the system's: numbers are used again at once."""

    bell = BELL

    def __init__(self, system: LoopSystem, polled: Callable[[float], None]) -> None:
        """Wait for nothing yet; `polled` is called as each wait begins, with its length."""
        self._system = system
        self._polled = polled
        self._masks: dict[int, int] = {}
        self._rung = 0
        self.polls = 0

    def poll(self, timeout_s: float) -> Sequence[tuple[int, int]]:
        """Return what is ready; let other threads run until something is, or the time is over."""
        system, chance = self._system, self._system.chance
        self.polls += 1
        self._polled(0.0 if self._rung else timeout_s)
        until_us = system.now_us + math.ceil(timeout_s * 1000) * 1000
        system.run_due()
        while not (ready := self._ready()) and system.next_us <= until_us:
            system.run_next()
        if not ready:
            system.now_us = max(system.now_us, until_us)
        if self._masks and chance.random() < SPURIOUS:
            ready.append((chance.choice([*self._masks]), READABLE))
        chance.shuffle(ready)
        if ready and chance.random() < CUT:
            del ready[chance.randint(1, len(ready)) :]
        return ready

    def _ready(self) -> list[tuple[int, int]]:
        for fd in [fd for fd in self._masks if fd not in self._system.files]:
            self._system.violate(f"descriptor {fd} was closed while it was watched")
        found = [
            (fd, events) for fd, mask in self._masks.items()
            if (events := self._system.files[fd].events() & (mask | ERROR | HANG_UP))
        ]  # fmt: skip
        return [*found, (BELL, READABLE)] if self._rung else found

    def register(self, fd: int, events: int) -> None:
        """Watch a descriptor."""
        if fd in self._masks:
            raise FileExistsError(errno.EEXIST, "it is watched already")
        self._set(fd, events)

    def modify(self, fd: int, events: int) -> None:
        """Watch it for other events."""
        if fd not in self._masks:
            raise FileNotFoundError(errno.ENOENT, "it is not watched")
        self._set(fd, events)

    def unregister(self, fd: int) -> None:
        """Watch it no more."""
        if fd not in self._masks or fd not in self._system.files:
            raise FileNotFoundError(errno.ENOENT, "it is not watched, or not open")
        del self._masks[fd]

    def _set(self, fd: int, events: int) -> None:
        if not self._system.is_loop:
            self._system.violate("another thread than the loop's changed what is watched")
        if fd not in self._system.files:
            raise OSError(errno.EBADF, "it is not open")
        self._masks[fd] = events

    def ring(self) -> None:
        """Ring; other threads run before and after."""
        self._system.let_others()
        self._rung += 1
        self._system.let_others()

    def hear(self) -> None:
        """Read the eventfd, which is an error if it was not rung."""
        self._system.let_others()
        if not self._rung:
            raise BlockingIOError
        self._rung = 0
        self._system.let_others()

    def close(self) -> None:
        """Nothing is held."""


class SimSocket:
    """A non-blocking TLS connection; the world plays the peer.

    What had no room has to be sent again, the same bytes, as TLS demands.
    """

    def __init__(self, system: LoopSystem, room: int) -> None:
        self._system = system
        self.fd = next(fd for fd in range(FIRST_FD, 1 << 20) if fd not in system.files)
        system.files[self.fd] = self
        self.room = room
        self.inbox, self.got = bytearray(), bytearray()
        self.has_hung_up = self.is_reset = False
        self.sent_us = 0  # when something was last sent, or room was made
        self._refused: bytes | None = None

    def events(self) -> int:
        """Return what epoll would."""
        if self.is_reset:
            return READABLE | WRITABLE | ERROR | HANG_UP
        return READABLE * bool(self.inbox or self.has_hung_up) | WRITABLE * (self.room > 0)

    @property
    def is_open(self) -> bool:
        """Whether this side has it open."""
        return self._system.files.get(self.fd) is self

    def fileno(self) -> int:
        """The descriptor."""
        return self.fd

    def settimeout(self, seconds: float | None) -> None:
        """It never waits."""

    def pending(self) -> int:
        """What TLS has decrypted and was not read yet."""
        return 0

    def selected_alpn_protocol(self) -> str | None:
        """An old protocol, in which no one introduces itself."""
        return None

    def read(self, most: int, into: memoryview | None = None) -> Any:
        """Return what has come, a record at most; with a buffer, its length."""
        self._demand_open()
        if self.is_reset:
            raise ConnectionResetError(errno.ECONNRESET, "reset by the peer")
        if not self.inbox and not self.has_hung_up:
            raise ssl.SSLWantReadError
        part = bytes(self.inbox[: min(most, 16 << 10)])
        del self.inbox[: len(part)]
        if into is None:
            return part
        into[: len(part)] = part
        return len(part)

    def send(self, data: bytes | memoryview) -> int:
        """Take all or nothing."""
        self._demand_open()
        if self.is_reset:
            raise BrokenPipeError(errno.EPIPE, "broken pipe")
        data = bytes(data)
        if self._refused not in (None, data):
            self._system.violate("TLS was given other bytes than it had no room for")
        if self.room <= 0:
            self._refused = data
            raise ssl.SSLWantWriteError
        self._refused = None
        self.room -= len(data)
        self.got += data
        self.sent_us = self._system.now_us
        return len(data)

    def shutdown(self, _how: int) -> None:
        """Say no more."""

    def close(self) -> None:
        """Close it."""
        if self.is_open:
            del self._system.files[self.fd]

    def _demand_open(self) -> None:
        if not self.is_open:
            self._system.violate("a closed connection was used")


class SimLoop(LoopTurns):
    """The shipped turns of a loop; the world is its threads."""

    def __init__(self, system: LoopSystem, polled: Callable[[float], None]) -> None:
        self.poller = SimPoller(system, polled)
        super().__init__(system.clock, self.poller)
        self.failing: list[Callable[[Exception], None]] = []
        self._system = system

    @property
    def is_own_thread(self) -> bool:
        """Whether the loop's thread runs."""
        return self._system.is_loop

    @property
    def has_ended(self) -> bool:
        """Whether nothing is called any more."""
        return self._takes_none

    is_lost = False

    def run(self) -> None:
        """Run until `stop`."""
        with self._system.own_thread():
            self._turns()

    def stop(self) -> None:
        """End once everything that was posted is done."""
        self._is_over = True
        self.post(lambda: None)

    def call(self, act: Act) -> bool:
        """Call this in the loop; another thread of the world does not wait for it."""
        if not self.is_own_thread:
            return self.post(act)
        act()
        return True

    def add_failing(self, failing: Callable[[Exception], None]) -> None:
        """Call nothing: an error that ends the loop is a violation."""
        self.failing.append(failing)

    def drop_failing(self, failing: Callable[[Exception], None]) -> None:
        """Forget it."""
        self.failing.remove(failing)

    def away(self, work: Act, back: Callable[[Exception | None], None]) -> None:
        """Have the pool do this; without a thread it is refused."""
        if not self._system.has_threads:
            self._system.refused_us = self._system.now_us
            raise RuntimeError("can't start new thread")
        self._system.after(self._system.chance.randint(0, 30_000), self._do, work, back)

    def queue(self, work: Act) -> None:
        """Have the pool do this in its turn."""
        self._system.after(500_000, work)

    def ask(
        self, work: Act, back: Callable[[Exception | None], None], late: Act = lambda: None
    ) -> None:
        """Have a thread of its own do this; a loop of the world never ends, so nothing is late."""
        if self._system.has_threads:
            self._system.after(self._system.chance.randint(0, 200_000), self._do, work, back)
        else:
            self.post(lambda: back(OSError(errno.EAGAIN, "can't start new thread")))

    def _do(self, work: Act, back: Callable[[Exception | None], None]) -> None:
        found: Exception | None = None
        try:
            work()
        except (RtError, OSError, PeerError) as error:
            found = error
        self.post(lambda: back(found))

    def _note_longest(self) -> None:
        """Pass over a turn in which the machine slept."""
        if self._system.jumped_us > self._system.now_us - self.longest_s * 1e6:
            self.longest_s = 0.0
