"""LoopTurns: the turns of an event loop: whom it calls, in which order, and how much at once."""

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

# How long a turn does what was posted, and serves connections, before the duties have theirs: less
# than the 20 ms of a tick. One that was begun goes on, with at most 2 MiB: another 5 ms.
SERVE_S: Final = 0.01
_WAIT_S_MAX: Final = 60.0

Act = Callable[[], None]


class Party(Protocol):
    """What the loop calls: a connection, a stream's duties."""

    @property
    def is_urgent(self) -> bool:
        """Whether it comes before the others, and has its turn whatever the time.

        A heartbeat of another node that waits for 64 pullers would end a leader's term.
        """

    def ready(self) -> None:
        """Do what there is to do now: something arrived, there is room to send, or it was due."""

    def failed(self, error: Exception) -> bool:
        """End what has met an internal error, and nothing else; False if the process has to end."""


class ContextParty(ABC):
    """A party that acts in the context of the thread that made it: its log lines name the stream.

    Subclasses say what a turn does, and how what has met an internal error ends.
    """

    is_urgent = False

    def __init__(self, about: Context | None = None) -> None:
        """Act in a context; that of this thread if none is given."""
        self._run = (about or copy_context()).run

    def ready(self) -> None:
        """Take a turn."""
        self._run(self._turn)

    def failed(self, error: Exception) -> bool:
        """End what has met an internal error, and nothing else."""
        self._run(self._fail, error)
        return True

    def acting(self, act: Callable[..., None], *arguments: object) -> Act:
        """Return a call to post: an error in it ends this party, not the process."""

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
        """Do what there is to do now."""

    @abstractmethod
    def _fail(self, error: Exception) -> None:
        """End, or begin again."""


class LoopTurns(ABC):
    """Waits for sockets, deadlines and posted calls, and acts on all of them, one after the other.

    A turn does first what was posted, then serves the urgent, then the others; both for `SERVE_S`,
    and the next turn goes on from there. Then comes what is due, which is urgent or marked to be
    served as the others are, and last the duties of the streams that have news, once for all.

    Threads: `post`, `rouse` and `mark_last` may be called by any thread; all else, and all fields
        but these, belong to the one that runs the turns.
        clock: a function that any thread may call.
        _posted: a deque, to which any thread appends.
        _is_rung: set before the bell is rung, and cleared after it was heard and before `_posted`
            is looked at: a call that was posted later rings again.
        _is_over, _takes_none: set once. What was posted before the latter is called; a thread that
            reads it takes back what it has posted, unless that has been called.
    """

    def __init__(self, clock: Callable[[], float], poller: Poller) -> None:
        """Run no turn yet.

        Args:
            clock: a monotonic clock, in seconds.
            poller: what is waited with.
        """
        self.clock = clock
        self.deadlines: Deadlines[Party] = Deadlines()
        self.longest_s = self.longest_ran_s = 0.0  # the longest turn so far
        self._poller = poller
        self._watched: dict[int, Party] = {}
        self._ready: Readiness[Party] = Readiness()
        self._last: dict[Party, None] = {}  # a turn ends with these
        self._posted: deque[Act] = deque()
        self._is_rung = self._is_over = self._takes_none = False

    @property
    @abstractmethod
    def is_own_thread(self) -> bool:
        """Whether the caller runs the turns."""

    def post(self, act: Act) -> bool:
        """Have the loop call this soon. Any thread may ask.

        Returns:
            False once the loop is over: it was not called, and never will be.
        """
        self._posted.append(act)
        if self._takes_none:
            with suppress(ValueError):  # the last turn has called it
                self._posted.remove(act)
                return False
        elif not self._is_rung:
            self._is_rung = True
            self._poller.ring()
        return True

    def rouse(self, party: Party) -> bool:
        """Call a party soon; False once the loop is over. Any thread may ask."""
        if self.is_own_thread:
            self.mark(party)
            return True
        return self.post(lambda: self.mark(party))

    def mark_last(self, party: Party) -> None:
        """Call a party at the end of this turn, or of the next one. Any thread may ask."""
        if self.is_own_thread:
            self._last[party] = None
        else:
            self.post(lambda: self._last.setdefault(party))

    def watch(self, fd: int, party: Party, events: int = READABLE) -> None:
        """Call a party while one of these events is there at a descriptor."""
        if fd in self._watched:
            self._poller.modify(fd, events)
        else:
            self._poller.register(fd, events)
        self._watched[fd] = party

    def ignore(self, fd: int) -> None:
        """Watch this descriptor no more; it may be watched again."""
        if self._watched.pop(fd, None) is not None:
            self._poller.unregister(fd)

    def mark(self, party: Party) -> None:
        """Call a party soon, without an event."""
        self._ready.mark(party, is_urgent=party.is_urgent)

    def forget(self, party: Party) -> None:
        """Call a party no more; its descriptors are ignored already."""
        self._ready.drop(party)
        self.deadlines.clear(party)
        self._last.pop(party, None)

    def _turns(self) -> None:
        """Run turns until the loop is over and has done what was posted."""
        try:
            while not self._is_over or self._posted:
                events = self._poller.poll(self._pause_s())
                began_s, ran_s = self.clock(), time.thread_time()
                for fd, _ in events:
                    self._take_event(fd)
                self._turn(began_s)
                took_s = self.clock() - began_s
                if took_s > self.longest_s:
                    self.longest_s, self.longest_ran_s = took_s, time.thread_time() - ran_s
                    self._note_longest()
        finally:
            self._takes_none = True
        while self._posted:  # by threads that could not know it
            self._posted.popleft()()

    @abstractmethod
    def _note_longest(self) -> None:
        """Take note of a turn that was longer than any before."""

    def _pause_s(self) -> float:
        if self._ready or self._last or self._posted:
            return 0.0
        return min(_WAIT_S_MAX, max(0.0, self.deadlines.next_s - self.clock()))

    def _take_event(self, fd: int) -> None:
        if fd == self._poller.bell:
            self._poller.hear()
            self._is_rung = False
        elif (party := self._watched.get(fd)) is not None:
            self.mark(party)

    def _turn(self, began_s: float) -> None:
        last_s = began_s + SERVE_S
        for _ in range(len(self._posted)):  # what these post has the next turn
            self._posted.popleft()()
            if self.clock() > last_s:
                break
        for party in self._ready.turn(last_s, self.clock):
            self._serve(party)
        for party in self.deadlines.take(self.clock()):
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
