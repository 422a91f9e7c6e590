"""Claims: the ranges that one group member holds, renewed and reported by the event loop."""

import threading
import time
from collections.abc import Callable

from rt.client.groups.group import Group
from rt.client.groups.member_claims import HeldClaim, MemberClaims
from rt.errors import RtError, Stopped, spoken
from rt.events import RangeLost
from rt.log.notify.fork_guard import ForkGuard
from rt.net.admin import AdminClient, reading_answers
from rt.net.loop.event_loop import EventLoop
from rt.net.loop.timer import Aside, Timer
from rt.position import Position


class Claims:
    """Asks the nodes for ranges of the stream for one member, and reports what is handled.

    These requests are also the member's signs of life; without them, its ranges go to others.

    Threads:
        `_news` guards `_state` and what it holds, `_due_s` and `_has_ended`; readers and handlers
        call the public methods from any thread. One request at a time is made: by a thread of the
        loop, and the last one by the thread that closes.
    """

    def __init__(
        self,
        nodes: AdminClient,
        group: Group,
        member: str,
        loop: EventLoop,
        *,
        position: Position,
        follow: bool = True,
        log: Callable[[], str] = lambda: "",
    ) -> None:
        """Begin to ask the nodes for ranges.

        Args:
            nodes: sends requests; it is closed together with this object.
            group: the group that was joined.
            member: this member's name.
            loop: the event loop that makes requests when they are due.
            position: the position up to which the group is done.
            follow: whether more may come after the end; if not, the nodes are asked more often
                whether the group is done.
            log: returns the id of the log that this member's copy has; "" while it is not known.
        """
        self._nodes, self._log = nodes, log
        self._make_news()
        self._state = MemberClaims(group, member, position, follow=follow)
        self._due_s = 0.0  # when the loop makes the next request
        self._has_ended = False
        self._guard = ForkGuard("a GroupSubscriber", self._abandon)
        self._timer = Timer(loop, self._turn, self._broken)
        self._timer.set()

    @property
    def is_closed(self) -> bool:
        """Whether this was closed, so that it asks for no more ranges."""
        return self._state.is_closing

    @property
    def is_done(self) -> bool:
        """Whether the group had handled everything when this member last asked for more."""
        return self._state.is_done

    @property
    def position(self) -> Position:
        """The position up to which the group had handled everything, by the nodes' last answer."""
        return self._state.position

    def next(self, is_over: Callable[[], bool], timeout_s: float) -> HeldClaim | None:
        """Return the next range; None if `is_over` returns True, or none came in time.

        Raises:
            Refused: this is no longer a member.
        """
        end_s = time.monotonic() + timeout_s
        with self._news:
            self._state.rest()
            while (claim := self._state.next(time.monotonic())) is None:
                left_s = end_s - time.monotonic()
                if is_over() or left_s <= 0 or self._state.is_closing:
                    return None
                self._news.wait(left_s)
            self._plan()  # ask for another one meanwhile
            return claim

    def progress(
        self,
        claim: HeldClaim,
        position: Position,
        *,
        sync: bool = False,
        gives_up: Callable[[], bool] = lambda: False,
    ) -> None:
        """Record that everything before a position is handled; with `sync`, wait until nodes agree.

        The wait ends early once `gives_up`, which is called whenever there is news, returns True.

        Raises:
            ClaimLost: with `sync`, the claim went to another member.
            Refused: with `sync`, this is no longer a member.
            Stopped: with `sync`, this was closed first.
        """
        with self._news:
            state = self._state
            upto = state.progress(claim, position, time.monotonic())
            if sync and not state.is_agreed(claim, upto):
                state.hurry()
            self._plan()
            while sync and not (state.is_agreed(claim, upto) or gives_up()):
                if state.is_closing:
                    raise Stopped("the subscriber is closed")
                self._news.wait()

    def reject(self, claim: HeldClaim, position: Position) -> None:
        """Have the message at a position delivered again later, and continue after it."""
        with self._news:
            self._state.reject(claim, position)
            self._plan()

    def grown(self) -> None:
        """Ask the nodes for more ranges soon, because the stream has grown."""
        with self._news:
            self._state.grown()
            self._plan()

    def give_back(self) -> None:
        """Give back ranges of which no message is being handled; ask again once the copy grows."""
        with self._news:
            self._state.give_back()
            self._plan()

    def handled(self, messages: int, seconds: float) -> None:
        """Record how long a range took, which determines how many messages to ask for at once."""
        with self._news:
            self._state.handled(messages, seconds)

    def take_lost(self) -> list[RangeLost]:
        """Return the ranges that were lost since the last call."""
        if not self._state.lost:
            return []
        with self._news:
            lost, self._state.lost = self._state.lost, []
            return lost

    def close(self) -> None:
        """Report what is done, give back ranges that were not begun, and end. Idempotent.

        Does nothing in a forked child: the claims and the connection are its parent's.
        """
        if self._guard.is_copy:
            return
        with self._news:
            self._state.is_closing = True
            self._news.notify_all()
            has_ended, self._has_ended = self._has_ended, True
        if not has_ended:
            self._timer.stop()
            if self._state.has_something:
                self._exchange()
            self._nodes.close()

    def _abandon(self) -> None:
        """In a forked child: close its copy of the connection; replace a lock that may be held."""
        self._make_news()
        self._state.is_closing = True
        self._nodes.close()

    def _make_news(self) -> None:
        self._news = threading.Condition()

    def _plan(self) -> None:
        """Wake waiting threads; rouse the loop if the next request has become due earlier.

        Call it with `_news` held.
        """
        self._news.notify_all()
        if self._state.due_s() < self._due_s:
            self._timer.set()

    def _turn(self) -> float | Aside | None:
        """Have a thread make a request if one is due; else return the seconds until one is."""
        with self._news:
            state = self._state
            if state.is_closing or state.error is not None:
                return None
            self._due_s = state.due_s()
            if (left_s := self._due_s - time.monotonic()) > 0:
                return left_s
            self._due_s = 0.0  # nothing is earlier than the request that is made now
        return Aside(self._exchange, self._asked)

    def _exchange(self) -> None:
        log = self._log()
        with self._news:
            request = self._state.said(time.monotonic(), log)
        try:
            answer = self._nodes.ask(request)
            with self._news, reading_answers():
                self._state.handle_answer(request, answer, time.monotonic())
                self._news.notify_all()
        except (RtError, OSError) as error:
            with self._news:
                self._state.not_said(request, error)
                self._news.notify_all()

    def _asked(self, error: Exception | None) -> None:
        if error is not None:
            self._broken(RtError(spoken(error)))

    def _broken(self, error: RtError) -> None:
        """End this member, because it can no longer send signs of life."""
        with self._news:
            self._state.error = self._state.error or error
            self._news.notify_all()
