"""MemberClaims: one group member's claims; builds its requests and interprets the answers."""

import logging
from collections import deque
from dataclasses import dataclass
from typing import Any, Final

from rt.client.groups.group import Group
from rt.errors import OTHER_LOG, ClaimLost, Refused, RtError, spoken
from rt.events import RangeLost
from rt.position import START, Position

_log: Final = logging.getLogger("rt.client")
_SIGNS: Final = 3  # signs of life in the time after which a holder counts as dead
_ASK_FIRST_S: Final = 0.02  # between two requests for more; doubled after each that got nothing
_WORK_S, _WORK_S_MAX = 0.25, 2.0  # seconds of work requested at once
_ANSWERS: Final = 8  # or the time of this many requests, if longer: work never waits for a request
_FORGET: Final = 0.9  # share of the longest request time that is kept at the next request
_MESSAGES_FIRST, _MESSAGES_MAX = 64, 4096
_ENDED: Final = ("unknown-group", "role", "settings")  # refusals that are final


@dataclass(slots=True, eq=False)
class HeldClaim:
    """A claim: a range of the stream that the nodes have given to this group member.

    Attributes:
        number: the claim's number.
        first: where the range begins.
        end: where the range ends.
        deliveries: how often its first message was delivered, this time included.
        is_dead: whether its first message is to become a dead letter.
        done: the position before which everything is handled.
        sent: the position before which the nodes agree that everything is handled.
        unsure: the position before which everything was reported as handled in a request whose
            answer was lost.
        handed: the position before which everything was given to the handler.
        tail: the end of the range's last wanted message; None until the range was read to its end.
        read_to: the position before which everything was read, or is archived.
        is_lost: whether the range went to another member, or was given back.
    """

    number: int
    first: Position
    end: Position
    deliveries: int
    is_dead: bool
    done: Position
    sent: Position
    handed: Position
    unsure: Position = START
    tail: Position | None = None
    read_to: Position = START
    is_lost: bool = False

    @property
    def goes_on(self) -> Position:
        """Return where a reader continues with messages that were not delivered yet."""
        return max(self.done, self.handed, self.read_to)

    @property
    def is_open(self) -> bool:
        """Whether part of the range is not yet agreed on as handled."""
        return self.sent < self.end and not self.is_lost


