"""A simulated member of a group: the code that ships claims, reads and delivers messages.

Only its handler is simulated: it handles or rejects a message, and publishes dead letters.
"""

from collections.abc import Iterator
from random import Random
from typing import TYPE_CHECKING
from zlib import crc32

from rt.client.groups import claim_reading
from rt.client.groups.claim_reading import (
    Agree,
    Bury,
    Choice,
    ClaimReading,
    OnTrouble,
    Step,
    handled_before,
    is_over,
)
from rt.client.groups.group import DeadLetter, Delivery, Group
from rt.client.groups.member_claims import HeldClaim, MemberClaims
from rt.errors import ClaimLost, CorruptLog, FrameError, GapError, Refused, RtError
from rt.format.message import Batch
from rt.format.where import Where
from rt.log.files.directory import LogDirectory
from rt.log.read.follower import Follower, SessionFilter
from rt.net.exchange import Fields
from rt.position import START, Position

from .checkers import Violation
from .pullers import Copier
from .reader import SimReader
from .stream import OUT

if TYPE_CHECKING:
    from .reading import ReadingCluster

claim_reading.STALLED_S = 0.15  # type: ignore[misc]  # as the rest: a run is short
POISONED = 31  # every such message is rejected, whenever it is delivered
BURY_US = (1_000, 30_000)
CHOICE = Choice(SessionFilter(None, Where.parse(None, b"")), Where.parse(None, b""))
OVER = object()  # marks that a claim was read to its end
RAISING = OnTrouble("raise", "raise", None)


def is_poison(payload: bytes) -> bool:
    """Whether handlers always reject a message."""
    return crc32(payload) % POISONED == 0


class CopyReader:
    """Reads a machine's copy as a subscriber does, without ever waiting."""

    def __init__(self, copy: Copier, start: Position) -> None:
        log = LogDirectory(OUT, copy.disk)
        clock = lambda: copy.world.now_s  # noqa: E731
        self._follower = Follower(log, start, CHOICE.sessions, clock=clock)

    @property
    def position(self) -> Position:
        """Return where it continues."""
        return self._follower.position

    def next_batch(self, timeout_s: float) -> Batch | None:
        """Return the next batch that is there."""
        del timeout_s
        return self._follower.next()

    def poison(self, batch: Batch, error: FrameError) -> RtError:
        """Fail: no publisher here is hostile."""
        raise Violation(f"{batch.position} cannot be decoded: {error}")

    def close(self) -> None:
        """Close the files."""
        self._follower.close()


class TimedClaims:
    """The claims of a member, with its clock (`rt.client.groups.claims.Claims`)."""

    def __init__(self, state: MemberClaims, member: "SimMember") -> None:
        self._state, self._member = state, member

    @property
    def is_done(self) -> bool:
        """As in the state."""
        return self._state.is_done

    @property
    def has_something(self) -> bool:
        """Whether anything is held, or still to be reported."""
        return self._state.has_something

    @property
    def position(self) -> Position:
        """As in the state."""
        return self._state.position

    def progress(self, claim: HeldClaim, position: Position) -> None:
        """Record that everything before a position is handled."""
        self._state.progress(claim, position, self._member.now_s)

    def handled(self, messages: int, seconds: float) -> None:
        """Record how long a range took."""
        self._state.handled(messages, seconds)

    def grown(self) -> None:
        """Ask for more soon."""
        self._state.grown()

    def give_back(self) -> None:
        """Give back what no handler was given."""
        self._member.world.given_back += 1
        self._state.give_back()

    def close(self) -> None:
        """Do nothing: no copy here lacks what others have."""
        raise Violation(f"{self._member.name} closes as its own copy lacks something")


