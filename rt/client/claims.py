"""Claims: what one member of a group holds, kept alive and reported by a thread of its own."""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from rt.client.group import Group
from rt.client.registered import Asking
from rt.errors import PeerError, Refused, RtError, Stopped, spoken
from rt.net.admin import reading_answers
from rt.position import START, Position

_log: Final = logging.getLogger("rt.client")
_SIGNS: Final = 3  # of life, in the time after which a holder counts as dead
_ASK_FIRST_S: Final = 0.02  # between two requests for more; twice that after each in vain
_WORK_S, _WORK_S_MAX = 0.25, 2.0  # of work is asked for at once
_ANSWERS: Final = 8  # or as much as so many requests take, so that work never waits for the next
_FORGET: Final = 0.9  # of the longest request is remembered after the next one
_MESSAGES_FIRST, _MESSAGES_MAX = 64, 4096
_ENDED: Final = ("unknown-group", "role", "settings")  # refusals after which nothing can follow


@dataclass(slots=True, eq=False)
class HeldClaim:
    """A range that this member was handed.

    Attributes:
        number: of the claim.
        first: where it begins.
        end: where it ends.
        deliveries: how often its first message was handed out, this time included.
        is_dead: whether its first message is to be a dead letter.
        done: everything before it is handled.
        sent: how much of that the nodes know.
        handed: everything before it was given to the handler.
        tail: once it was read whole, where its last wanted message ends; nothing follows that.
        read_to: everything before it was read, or is gone.
        is_lost: whether it was handed to another member, or given back.
    """

    number: int
    first: Position
    end: Position
    deliveries: int
    is_dead: bool
    done: Position
    sent: Position
    handed: Position
    tail: Position | None = None
    read_to: Position = START
    is_lost: bool = False

    @property
    def goes_on(self) -> Position:
        """Where a reader finds what was not handed out yet."""
        return max(self.done, self.handed, self.read_to)

    @property
    def is_open(self) -> bool:
        """Whether something of it is still to be handled here."""
        return self.done < self.end and not self.is_lost