class MemberClaims:
    """The claims of one member; it has no thread, clock or socket.

    A node that lags may wrongly call a claim lost, the work done or the group unknown. Before this
    member believes such an answer, it asks again and requires the latest state.

    Attributes:
        position: the position up to which the group had handled everything, by the nodes' last
            answer.
        is_done: whether the group had handled everything when this member last asked for more.
        error: the error that has ended this membership; None while it may continue.
        is_closing: whether to ask for no more ranges.
        lost: ranges that were lost, to be reported.
    """

    def __init__(self, group: Group, member: str, position: Position, *, follow: bool) -> None:
        """Begin without claims; arguments as for `rt.client.groups.claims.Claims`."""
        self.position = position
        self.is_done = False
        self.error: RtError | None = None
        self.is_closing = False
        self.lost: list[RangeLost] = []
        self._group = group
        self._request = {
            "do": "group-work", "name": group.name, "member": member, "asks_again": True
        }  # fmt: skip
        self.held: dict[int, HeldClaim] = {}
        self._queue: deque[HeldClaim] = deque()
        self._failed: list[list[Any]] = []  # rejected messages: claim number, position, delay
        self._given_back: list[int] = []
        self._pace = _Pace(follow)
        self._asked_s = 0.0
        self._is_hurried = False
        self._is_troubled = False
        self._is_unsure = False  # whether a negative answer has to be confirmed

    @property
    def has_something(self) -> bool:
        """Whether any claim is held, or any rejection is still to be reported."""
        return bool(self.held or self._failed)

    def rest(self) -> None:
        """Record that the handler has nothing to do, so that it does not count as stuck."""
        self._pace.moved_s = None

    def next(self, now_s: float) -> HeldClaim | None:
        """Return the next range to work on; None if no range is waiting.

        Raises:
            RtError: this is no longer a member.
        """
        if not self._queue:
            if self.error is not None:
                raise self.error
            return None
        self._pace.moved_s = now_s
        return self._queue.popleft()

    def progress(self, claim: HeldClaim, position: Position, now_s: float) -> Position:
        """Record that everything before `position` is handled; return the position to agree on.

        The position to agree on is the claim's end if no wanted message follows in the claim.
        """
        self._pace.moved(now_s)
        is_whole = claim.tail is not None and position >= claim.tail
        claim.done = max(claim.done, claim.end if is_whole else position)
        if claim.done >= claim.end and not self._queue:
            self._is_hurried = True
        return claim.end if is_whole else min(position, claim.end)

    def is_agreed(self, claim: HeldClaim, position: Position) -> bool:
        """Whether the nodes have agreed that everything in a claim before a position is done.

        Raises:
            ClaimLost: the claim went to another member.
            RtError: this is no longer a member.
        """
        if claim.sent >= position:
            return True
        if claim.is_lost:
            raise ClaimLost(self._group.name, position, may_count=claim.unsure >= position)
        if self.error is not None:
            raise self.error
        return False

    def hurry(self) -> None:
        """Make the next request at once."""
        self._is_hurried = True

    def reject(self, claim: HeldClaim, position: Position) -> None:
        """Have the message at a position delivered again later, and continue after it."""
        if not claim.is_lost:
            self._failed.append([claim.number, int(position), self._group.retry_s])
        after = Position(position + 1)
        is_whole = claim.tail is not None and after >= claim.tail
        claim.done = max(claim.done, claim.end if is_whole else after)
        claim.handed = max(claim.handed, claim.done)
        self._is_hurried = True

    def grown(self) -> None:
        """Ask the nodes for more ranges soon, because the stream has grown."""
        self._pace.may_have_more = True
        self._pace.is_behind = False

    def give_back(self) -> None:
        """Give back ranges of which no message is being handled; ask again once the copy grows."""
        for claim in self.held.values():
            if claim.handed <= claim.done < claim.end and not claim.is_lost:
                claim.is_lost = True
                self._given_back.append(claim.number)
        self._queue.clear()
        if self._given_back:
            _log.warning(
                "group %s: this member's copy does not grow; what it lacks is left to others",
                self._group.name,
            )
        self._pace.is_behind = self._is_hurried = True
        self.rest()

    def handled(self, messages: int, seconds: float) -> None:
        """Record how long a range took, which determines how many messages to ask for at once."""
        self._pace.learn(messages, seconds)

    def due_s(self) -> float:
        """Return when the next request is due, in seconds of the clock that `now_s` is from."""
        asked_s, sign_s = self._asked_s, self._group.silence_s / _SIGNS
        if self._is_troubled:
            return asked_s + sign_s
        if self._is_hurried:
            return asked_s
        if self._queue or self._pace.is_behind:
            return asked_s + sign_s
        if self._pace.may_have_more or not self._pace.follow:
            return asked_s + min(sign_s, self._pace.ask_s)
        # The first member that asks gets what a dead one held.
        return asked_s + (sign_s if self.is_done else min(sign_s / 2, self._pace.ask_s))

    def said(self, now_s: float, log: str = "") -> dict[str, Any]:
        """Return the next request; `log` is the id of the copy's log, if it is known.

        After a promotion, two clusters may give the same number to different claims. So a request
        names the log, and claims from another log are given up.
        """
        if log and self._request.get("log", log) != log:
            self._begin_again()
        if log:
            self._request["log"] = log
        self._is_hurried, self._asked_s = False, now_s
        every = list(self.held.values())
        held = [each for each in every if not each.is_lost]
        done = [[each.number, int(each.done)] for each in every if each.done > each.sent]
        failed, self._failed = self._failed, []
        given_back, self._given_back = self._given_back, []
        given_back += [each.number for each in held if self.is_closing and each.handed <= each.done]
        is_stuck = self._pace.is_stuck(self._group.work_s_max, now_s)
        is_able = not (self.is_closing or is_stuck or self._pace.is_behind)
        wants = is_able and not self._queue
        return {
            **self._request, "latest": self._is_unsure,
            "done": done, "failed": failed, "given_back": given_back,
            "held": [] if is_stuck else [each.number for each in held],
            "messages": self._pace.messages if wants else 0, "at_least": self._pace.at_least,
            "is_idle": not self._queue and self._pace.moved_s is None,
        }  # fmt: skip

    def handle_answer(self, request: dict[str, Any], answer: dict[str, Any], now_s: float) -> None:
        """Process the answer to a request; if it is unreadable, raise before changing anything."""
        lost = {int(number) for number in answer["lost"]}
        position, is_done = Position.parse(str(answer["position"])), bool(answer["is_done"])
        begun = [_begun(each) for each in answer["claims"]]
        is_final = bool(request["latest"])
        for number, place in request["done"]:
            if (claim := self.held.get(number)) is not None and number not in lost:
                claim.sent = max(claim.sent, Position(place))
        for number in lost if is_final else ():
            self._lose(number)
        for claim in begun:
            self.held[claim.number] = claim
            self._queue.append(claim)
        # Reports about a claim that the node does not know, perhaps not yet, are repeated.
        unknown = set() if is_final else lost & self.held.keys()
        self._failed[:0] = [each for each in request["failed"] if each[0] in unknown]
        self._given_back[:0] = [each for each in request["given_back"] if each in unknown]
        ended = [each.number for each in self.held.values() if each.sent >= each.end]
        for number in (*ended, *(set(request["given_back"]) - unknown)):
            self.held.pop(number, None)
        self._pace.answered(found=bool(begun), took_s=now_s - self._asked_s)
        self.position = position
        self.is_done = is_done and (is_final or self._pace.follow)
        left = lost & self.held.keys()
        self._is_unsure = not is_final and bool(left or (is_done and not self.is_done))
        self._is_hurried = self._is_hurried or self._is_unsure
        self._is_troubled = False

    def not_said(self, request: dict[str, Any], error: Exception) -> None:
        """Record that a request failed, so that its reports are sent again."""
        if isinstance(error, Refused) and error.code == OTHER_LOG:  # where the copy will follow
            self._begin_again()
        else:
            self._failed[:0] = request["failed"]
            self._given_back[:0] = request["given_back"]
            for number, place in request["done"]:
                if (claim := self.held.get(number)) is not None:
                    claim.unsure = max(claim.unsure, Position(place))
        if isinstance(error, Refused) and error.code in _ENDED:
            if request["latest"]:
                self.error = error
            elif not self._is_unsure:  # perhaps that node has not executed its log yet
                self._is_unsure = self._is_hurried = True
                return
        elif not self._is_troubled:
            _log.warning("group %s: %s; trying again", self._group.name, spoken(error))
        self._is_troubled = True

    def _begin_again(self) -> None:
        """Give up all claims; the cluster that continues the log hands their messages out again."""
        for number in [*self.held]:
            self._lose(number)
        self._failed.clear()
        self._given_back.clear()
        self._is_unsure = False

    def _lose(self, number: int) -> None:
        claim = self.held.pop(number, None)
        if claim is None or claim.is_lost:
            return
        claim.is_lost = True
        if claim in self._queue:
            self._queue.remove(claim)
        if claim.unsure >= claim.end:
            return  # either the lost answer said that it was done, or another member repeats it
        event = RangeLost(self._group.name, claim.sent, claim.end)
        self.lost.append(event)
        _log.warning("%s", event)