class SimMember(SimReader):
    """A member of the group, on one of the machines that have a copy."""

    def __init__(
        self, world: "ReadingCluster", name: str, chance: Random, *, follow: bool, is_older: bool
    ) -> None:
        super().__init__(world, name, chance)
        self._follow, self._is_older = follow, is_older
        self._copy = chance.choice(world.machines)
        self._grown_to = START
        self._claims: MemberClaims | None = None
        self._open: list[HeldClaim] = []
        self._claim: HeldClaim | None = None
        self._steps: Iterator[Step] | None = None
        self._reader: CopyReader | None = None
        self._awaited: tuple[HeldClaim, Position, Position | None] | None = None
        self._busy_until_us = 0
        self._burial: tuple[HeldClaim, DeadLetter] | None = None  # under way
        self._buried: list[tuple[HeldClaim, Position]] = []
        self.joined_at = START  # end of the stream when it joined
        self.until: Position | None = None

    @property
    def _group(self) -> Group:
        return self.world.group

    def step(self) -> None:
        """Join, or send what is due, and handle a message."""
        claims = self._claims
        if claims is None:
            if not self.is_waiting:
                self.joined_at = self.world.stream.end
                request = {"do": "group-join", "start": "earliest", **self._group.agreed_on()}
                self.ask(request, self._take_joined)
            return
        if claims.is_closing:
            if not self.is_waiting:
                self._say(claims)
                self.is_over = True
            return
        if not self.is_waiting and self.now_s >= claims.due_s():
            self._say(claims)
        for _ in range(self.world.haste):
            is_free = self.world.clock.now_us >= self._busy_until_us
            if claims.is_closing or not (is_free and self._is_agreed(claims)):
                break
            self._handle(claims)

    def die(self) -> None:
        """End at once, without telling anyone."""
        super().die()
        self._leave_claim()

    def _take_joined(self, answer: Fields | None, error: Exception | None) -> None:
        if answer is None:
            if isinstance(error, Refused) and error.code in ("role", "settings", "unknown-group"):
                raise Violation(f"{self.name} may not join: {error}")
            return
        position = Position.parse(answer["position"])
        self._claims = MemberClaims(self._group, self.name, position, follow=self._follow)
        self._timed = TimedClaims(self._claims, self)
        self.until = None if self._follow else Position.parse(answer["merged_end"])
        self._reading = ClaimReading(
            self._group, self._timed, CHOICE, RAISING, is_stopped=lambda: self.is_over,
            has_grown=self._has_grown, now_s=lambda: self.now_s,
        )  # fmt: skip

    def _has_grown(self) -> bool:
        before, self._grown_to = self._grown_to, self._copy.place
        return self._grown_to > before

    def _say(self, claims: MemberClaims) -> None:
        request = claims.said(self.now_s)
        sent = request
        if self._is_older:
            sent = {name: each for name, each in request.items()
                    if name not in ("latest", "asks_again")}  # fmt: skip
            request = {**request, "latest": True}  # this mistake: it believes every answer

        def take(answer: Fields | None, error: Exception | None) -> None:
            if answer is not None:
                self.world.demand_new(self.name, answer["claims"])
                held = [each for each in claims.held.values() if not each.is_lost]
                claims.handle_answer(request, answer, self.now_s)
                self.world.demand_lost(self.name, [each.number for each in held if each.is_lost])
                self._count_buried()
            else:
                assert error is not None
                claims.not_said(request, error)
                if claims.error is not None:
                    raise Violation(f"{self.name} ends: {claims.error}")

        self.ask(sent, take)

    def _count_buried(self) -> None:
        """Record dead letters that were agreed on: they must not be delivered again."""
        agreed = [each for each in self._buried if each[0].sent > each[1]]
        for claim, message in agreed:
            self.world.agrees(self.name, claim.number, message)
        self._buried = [each for each in self._buried if each not in agreed]

    def _is_agreed(self, claims: MemberClaims) -> bool:
        """Whether nothing is awaited: an acknowledgement with `sync` is agreed on, or lost."""
        if self._awaited is None:
            return True
        claim, upto, message = self._awaited
        try:
            if not claims.is_agreed(claim, upto):
                return False
            if message is not None:
                self.world.agrees(self.name, claim.number, message)
        except ClaimLost:
            pass  # its caller or the steps notice
        self._awaited = None
        return True

    def _handle(self, claims: MemberClaims) -> None:
        if self._burial is not None:
            self._end_burial(*self._burial)
            return
        if self._steps is None and not self._begin(claims):
            return
        claim = self._claim
        assert claim is not None
        assert self._steps is not None
        try:
            step = next(self._steps, OVER)
        except (GapError, CorruptLog) as error:
            raise Violation(f"{self.name} cannot read {claim.number}: {error}") from None
        if step is OVER:
            self._leave_claim()
        elif isinstance(step, Agree):
            self._await(claims, claim, step.position, None)
        elif isinstance(step, Bury):
            self._bury(claim, step.letter)
        elif isinstance(step, Delivery):
            self._take(claims, step)

    def _take(self, claims: MemberClaims, message: Delivery) -> None:
        """Handle a message, or reject it, as `GroupSubscriber` does."""
        position = message.position
        claim = handled_before(self._open, position, self._timed)
        if claim is None:
            raise Violation(f"{self.name} is handed {position} of no claim that it has open")
        is_moody = self.world.nemesis.active and self.chance.random() < 0.1
        if is_moody or is_poison(message.payload):
            self._timed.progress(claim, position)
            claims.reject(claim, position)
            self.world.rejected.add(position)
            return
        self.world.handled.add(position)
        if self.chance.random() < 0.2:
            self._await(claims, claim, message.next_position, position)
        else:
            self._timed.progress(claim, message.next_position)

    def _bury(self, claim: HeldClaim, letter: DeadLetter) -> None:
        """Publish a dead letter, which takes a while in which this member may die."""
        self._busy_until_us = self.world.clock.now_us + self.chance.randint(*BURY_US)
        self._burial = claim, letter

    def _end_burial(self, claim: HeldClaim, letter: DeadLetter) -> None:
        """Finish publishing a dead letter; this may fail, published or not."""
        self._burial = None
        self.world.risky_letters -= 1
        is_risky = self.world.nemesis.active or self.world.risky_letters >= 0
        drawn = self.chance.random() if is_risky else 1.0
        if drawn > 0.2:
            self.world.buries(self.name, claim.number, letter)
        if drawn < 0.4:  # publishing fails; ask for the next message
            self.world.forgive(claim.number, letter)
            self._begin_steps(claim)
        else:
            self._buried.append((claim, letter.position))

    def _await(
        self, claims: MemberClaims, claim: HeldClaim, upto: Position, message: Position | None
    ) -> None:
        self._awaited = claim, claims.progress(claim, upto, self.now_s), message
        claims.hurry()

    def _begin(self, claims: MemberClaims) -> bool:
        claims.rest()
        if is_over(self._timed, self.until):
            self.world.ends(self, self.joined_at)
            claims.is_closing = True
            return False
        claim = claims.next(self.now_s)
        if claim is None:
            if self._has_grown():
                claims.grown()
            return False
        self._open = [each for each in self._open if each.is_open] + [claim]
        self._begin_steps(claim)
        return True

    def _begin_steps(self, claim: HeldClaim) -> None:
        self._leave_claim()
        self._claim, self._reader = claim, CopyReader(self._copy, claim.goes_on)
        self._steps = iter(self._reading.steps(claim, self._reader))

    def _leave_claim(self) -> None:
        if self._reader is not None:
            self._reader.close()
        self._claim = self._steps = self._reader = None