class Claims:
    """Asks for ranges, keeps them alive, and says what is done.

    Threads:
        `_run` makes requests, one at a time. `_news` guards all fields but `_nodes` and `_group`;
        readers and handlers call the public methods from any thread.
    """

    def __init__(
        self, nodes: Asking, group: Group, member: str, *, position: Position, follow: bool = True
    ) -> None:
        """Begin to ask.

        Args:
            nodes: are asked; closed with this.
            group: which was joined.
            member: name of this one.
            position: up to where the group is done.
            follow: whether more may come once all is handed out; else the end is asked for often.
        """
        self._nodes = nodes
        self._group = group
        self._request = {"do": "group-work", "name": group.name, "member": member}
        self._news = threading.Condition()
        self._held: dict[int, HeldClaim] = {}
        self._queue: deque[HeldClaim] = deque()
        self._failed: list[list[Any]] = []  # rejected: number, position, delay
        self._given_back: list[int] = []
        self._pace = _Pace(follow)
        self._position = position
        self._state = _State()
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
        """Up to where the group was done when the nodes last said so."""
        return self._position

    def next(self, is_over: Callable[[], bool], timeout_s: float) -> HeldClaim | None:
        """Return the next range; None if it is over, or none came in time.

        Raises:
            Refused: this is no longer a member.
        """
        end_s = time.monotonic() + timeout_s
        with self._news:
            self._pace.moved_s = None  # nothing is being handled
            while not self._queue:
                if self._state.error is not None:
                    raise self._state.error
                left_s = end_s - time.monotonic()
                if is_over() or left_s <= 0 or self._state.is_closing:
                    return None
                self._news.wait(left_s)
            claim = self._queue.popleft()
            self._pace.begin()
            self._news.notify_all()  # ask for another one meanwhile
            return claim

    def progress(self, claim: HeldClaim, position: Position, *, sync: bool = False) -> None:
        """Note that everything before a position is handled; with `sync`, once the nodes know.

        Raises:
            Refused: with `sync`, this is no longer a member.
            Stopped: with `sync`, it was closed first.
        """
        with self._news:
            self._pace.moved()
            is_whole = claim.tail is not None and position >= claim.tail
            claim.done = max(claim.done, claim.end if is_whole else position)
            if claim.done >= claim.end:
                self._state.is_hurried = self._state.is_hurried or not self._queue
                self._news.notify_all()
            if not sync:
                return
            self._state.is_hurried = True
            self._news.notify_all()
            while claim.sent < claim.done and not claim.is_lost:
                if self._state.error is not None:
                    raise self._state.error
                if self._state.is_closing:
                    raise Stopped("the subscriber is closed")
                self._news.wait()

    def reject(self, claim: HeldClaim, position: Position) -> None:
        """Have the message at a position handed out again, later, and go on after it."""
        with self._news:
            self._failed.append([claim.number, int(position), self._group.retry_s])
            claim.sent = claim.done = max(claim.done, Position(position + 1))
            claim.handed = max(claim.handed, claim.done)
            self._state.is_hurried = True
            self._news.notify_all()

    def grown(self) -> None:
        """Ask for more soon: the stream has grown."""
        with self._news:
            self._pace.may_have_more = True
            self._pace.is_behind = False
            self._news.notify_all()

    def give_back(self) -> None:
        """Leave to others what no handler was given; ask for nothing until the copy has grown."""
        with self._news:
            for claim in self._held.values():
                if claim.handed <= claim.done < claim.end and not claim.is_lost:
                    claim.is_lost = True
                    self._given_back.append(claim.number)
            self._queue.clear()
            if self._given_back:
                _log.warning(
                    "group %s: this member's copy does not grow; what it lacks is left to others",
                    self._group.name,
                )
            self._pace.is_behind = self._state.is_hurried = True
            self._pace.moved_s = None
            self._news.notify_all()

    def handled(self, messages: int, seconds: float) -> None:
        """Learn from what a range took how much to ask for at once."""
        with self._news:
            self._pace.learn(messages, seconds)

    def close(self) -> None:
        """Say what is done, give back what was not begun, and end. Idempotent."""
        with self._news:
            self._state.is_closing = True
            self._news.notify_all()
        if self._thread is not threading.current_thread():
            self._thread.join()

    def _run(self) -> None:
        while self._wait():
            self._exchange()
        if self._held or self._failed:
            self._exchange()
        self._nodes.close()

    def _wait(self) -> bool:
        """Wait until something is to be said or asked for; False once closed."""
        with self._news:
            while not self._state.is_closing and self._state.error is None:
                left_s = self._due_s() - time.monotonic()
                if left_s <= 0:
                    return True
                self._news.wait(left_s)
            return False

    def _due_s(self) -> float:
        """When the next request is due."""
        asked_s = self._state.asked_s
        sign_s = self._group.silence_s / _SIGNS
        if self._state.is_troubled:
            return asked_s + sign_s
        if self._state.is_hurried:
            return asked_s
        if self._queue or self._pace.is_behind:
            return asked_s + sign_s
        if self._pace.may_have_more or not self._pace.follow:
            return asked_s + min(sign_s, self._pace.ask_s)
        # What a member that has died holds is handed out to the first one that asks.
        return asked_s + (sign_s if self._state.is_done else min(sign_s / 2, self._pace.ask_s))

    def _exchange(self) -> None:
        request = self._said()
        try:
            answer = self._nodes.ask(request)
        except Refused as error:
            self._not_said(request, error, is_final=error.code in _ENDED)
        except (RtError, OSError) as error:
            self._not_said(request, error, is_final=False)
        else:
            try:
                with reading_answers():
                    self._take(request, answer)
            except PeerError as error:
                self._not_said(request, error, is_final=False)

    def _said(self) -> dict[str, Any]:
        with self._news:
            state, self._state.is_hurried = self._state, False
            state.asked_s = time.monotonic()
            every = list(self._held.values())
            held = [each for each in every if not each.is_lost]
            done = [[each.number, int(each.done)] for each in every if each.done > each.sent]
            failed, self._failed = self._failed, []
            given_back, self._given_back = self._given_back, []
            given_back += [
                each.number for each in held if state.is_closing and each.handed <= each.done
            ]
            is_stuck = self._pace.is_stuck(self._group.work_s_max)
            is_able = not (state.is_closing or is_stuck or self._pace.is_behind)
            wants = is_able and not self._queue
            return {
                **self._request, "done": done, "failed": failed, "given_back": given_back,
                "held": [] if is_stuck else [each.number for each in held],
                "messages": self._pace.messages if wants else 0, "at_least": self._pace.at_least,
                "is_idle": not self._queue and self._pace.moved_s is None,
            }  # fmt: skip

    def _take(self, request: dict[str, Any], answer: dict[str, Any]) -> None:
        with self._news:
            for number, position in request["done"]:
                if (claim := self._held.get(number)) is not None:
                    claim.sent = max(claim.sent, Position(position))
            for number in answer["lost"]:
                self._lose(int(number))
            for each in answer["claims"]:
                self._begin(each)
            ended = [each.number for each in self._held.values() if each.sent >= each.end]
            for number in (*ended, *request["given_back"]):
                self._held.pop(number, None)
            took_s = time.monotonic() - self._state.asked_s
            self._pace.answered(found=bool(answer["claims"]), took_s=took_s)
            self._position = Position.parse(str(answer["position"]))
            self._state.is_done = bool(answer["is_done"])
            self._state.is_troubled = False
            self._news.notify_all()

    def _begin(self, facts: dict[str, Any]) -> None:
        first = Position(facts["first"])
        claim = HeldClaim(
            int(facts["number"]), first, Position(facts["end"]), int(facts["deliveries"]),
            bool(facts["is_dead"]), first, first, first,
        )  # fmt: skip
        self._held[claim.number] = claim
        self._queue.append(claim)

    def _lose(self, number: int) -> None:
        claim = self._held.pop(number, None)
        if claim is None or claim.sent >= claim.end:
            return
        claim.is_lost = True
        if claim in self._queue:
            self._queue.remove(claim)
        _log.warning(
            "group %s: the messages from %s to %s are not this member's any more: it gave no sign "
            "of life for %g s, or the group was moved", self._group.name, claim.done, claim.end,
            self._group.silence_s,
        )  # fmt: skip

    def _not_said(self, request: dict[str, Any], error: Exception, *, is_final: bool) -> None:
        """Say it again later: what was done stays done."""
        with self._news:
            self._failed[:0] = request["failed"]
            self._given_back[:0] = request["given_back"]
            if is_final and isinstance(error, RtError):
                self._state.error = error
            elif not self._state.is_troubled:
                _log.warning("group %s: %s; trying again", self._group.name, spoken(error))
            self._state.is_troubled = True
            self._news.notify_all()