def _begun(facts: dict[str, Any]) -> HeldClaim:
    first = Position(facts["first"])
    return HeldClaim(
        int(facts["number"]), first, Position(facts["end"]), int(facts["deliveries"]),
        bool(facts["is_dead"]), first, first, first,
    )  # fmt: skip


@dataclass(slots=True)
class _Pace:
    """How much to ask for, and when the handler last made progress."""

    follow: bool
    messages: int = _MESSAGES_FIRST
    at_least: int = 1  # if little is left: what is handled during another request
    answer_s: float = 0.0  # how long requests take, at most
    may_have_more: bool = True
    is_behind: bool = False  # the copy lacks messages of a claim
    ask_s: float = _ASK_FIRST_S
    moved_s: float | None = None  # None while nothing is being handled

    def answered(self, *, found: bool, took_s: float) -> None:
        self.answer_s = max(took_s, _FORGET * self.answer_s)
        self.may_have_more = found
        self.ask_s = _ASK_FIRST_S if found else min(1.0, 2 * self.ask_s)

    def moved(self, now_s: float) -> None:
        if self.moved_s is not None:
            self.moved_s = now_s

    def is_stuck(self, work_s_max: float, now_s: float) -> bool:
        return self.moved_s is not None and now_s - self.moved_s > work_s_max

    def learn(self, messages: int, seconds: float) -> None:
        self.moved_s = None
        if messages:
            each_s = max(seconds, 1e-6) / messages
            work_s = min(_WORK_S_MAX, max(_WORK_S, _ANSWERS * self.answer_s))
            self.messages = max(1, min(_MESSAGES_MAX, int(work_s / each_s), 2 * self.messages))
            self.at_least = max(1, min(self.messages, int(self.answer_s / each_s)))
