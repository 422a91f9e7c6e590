"""Claims: one member's claims, kept alive and reported by a thread of its own."""

import threading
import time
from collections.abc import Callable

from rt.client.groups.group import Group
from rt.client.groups.member_claims import HeldClaim, MemberClaims
from rt.errors import RtError, Stopped
from rt.events import RangeLost
from rt.net.admin import AdminClient, reading_answers
from rt.position import Position


class Claims:
    """Asks for ranges, keeps them alive, and reports what is done.

    Threads:
        `_run` makes requests, one at a time. `_news` guards `_state` and what it holds; readers
        and handlers call the public methods from any thread.
    """

    def __init__(
        self,
        nodes: AdminClient,
        group: Group,
        member: str,
        *,
        position: Position,
        follow: bool = True,
    ) -> None:
        """Begin to ask.

        Args:
            nodes: sends requests; closed with this.
            group: the group that was joined.
            member: this member's name.
            position: up to where the group is done.
            follow: whether more may come after the end; otherwise the end is asked for often.
        """
        self._nodes = nodes
        self._news = threading.Condition()
        self._state = MemberClaims(group, member, position, follow=follow)
        self._thread = threading.Thread(target=self._run, name=f"group {group.name}", daemon=True)
        self._thread.start()

    @property
    def is_closed(self) -> bool:
        """Whether nothing more is asked for."""
        return self._state.is_closing

    @property
    def is_done(self) -> bool:
        """Whether the group had handled everything when this member last asked for more."""
        return self._state.is_done

    @property
    def position(self) -> Position:
        """Return up to where the group was done, by the nodes' last answer."""
        return self._state.position

    def next(self, is_over: Callable[[], bool], timeout_s: float) -> HeldClaim | None:
        """Return the next range; None if it is over, or none came in time.

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
            self._news.notify_all()  # ask for another one meanwhile
            return claim

    def progress(self, claim: HeldClaim, position: Position, *, sync: bool = False) -> None:
        """Record that everything before a position is handled; with `sync`, wait until nodes agree.

        Raises:
            ClaimLost: with `sync`, the claim went to another member.
            Refused: with `sync`, this is no longer a member.
            Stopped: with `sync`, it was closed first.
        """
        with self._news:
            state = self._state
            upto = state.progress(claim, position, time.monotonic())
            if sync and not state.is_agreed(claim, upto):
                state.hurry()
            self._news.notify_all()
            while sync and not state.is_agreed(claim, upto):
                if state.is_closing:
                    raise Stopped("the subscriber is closed")
                self._news.wait()

    def reject(self, claim: HeldClaim, position: Position) -> None:
        """Have the message at a position delivered again later, and continue after it."""
        with self._news:
            self._state.reject(claim, position)
            self._news.notify_all()

    def grown(self) -> None:
        """Ask for more soon: the stream has grown."""
        with self._news:
            self._state.grown()
            self._news.notify_all()

    def give_back(self) -> None:
        """Give back what no handler was given; ask for nothing until the copy has grown."""
        with self._news:
            self._state.give_back()
            self._news.notify_all()

    def handled(self, messages: int, seconds: float) -> None:
        """Record how long a range took, which determines how much to ask for at once."""
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
        """Report what is done, give back what was not begun, and end. Idempotent."""
        with self._news:
            self._state.is_closing = True
            self._news.notify_all()
        if self._thread is not threading.current_thread():
            self._thread.join()

    def _run(self) -> None:
        while self._wait():
            self._exchange()
        if self._state.has_something:
            self._exchange()
        self._nodes.close()

    def _wait(self) -> bool:
        """Wait until a request is due; False once closed."""
        with self._news:
            while not self._state.is_closing and self._state.error is None:
                left_s = self._state.due_s() - time.monotonic()
                if left_s <= 0:
                    return True
                self._news.wait(left_s)
            return False

    def _exchange(self) -> None:
        with self._news:
            request = self._state.said(time.monotonic())
        try:
            answer = self._nodes.ask(request)
            with self._news, reading_answers():
                self._state.take(request, answer, time.monotonic())
                self._news.notify_all()
        except (RtError, OSError) as error:
            with self._news:
                self._state.not_said(request, error)
                self._news.notify_all()
