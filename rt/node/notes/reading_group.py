"""ReadingGroup: which ranges of a stream were handed to a group's members, and which are done."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Final, NamedTuple

from archiver.lease import UNREADABLE, whole_position
from rt.errors import Misuse
from rt.names import parse_cursor, parse_peer, parse_session
from rt.net.authority.identity import CertificateRole, PeerIdentity
from rt.node.notes.readable_notes import readable
from rt.node.notes.registered_cursor import PIN_BYTES_MAX, SILENCE_S_MAX, SILENCE_S_MIN
from rt.position import START, Position

GROUP_NOTE: Final = "group "  # followed by the name
CLAIMS_MAX: Final = 48  # 57 bytes each at most, so that a group's note is less than 4 KiB
DELIVERIES_MAX: Final = 1000
SUSPECT: Final = 3  # from so many deliveries on, members report messages before handling
_PARSED: Final = 256  # notes of 4 KiB at most; each is read many times while it is being agreed on
_AGAIN: Final = 2  # delivery count of a message that may have been handed out before


class RangeClaim(NamedTuple):
    """RangeClaim: a range of messages held by one member, or waiting to be handed out again.

    Attributes:
        number: unique in the group, so that reports of an earlier holder are refused.
        first: position of the first message that is not done.
        end: the position after the range's last message.
        deliveries: upper bound of how often the first message was handed out.
        is_rejected: whether a handler has rejected the first message, so that `deliveries` is
            exact.
    """

    number: int
    first: Position
    end: Position
    deliveries: int
    is_rejected: bool = False

    def done_to(self, position: Position) -> "RangeClaim":
        """Return the claim without the messages before a position.

        Its delivery count is lowered, since the messages left may have been delivered less often
        than the first one.
        """
        if position <= self.first:
            return self
        deliveries = min(self.deliveries, _AGAIN)
        return self._replace(first=position, deliveries=deliveries, is_rejected=False)


@dataclass(frozen=True, slots=True)
class ReadingGroup:
    """ReadingGroup: the agreed state of a group of readers: which ranges are done or held.

    This note changes when a range is handed out or done, not for each message.

    Attributes:
        name: the group's name.
        owner: name in the certificate of its members.
        role: role in that certificate.
        next: position from which on nothing was ever handed out.
        number: number of the last claim.
        claims: the ranges before `next` that are not done.
        silence_s: a claim is handed out again after its holder was silent for this long.
        max_deliveries: how often a message is handed out before it becomes a dead letter.
        dead_letters: prefix of the sessions that dead letters are published to; "" for none.
        pin_bytes: bytes of unfinished messages kept from the archiving rules `time` and `limit`.
        stored_ns: when this was stored, ns since the epoch.
    """

    name: str
    owner: str
    role: str
    next: Position = START
    number: int = 0
    claims: tuple[RangeClaim, ...] = ()
    silence_s: float = 0.75
    max_deliveries: int = 5
    dead_letters: str = ""
    pin_bytes: int = 0
    stored_ns: int = 0

    def __post_init__(self) -> None:
        parse_cursor(self.name)
        parse_peer(self.owner)
        if self.role not in list(CertificateRole):
            raise Misuse("a group has the role of its members")
        numbers = self.number, self.pin_bytes, self.stored_ns
        if not all(type(each) is int and 0 <= each < 1 << 63 for each in numbers):
            raise Misuse("a group has whole numbers, none of them negative")
        if not (0 <= self.next < 1 << 63 and self.number < 1 << 53):
            raise Misuse("a group has a position and a number")
        if not SILENCE_S_MIN <= self.silence_s <= SILENCE_S_MAX:
            raise Misuse(f"silence_s is {self.silence_s}; use 0.2 to 3600 seconds")
        if type(self.max_deliveries) is not int or not 1 <= self.max_deliveries <= DELIVERIES_MAX:
            raise Misuse(f"max_deliveries is {self.max_deliveries}; use 1 to {DELIVERIES_MAX}")
        if self.dead_letters:
            parse_session(self.dead_letters)
        if not 0 <= self.pin_bytes <= PIN_BYTES_MAX:
            raise Misuse(f"pin_bytes is {self.pin_bytes}; use 0 to {PIN_BYTES_MAX}")
        if len(self.claims) > CLAIMS_MAX:
            raise Misuse(f"a group has at most {CLAIMS_MAX} claims")

    @property
    def position(self) -> Position:
        """The end of the prefix in which everything is done."""
        return min((claim.first for claim in self.claims), default=self.next)

    @property
    def has_room(self) -> bool:
        """Whether another range may be handed out."""
        return len(self.claims) < CLAIMS_MAX

    def find_claim(self, number: int) -> RangeClaim | None:
        """Return the claim of this number; None if it is done, or was handed to another member."""
        return next((each for each in self.claims if each.number == number), None)

    def is_dead(self, claim: RangeClaim) -> bool:
        """Whether the first message of a claim must not be handed out again.

        If members have died, it takes three deliveries to know which message was the cause.
        """
        most = self.max_deliveries if claim.is_rejected else max(self.max_deliveries, SUSPECT)
        return bool(self.dead_letters) and claim.deliveries > most

    def is_suspect(self, claim: RangeClaim) -> bool:
        """Whether a claim was handed out so often that its holder may have no other claim."""
        return claim.deliveries >= (self.max_deliveries if claim.is_rejected else SUSPECT)

    def belongs_to(self, identity: PeerIdentity) -> bool:
        """Whether this peer may be a member."""
        return self.owner == identity.name and self.role == identity.role

    def handed_out(self, end: Position) -> "ReadingGroup":
        """Return the group with the messages from `next` to `end` handed out, as a new claim."""
        number = self.number + 1
        claims = (*self.claims, RangeClaim(number, self.next, end, 1))
        return replace(self, next=end, number=number, claims=claims)

    def handed_out_again(self, claim: RangeClaim) -> "ReadingGroup":
        """Return the group with a claim handed out to another member, under a new number."""
        number = self.number + 1
        again = claim._replace(number=number, deliveries=claim.deliveries + 1)
        return replace(self, number=number, claims=(*self._without(claim), again))

    def done(self, claim: RangeClaim, position: Position) -> "ReadingGroup":
        """Return the group with a claim's messages before a position marked as done.

        Raises:
            Misuse: the position is not in the claim.
        """
        if position > claim.end:
            raise Misuse(f"{position} is not in the claim from {claim.first} to {claim.end}")
        return self._with(claim, claim.done_to(position))

    def failed(self, claim: RangeClaim, position: Position) -> "ReadingGroup":
        """Return the group with the message at a position taken from its holder, as a new claim.

        The messages after it stay with the holder, unless there is no room for another claim.

        Raises:
            Misuse: the position is not in the claim.
        """
        if not claim.first <= position < claim.end:
            raise Misuse(f"{position} is not in the claim from {claim.first} to {claim.end}")
        bad, number, end = claim.done_to(position), self.number + 1, claim.end
        rest = replace(self, claims=tuple(self._without(claim)))
        if self.has_room:
            end = Position(position + 1)
            rest = self._with(claim, claim.done_to(end))
        alone = bad._replace(number=number, end=end, is_rejected=True)
        return replace(rest, number=number, claims=(*rest.claims, alone))

    def given_back(self, claim: RangeClaim) -> "ReadingGroup":
        """Return the group with a claim given back by its holder.

        This delivery does not count, since no handler has received the rest of the claim.
        """
        return self._with(claim, claim._replace(deliveries=max(0, claim.deliveries - 1)))

    def moved_to(self, position: Position) -> "ReadingGroup":
        """Return the group moved to a position; outstanding ranges are revoked."""
        return replace(self, next=position, claims=())

    def text(self) -> str:
        """Return the group as JSON; equal groups give equal texts."""
        fields = {name: getattr(self, name) for name in _PLAIN}
        claims = [
            [each.number, each.first, each.end - each.first, each.deliveries, int(each.is_rejected)]
            for each in self.claims
        ]
        return json.dumps({**fields, "claims": claims}, separators=(",", ":"))

    def _without(self, claim: RangeClaim) -> list[RangeClaim]:
        return [each for each in self.claims if each.number != claim.number]

    def _with(self, claim: RangeClaim, rest: RangeClaim) -> "ReadingGroup":
        if rest.first >= rest.end:
            return replace(self, claims=tuple(self._without(claim)))
        changed = (rest if each.number == claim.number else each for each in self.claims)
        return replace(self, claims=tuple(changed))


_PLAIN: Final = tuple(name for name in ReadingGroup.__slots__ if name != "claims")


@lru_cache(_PARSED)
def parse_reading_group(text: str) -> ReadingGroup:
    """Parse the output of `ReadingGroup.text`; `Misuse` if `text` is anything else."""
    try:
        fields: dict[str, Any] = json.loads(text)
        claims = tuple(
            _claim(number, first, length, deliveries, is_rejected=any(rejected))
            for number, first, length, deliveries, *rejected in fields.pop("claims")
        )
        place = whole_position(fields.pop("next"))
        return ReadingGroup(**fields, next=place, claims=claims)
    except UNREADABLE as error:
        raise Misuse(f"not a group: {error}") from None


def _claim(
    number: int, first: int, length: int, deliveries: int, *, is_rejected: bool
) -> RangeClaim:
    numbers = number, length, deliveries
    if not all(type(each) is int and 0 <= each < 1 << 63 for each in numbers):
        raise Misuse("a claim has whole numbers, none of them negative")
    begin, end = whole_position(first), whole_position(first + length)
    return RangeClaim(number, begin, end, deliveries, is_rejected)


def groups_of_notes(notes: Mapping[str, str]) -> list[ReadingGroup]:
    """Return the groups of a stream that this version can read, sorted by name."""
    return readable(notes, GROUP_NOTE, parse_reading_group)[0]
