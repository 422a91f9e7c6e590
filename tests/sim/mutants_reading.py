"""Mistakes about groups, registered cursors and leases: only worlds with readers see them.

Two others are noticed by tests alone: that an older member gets the end as one node knows it
(`tests/unit/test_reading_group.py`), and that a rejection which a node did not know how to take is
not said again (`tests/unit/test_member_claims.py`).
"""

from collections.abc import Callable
from typing import Any

from rt.client.held_cursor import HeldCursor
from rt.client.member_claims import HeldClaim, MemberClaims
from rt.errors import Fenced, Refused
from rt.node.readers import changed_notes
from rt.node.retain.retention import LEASE_NOTE, Retention
from rt.position import Position
from sequencer.ledger.instruction import Note, encode_instruction
from sequencer.proposals import Proposals
from sequencer.reading import LatestReads

from .mutation import Patch, mutant

READING: set[str] = set()


def reading(make: Callable[[], list[Patch]]) -> Callable[[], list[Patch]]:
    """Register a mistake that is sought in worlds with readers."""
    READING.add(make.__name__.replace("_", "-"))
    return mutant(make)


@reading
def reads_are_answered_at_once() -> list[Patch]:
    """A node calls what it knows the latest before a majority has confirmed that."""
    return [(LatestReads, "is_answered", lambda _self, _ticket, _executed: True)]


@reading
def reads_are_answered_before_they_are_executed() -> list[Patch]:
    """A leader is confirmed, and has not executed what was decided."""

    def is_answered(self: LatestReads, ticket: int, _executed: int) -> bool:
        return self._indexes.get(ticket) is not None

    return [(LatestReads, "is_answered", is_answered)]


@reading
def a_member_believes_every_no() -> list[Patch]:
    """A claim is lost, and the work done, because a node does not know any better."""
    right = MemberClaims.take

    def take(
        self: MemberClaims, request: dict[str, Any], answer: dict[str, Any], now_s: float
    ) -> None:
        right(self, {**request, "latest": True}, answer, now_s)

    return [(MemberClaims, "take", take)]


@reading
def a_holder_believes_every_no() -> list[Patch]:
    """A cursor is taken because a node does not know any better."""

    def must_ask_again(self: HeldCursor, _request: dict[str, Any], error: Exception) -> bool:
        if not isinstance(error, Refused) or error.code not in ("fenced", "unknown-cursor"):
            raise error
        self.fenced = Fenced(self.name, str(error))
        raise self.fenced

    return [(HeldCursor, "must_ask_again", must_ask_again)]


@reading
def a_lost_claim_counts_as_agreed() -> list[Patch]:
    """An acknowledgement with `sync` returns once its claim is another member's."""
    right = MemberClaims.is_agreed

    def is_agreed(self: MemberClaims, claim: HeldClaim, position: Position) -> bool:
        return claim.is_lost or right(self, claim, position)

    return [(MemberClaims, "is_agreed", is_agreed)]


@reading
def what_was_said_counts_as_agreed() -> list[Patch]:
    """An acknowledgement counts before its request is answered."""
    right = MemberClaims.said

    def said(self: MemberClaims, now_s: float) -> dict[str, Any]:
        request = right(self, now_s)
        for claim in self._held.values():
            claim.sent = max(claim.sent, claim.done)
        return request

    return [(MemberClaims, "said", said)]


@reading
def notes_are_changed_unconditionally() -> list[Patch]:
    """Two leaders, or a leader that lags, change a group or a cursor over each other."""
    return [(changed_notes, "note_digest", lambda _text: b"")]


@reading
def a_lease_is_forgotten_unconditionally() -> list[Patch]:
    """Its renewal, which this leader has not executed yet, goes with it."""

    def _forget_old_leases(self: Retention) -> None:
        for lease in self.leases:
            if self.now_ns >= lease.until_ns:
                note = Note(self._machine.now_ns(), LEASE_NOTE + lease.holder, "")
                self._member.order(note, first=True)

    return [(Retention, "_forget_old_leases", _forget_old_leases)]


@reading
def an_order_is_lost_while_leadership_moves() -> list[Patch]:
    """The one who ordered it waits for 10 s if the leader leads on, and others with it."""

    def propose(self: Proposals) -> None:
        if not (self.waiting or self._orders) or self._undecided is not None:
            return
        if not self._engine.leads or self._execution.queue:
            return
        if self._execution.done_index < self._planner.ready_index:
            return
        if (instruction := self._next_instruction()) is None:
            return
        try:
            entry = self._engine.propose(encode_instruction(instruction))
        except Refused:
            return
        self._undecided, self._proposed_ns = (entry, instruction), self._now_ns()

    return [(Proposals, "propose", propose)]
