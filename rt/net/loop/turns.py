"""LoopTurns: the turns of an event loop: whom it calls, in which order, and for how long."""

import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from contextvars import Context, copy_context
from typing import Final, Protocol

from rt.net.loop.deadlines import Deadlines
from rt.net.loop.poller import READABLE, Poller
from rt.net.loop.readiness import Readiness

# How long a turn makes posted calls and serves connections before it does duties: less than the
# 20 ms of a tick. A connection that is being served may finish 2 MiB: another 5 ms.
SERVE_S: Final = 0.01
_WAIT_S_MAX: Final = 60.0

Act = Callable[[], None]


class Party(Protocol):
    """Something that the loop calls, such as a connection or a stream's duties."""

    @property
    def is_urgent(self) -> bool:
        """Whether the loop serves this party before others, and in every turn.

        A heartbeat that had to wait for 64 pullers could cost a leader its term.
        """

    def ready(self) -> None:
        """Do the work at hand: data arrived, the socket has room, or a deadline has passed."""

    def failed(self, error: Exception) -> bool:
        """End this party after an internal error; return False if the process has to end."""


class ContextParty(ABC):
    """A party that runs in its maker's `contextvars` context, so that log lines name the stream.

    Subclasses define a turn, and what to do after an internal error.
    """

    is_urgent = False

    def __init__(self, about: Context | None = None) -> None:
        """Run in the context `about`; by default in that of the calling thread."""
        self._run = (about or copy_context()).run

    def ready(self) -> None:
        """Take a turn."""
        self._run(self._turn)

    def failed(self, error: Exception) -> bool:
        """End only this party after an internal error; return True, since the process may go on."""
        self._run(self._fail, error)
        return True

    def acting(self, act: Callable[..., None], *arguments: object) -> Act:
        """Return a function for `post` that calls `act`; an error in it ends only this party."""

        def guarded() -> None:
            try:
                self._run(act, *arguments)
            except Exception as error:
                if self.failed(error):
                    return
                raise

        return guarded

    @abstractmethod
    def _turn(self) -> None:
        """Do the work at hand."""

    @abstractmethod
    def _fail(self, error: Exception) -> None:
        """End this party, or start it again."""


