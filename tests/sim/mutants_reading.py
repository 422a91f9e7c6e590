"""Mistakes about groups, registered cursors and leases, which only worlds with readers show.

Two others are noticed by tests alone: that an older member gets the end as one node knows it
(`tests/unit/test_reading_group.py`), and that a rejection which a node could not read is not sent
again (`tests/unit/test_member_claims.py`).
"""

from collections.abc import Callable
from typing import Any

from archiver import decide as decisions
from archiver import plan
from rt.client.groups.claim_reading import ClaimReading
from rt.client.groups.member_claims import HeldClaim, MemberClaims
from rt.client.readers.held_cursor import HeldCursor
from rt.node.admin import asked_stream
from rt.node.readers import changed_notes
from rt.node.retain import retention
from rt.position import Position
from sequencer.proposals import Proposals
from sequencer.reading import LatestReads

from . import asking, group_member
from .mutation import Patch, mutant, noticed_by, rewritten

READING: set[str] = set()


def reading(make: Callable[[], list[Patch]]) -> Callable[[], list[Patch]]:
    """Register a mistake that is sought in worlds with readers."""
    READING.add(make.__name__.replace("_", "-"))
    return mutant(make)


@reading
def reads_are_answered_at_once() -> list[Patch]:
    """A node answers a read of the latest before a majority has confirmed it."""
    return [(LatestReads, "is_answered", lambda _self, _ticket, _executed: True)]


@reading
def reads_are_answered_before_they_are_executed() -> list[Patch]:
    """A leader is confirmed, and has not executed what was decided."""
    right = "index is not None and index <= executed"
    return [rewritten(LatestReads, "is_answered", right, "index is not None")]


@reading
def a_member_believes_every_no() -> list[Patch]:
    """A member drops a claim, and its work, because an outdated node refused it."""
    right = MemberClaims.handle_answer

    def handle_answer(
        self: MemberClaims, request: dict[str, Any], answer: dict[str, Any], now_s: float
    ) -> None:
        right(self, {**request, "latest": True}, answer, now_s)

    return [(MemberClaims, "handle_answer", handle_answer)]


@reading
def a_holder_believes_every_no() -> list[Patch]:
    """A holder gives its cursor up because an outdated node refused it."""
    return [rewritten(HeldCursor, "must_ask_again", 'if not request["latest"]:', "if False:")]


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

    def said(self: MemberClaims, now_s: float, log: str = "") -> dict[str, Any]:
        request = right(self, now_s, log)
        for claim in self.held.values():
            claim.sent = max(claim.sent, claim.done)
        return request

    return [(MemberClaims, "said", said)]


@reading
def notes_are_changed_unconditionally() -> list[Patch]:
    """Two leaders, or an outdated one, overwrite each other's changes of a group or cursor."""
    return [(changed_notes, "note_digest", lambda _text: b"")]


@reading
@noticed_by("unit/test_archiver.py::test_a_lease_whose_renewal_is_decided_elsewhere_is_kept")
def a_lease_is_forgotten_unconditionally() -> list[Patch]:
    """Removing a lease also removes its renewal, which this leader has not executed yet."""
    return [rewritten(retention, "ended_leases", ', note_digest(notes.get(name, ""))', "")]


@reading
@noticed_by(
    "unit/test_proposals.py::test_an_order_that_comes_while_leadership_moves_is_kept_if_it_stays"
)
def an_order_is_lost_while_leadership_moves() -> list[Patch]:
    """An order that is lost while leadership moves delays its client, and others, by 10 s."""
    right = "self.orders.appendleft(instruction)"
    return [rewritten(Proposals, "propose", right, "pass")]


@reading
def a_copy_that_lags_counts_as_read() -> list[Patch]:
    """A member calls a range done although its copy lacks part of it."""
    return [rewritten(ClaimReading, "_read", "if reader.position >= claim.end:", "if True:")]


@reading
def a_range_is_read_past_its_end() -> list[Patch]:
    """A member delivers messages of a range that others were given."""
    return [rewritten(ClaimReading, "_chosen", "message.at >= claim.end", "False")]


@reading
def dead_letters_are_handed_out() -> list[Patch]:
    """A message that no handler can handle is delivered for ever."""
    return [rewritten(ClaimReading, "steps", "claim.is_dead and", "False and")]


@reading
def a_dead_letter_counts_before_it_is_published() -> list[Patch]:
    """A dead letter counts before it is published; if publishing fails, the message is lost."""
    right = "yield Bury(self._letter(message, claim))"
    counted = "self._claims.progress(claim, message.next_position)"
    hurried = f"claim.handed = message.next_position; {counted}; "
    return [rewritten(ClaimReading, "steps", right, hurried + right)]


@reading
def a_dead_letter_does_not_count_as_handled() -> list[Patch]:
    """A dead letter does not count as handled, so it is published again and again."""
    right = "claim.handed = message.next_position\n            self._claims.progress("
    return [
        rewritten(
            ClaimReading,
            "steps",
            right,
            right.replace("self._claims.progress", "(lambda *_: None)"),
        )
    ]


@reading
def members_end_once_they_hold_nothing() -> list[Patch]:
    """A member that does not follow ends while others still hold ranges."""

    def is_over(claims: Any, until: Position | None) -> bool:
        return until is not None and not claims.has_something

    return [(group_member, "is_over", is_over)]


@reading
def a_rejection_ends_what_came_before_it() -> list[Patch]:
    """A rejected message counts as handled, and the rejection is not sent."""
    right = "self._failed.append([claim.number, int(position), self._group.retry_s])"
    return [rewritten(MemberClaims, "reject", right, "pass")]


@reading
def a_lost_rejection_is_not_said_again() -> list[Patch]:
    """A rejection whose request got no answer is not repeated, so the message counts as handled."""
    right = 'self._failed[:0] = request["failed"]'
    return [rewritten(MemberClaims, "not_said", right, "pass")]


@reading
def pins_hold_nothing() -> list[Patch]:
    """What a group has not handled is archived by the rules of time and limit."""
    return [(retention, "pins_of", lambda notes, over=frozenset(): [])]


@reading
def a_limit_of_messages_goes_over_pins() -> list[Patch]:
    """Where a policy limits the number of messages, no rule keeps what is not handled."""
    right, wrong = (
        "default=len(files))",
        "default=len(files)) if policy.messages is None else len(files)",
    )
    return [(plan, *rewritten(decisions, "decide", right, wrong)[1:])]


@reading
def an_order_about_another_stream_is_carried_out() -> list[Patch]:
    """A node uses the connection's stream, not the request's."""
    wrong = rewritten(asked_stream, "demand_stream", "named not in (None, own)", "False")
    return [(asking, "demand_stream", wrong[2])]
