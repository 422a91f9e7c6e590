"""ClaimReading: decides which messages of a claim a member delivers, and the steps before each.

Pure: the reader and the clock are passed to it.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

from rt.client.groups.group import CAREFUL, DeadLetter, Delivery, Group
from rt.client.groups.member_claims import HeldClaim
from rt.errors import FrameError, GapError, RtError
from rt.events import Event
from rt.format.message import Batch, Message
from rt.format.where import Where
from rt.log.files.archived import is_own_gap
from rt.log.read.follower import SessionFilter
from rt.position import Position
from rt.subscriber import OnGap

WAIT_S: Final = 0.1  # a stop, or the loss of a claim, is noticed within this time
STALLED_S: Final = 5.0  # a healthy copy lags by milliseconds


class OnTrouble(NamedTuple):
    """How a reader handles gaps and frames that cannot be decoded; as for `rt.Subscriber`."""

    on_gap: OnGap
    on_poison: OnGap
    on_event: Callable[[Event], None] | None


@dataclass(frozen=True, slots=True)
class Choice:
    """Which messages a group's members are given; the others count as handled.

    All members of a group have the same choice.
    """

    sessions: SessionFilter
    where: Where

    @classmethod
    def of(
        cls,
        sessions: Collection[str] | None,
        key_prefix: bytes,
        where: str | Collection[str] | None,
    ) -> "Choice":
        """Compile the arguments of a subscriber; `Misuse` if one is not valid."""
        compiled = Where.parse(where, key_prefix)
        return cls(SessionFilter(sessions, compiled), compiled)


@dataclass(frozen=True, slots=True)
class Agree:
    """Step: wait until the nodes agree that everything before `position` is handled.

    The wait also ends if the claim is lost.
    """

    position: Position


@dataclass(frozen=True, slots=True)
class Bury:
    """Step: publish a dead letter, and continue once it is merged."""

    letter: DeadLetter


Step = Delivery | Agree | Bury | None  # None: nothing came for a while


class Reporting(Protocol):
    """The part of `Claims` that `ClaimReading` reports to."""

    @property
    def is_done(self) -> bool:
        """Whether the group had handled everything when this member last asked for more."""

    @property
    def position(self) -> Position:
        """The position up to which the group had handled everything, by the nodes' last answer."""

    def progress(self, claim: HeldClaim, position: Position) -> None:
        """Record that everything before a position is handled."""

    def handled(self, messages: int, seconds: float) -> None:
        """Record that the handler took `seconds` for a range of `messages` messages."""

    def grown(self) -> None:
        """Ask the nodes for more ranges soon, because the stream has grown."""

    def give_back(self) -> None:
        """Give back the ranges of which no message is being handled."""

    def close(self) -> None:
        """Report what is handled, and ask for no more ranges."""


class ClaimReader(Protocol):
    """The part of `rt.Subscriber` that `ClaimReading` uses, to read this machine's copy."""

    @property
    def position(self) -> Position:
        """Return where reading continues."""

    def next_batch(self, timeout_s: float) -> Batch | None:
        """Return the next batch; None if none came in time. Raises `GapError` at every gap."""

    def poison(self, batch: Batch, error: FrameError) -> RtError:
        """Return the error of a batch that cannot be decoded."""