class LoopTurns(ABC):
    """Waits for sockets, deadlines and posted calls, and acts on all of them, one after the other.

    A turn makes the posted calls, then serves the parties that are ready, urgent ones first. After
    `SERVE_S` it leaves the rest to the next turn, except urgent parties. Then the parties whose
    deadlines have passed are marked: urgent ones for the end of this turn, others for the next. At
    its end, a turn serves the parties marked for it, such as the duties of streams that have news.

    Threads: `post`, `rouse` and `mark_last` may be called by any thread; all else, and all fields
        but these, belong to the one that runs the turns. clock: a function that any thread may
        call. _posted, _called: deques, to which any thread appends. _is_rung: set before the bell
        is rung, and cleared after the bell was heard and before the two deques are read, so a later
        addition rings again. _is_over, _takes_none: set once. Calls posted before `_takes_none` is
        set are made; a thread that finds it set withdraws its call, unless the call was made.
    """

    def __init__(self, clock: Callable[[], float], poller: Poller) -> None:
        """Run no turn yet.

        Args:
            clock: a monotonic clock, in seconds.
            poller: waits for sockets.
        """
        self.clock = clock
        self.deadlines: Deadlines[Party] = Deadlines()
        self.longest_s = self.longest_ran_s = 0.0  # the longest turn so far
        self._poller = poller
        self._watched: dict[int, Party] = {}
        self._ready: Readiness[Party] = Readiness()
        self._last: dict[Party, None] = {}  # parties served at the end of a turn
        self._called: deque[Party] = deque()  # for `_last`, which no other thread may change
        self._posted: deque[Act] = deque()
        self._is_rung = self._is_over = self._takes_none = False

    @property
    @abstractmethod
    def is_own_thread(self) -> bool:
        """Whether the caller runs the turns."""

    def post(self, act: Act) -> bool:
        """Have the loop call a function soon.

        Returns:
            False if the loop has ended: the function was not called and never will be.
        """
        self._posted.append(act)
        if self._takes_none:
            with suppress(ValueError):  # already called by the last turn
                self._posted.remove(act)
                return False
        else:
            self._ring()
        return True

    def _ring(self) -> None:
        if not self._is_rung:
            self._is_rung = True
            self._poller.ring()

    def rouse(self, party: Party) -> bool:
        """Have the loop call a party soon; return False if the loop has ended."""
        if self.is_own_thread:
            self.mark(party)
            return True
        return self.post(lambda: self.mark(party))

    def mark_last(self, party: Party) -> None:
        """Have the loop call a party at the end of this turn or the next.

        Parties that other threads mark do not wait for posted calls, of which there may be many.
        """
        if self.is_own_thread:
            self._last[party] = None
        else:
            self._called.append(party)
            self._ring()

    def watch(self, fd: int, party: Party, events: int = READABLE) -> None:
        """Call a party whenever a descriptor has one of these events."""
        if fd in self._watched:
            self._poller.modify(fd, events)
        else:
            self._poller.register(fd, events)
        self._watched[fd] = party

    def ignore(self, fd: int) -> None:
        """Stop watching a descriptor; it may be watched again later."""
        if self._watched.pop(fd, None) is not None:
            self._poller.unregister(fd)

    def mark(self, party: Party) -> None:
        """Call a party soon, although nothing has happened at its descriptor."""
        self._ready.mark(party, is_urgent=party.is_urgent)

    def forget(self, party: Party) -> None:
        """Drop a party whose descriptors are no longer watched."""
        self._ready.drop(party)
        self.deadlines.clear(party)
        self._last.pop(party, None)

    def _turns(self) -> None:
        """Run turns until the loop is stopped and all posted calls are made."""
        try:
            while not self._is_over or self._posted:
                events = self._poller.poll(self._pause_s())
                began_s, ran_s = self.clock(), time.thread_time()
                for fd, _ in events:
                    if fd == self._poller.bell:
                        self._poller.hear()
                        self._is_rung = False
                    elif (party := self._watched.get(fd)) is not None:
                        self._ready.mark(party, is_urgent=party.is_urgent)
                self._turn(began_s)
                took_s = self.clock() - began_s
                if took_s > self.longest_s:
                    self.longest_s, self.longest_ran_s = took_s, time.thread_time() - ran_s
                    self._note_longest()
        finally:
            self._takes_none = True
        while self._posted:  # posted by threads that had not seen `_takes_none`
            self._posted.popleft()()

    @abstractmethod
    def _note_longest(self) -> None:
        """Record a turn that was longer than any before."""

    def _pause_s(self) -> float:
        if self._ready or self._last or self._posted:
            return 0.0
        return min(_WAIT_S_MAX, max(0.0, self.deadlines.next_s - self.clock()))

    def _turn(self, began_s: float) -> None:
        last_s = began_s + SERVE_S
        while self._called:
            self._last[self._called.popleft()] = None
        for _ in range(len(self._posted)):  # what they post waits for the next turn
            self._posted.popleft()()
            if self.clock() > last_s:
                break
        for party in self._ready.turn(last_s, self.clock):
            self._serve(party)
        for party in self.deadlines.pop_due(self.clock()):
            if party.is_urgent:
                self._last[party] = None
            else:
                self._ready.mark(party)  # many that are due at once are more than one turn's work
        for _ in range(len(self._last)):
            if self._last:  # one before it may have had others forgotten
                party = next(iter(self._last))
                del self._last[party]
                self._serve(party)

    @staticmethod
    def _serve(party: Party) -> None:
        try:
            party.ready()
        except Exception as error:
            if party.failed(error):
                return
            raise