@dataclass(slots=True)
class _State:
    """What a member's thread has done last, and is to do now."""

    asked_s: float = 0.0
    is_hurried: bool = False
    is_troubled: bool = False
    is_closing: bool = False
    is_done: bool = False
    error: RtError | None = None


@dataclass(slots=True)
class _Pace:
    """How much to ask for, and when the handler last made progress."""

    follow: bool
    messages: int = _MESSAGES_FIRST
    at_least: int = 1  # where little is left: what is handled while another request is made
    answer_s: float = 0.0  # how long requests take, at most
    may_have_more: bool = True
    is_behind: bool = False  # the copy lacks what was handed out
    ask_s: float = _ASK_FIRST_S
    moved_s: float | None = None  # None while nothing is being handled

    def answered(self, *, found: bool, took_s: float) -> None:
        self.answer_s = max(took_s, _FORGET * self.answer_s)
        self.may_have_more = found
        self.ask_s = _ASK_FIRST_S if found else min(1.0, 2 * self.ask_s)

    def begin(self) -> None:
        self.moved_s = time.monotonic()

    def moved(self) -> None:
        if self.moved_s is not None:
            self.moved_s = time.monotonic()

    def is_stuck(self, work_s_max: float) -> bool:
        return self.moved_s is not None and time.monotonic() - self.moved_s > work_s_max

    def learn(self, messages: int, seconds: float) -> None:
        self.moved_s = None
        if messages:
            each_s = max(seconds, 1e-6) / messages
            work_s = min(_WORK_S_MAX, max(_WORK_S, _ANSWERS * self.answer_s))
            self.messages = max(1, min(_MESSAGES_MAX, int(work_s / each_s), 2 * self.messages))
            self.at_least = max(1, min(self.messages, int(self.answer_s / each_s)))