class ClaimReading:
    """Reads the claims of one group member: the ranges of the stream that it was given.

    Delivery is at least once: a message is reported as handled only after it was delivered. Before
    the member delivers a message of a range for the third time or more, it waits until the nodes
    agree that everything before the message is handled. So a message that kills members can be
    identified.
    """

    def __init__(
        self,
        group: Group,
        claims: Reporting,
        choice: Choice,
        trouble: OnTrouble,
        *,
        is_stopped: Callable[[], bool],
        has_grown: Callable[[], bool],
        now_s: Callable[[], float],
        stalled_s: float = STALLED_S,
    ) -> None:
        """Prepare.

        Args:
            group: the group that was joined.
            claims: receives what was handled.
            choice: which messages are wanted.
            trouble: how to handle gaps and frames that cannot be decoded.
            is_stopped: returns whether to deliver nothing more.
            has_grown: returns whether the copy has grown since the last call.
            now_s: a clock that never goes back.
            stalled_s: once the copy has not grown for this long, the claim is left to other
                members.
        """
        self._stalled_s = stalled_s
        self._group = group
        self._claims = claims
        self._choice = choice
        self._trouble = trouble
        self._is_stopped = is_stopped
        self._has_grown = has_grown
        self._now_s = now_s
        self.has_given = False  # whether a batch was of a wanted session
        self.has_matched = False  # whether any of its messages was wanted

    def steps(self, claim: HeldClaim, reader: ClaimReader) -> Iterator[Step]:
        """Yield the messages of a claim, and what to do before them; None if none came for a while.

        At the end, record that nothing follows in the claim.

        Raises:
            GapError: as for `rt.client.groups.group_subscriber.GroupSubscriber.messages`.
            CorruptLog: the copy is damaged.
        """
        began_s, count = self._now_s(), 0
        for message in self._read(claim, reader):
            if message is None:
                yield None
                continue
            if claim.is_dead and claim.handed == claim.first:
                yield Bury(self._letter(message, claim))
                claim.handed = message.next_position
                self._claims.progress(claim, message.next_position)
                continue
            if claim.deliveries >= CAREFUL and claim.done >= claim.handed:
                yield Agree(message.position)
            if claim.is_lost or self._is_stopped():
                return
            claim.handed, count = message.next_position, count + 1
            message.redelivered, message.claim = claim.deliveries - 1, claim
            yield message
        if not (self._is_stopped() or claim.is_lost):
            self._claims.handled(count, self._now_s() - began_s)
            claim.tail = claim.handed
            self._claims.progress(claim, claim.done)

    def _read(self, claim: HeldClaim, reader: ClaimReader) -> Iterator[Delivery | None]:
        """Yield the wanted messages of a claim, or None while the copy lags.

        If the copy stalls, the claim is given back, so that a member whose copy has the claim's
        messages can take it.
        """
        grown_s = self._now_s()
        while not (self._is_stopped() or claim.is_lost) and claim.goes_on < claim.end:
            batch = self._next_batch(reader, claim)
            if batch is None:
                if reader.position >= claim.end:
                    return
                if self._has_grown():
                    grown_s = self._now_s()
                    self._claims.grown()
                elif self._now_s() - grown_s > self._stalled_s and claim.handed <= claim.done:
                    self._claims.give_back()
                yield None
                continue
            if batch.position >= claim.end:
                return
            yield from self._chosen(reader, batch, claim)
            if batch.next_position >= claim.end:
                return
            grown_s = self._now_s()

    def _next_batch(self, reader: ClaimReader, claim: HeldClaim) -> Batch | None:
        """Return the next batch; None if no batch came in time, or after a gap that may be skipped.

        The reader raises at every gap; a gap that only this copy has is never skipped.
        """
        try:
            return reader.next_batch(WAIT_S)
        except GapError as error:
            gap, trouble = error.gap, self._trouble
            if is_own_gap(gap):
                self._claims.close()  # what is not done goes to a member whose copy has it
                raise
            claim.read_to = min(gap.end, claim.end)
            if claim.handed <= claim.done:  # otherwise a later report covers the gap
                claim.handed = claim.read_to  # a message after the gap is not the claim's first
                self._claims.progress(claim, claim.read_to)
            if trouble.on_gap == "raise":
                raise
            if trouble.on_gap == "notify" and trouble.on_event is not None:
                trouble.on_event(gap)
            return None

    def _chosen(self, reader: ClaimReader, batch: Batch, claim: HeldClaim) -> Iterator[Delivery]:
        if not self._choice.sessions.wants(batch.session):
            return
        self.has_given = True
        try:
            for message in self._choice.where.messages(batch):
                if message.at >= claim.end:
                    return
                if not self._group.is_letter(message):
                    self.has_matched = True
                    yield Delivery._make(message)
        except FrameError as error:
            raise reader.poison(batch, error) from None

    def _letter(self, message: Message, claim: HeldClaim) -> DeadLetter:
        """Return the dead letter of a message that was delivered too often."""
        reason = f"handed out {claim.deliveries - 1} times, and not handled"
        return DeadLetter(
            self._group.name, message.position, message.session, message.sequence, message.key,
            claim.deliveries - 1, reason, message.payload, message.headers or None,
        )  # fmt: skip


def is_over(claims: Reporting, until: Position | None) -> bool:
    """Whether the group has handled everything before `until`; always False if `until` is None."""
    return until is not None and (claims.is_done or claims.position >= until)


def handled_before(
    open_claims: Sequence[HeldClaim], position: Position, claims: Reporting
) -> HeldClaim | None:
    """Return the open range that contains `position`; count all earlier ranges as handled.

    If several contain it, return the last one: a rejected message comes again in a range of its
    own. Return None if none does, because the message was given to another member.
    """
    for place in reversed(range(len(open_claims))):
        if open_claims[place].first <= position < open_claims[place].end:
            for earlier in open_claims[:place]:
                claims.progress(earlier, earlier.handed)
            return open_claims[place]
    return None
