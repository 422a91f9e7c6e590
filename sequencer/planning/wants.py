"""Wants: which sessions this node lacks, and which member to ask for them."""

from collections.abc import Callable, Mapping
from typing import Final

from rt.position import START, Position
from sequencer.ledger.ledger import Ledger
from sequencer.planning.holdings import Holdings

# The wait for a session is so many times as long while its publisher seems connected. It ends,
# since the connection may be cut silently, which is noticed after 15 s, or the disk may be slow.
PATIENCE_WITH_PUBLISHERS: Final = 4
# The same while any session of that publisher grows: a publisher with a thousand sessions sends
# them in turn, seconds apart. A node that was asked meanwhile would send the same bytes, and take
# bandwidth that the publisher needs.
_PATIENCE_WITH_BUSY_PUBLISHERS: Final = 16


class Wants:
    """Wants: decides which sessions this node lacks, and which member to ask for each.

    Each call of `choose` compares what all members hold.
    """

    def __init__(self, patience: int) -> None:
        """Ask for a session after `patience` calls of `choose`, at least 1, without growth here."""
        self._patience = patience
        self._behind: dict[str, tuple[Position, int]] = {}  # end here, looks since it grew
        self._looks = 0
        # By publisher, the last look at which one of its sessions had grown here; then of them all.
        self._busy: dict[str, int] = {}
        self._last_busy: int | None = None

    def choose(
        self,
        holdings: Holdings,
        ledger: Ledger,
        *,
        missing: str = "",
        feeder: Callable[[str], str] = lambda _session: "",
    ) -> dict[str, list[str]]:
        """Return the sessions to ask for now, by member to ask.

        The member that holds the most is asked first. If nothing arrives, the others are asked in
        turn, each for twice as long as the one before, so that even a slow one has enough time.

        Args:
            holdings: what every member holds.
            ledger: this node's state; a session's bytes are not needed once they are merged here.
            missing: the session of which the next instruction needs more.
            feeder: returns the publisher of a session if it seems connected, else "". The wait for
                a session with such a publisher is 4 times as long, and 16 times while any session
                of that publisher grows. Without one, the wait is 4 times as long if the session has
                not begun here and any publisher's sessions grow: it may be sent next.
        """
        behind, late = dict[str, tuple[Position, int]](), list[str]()
        self._looks += 1
        held = {name: holdings.of(name) for name in holdings.others}
        needed = _holders(held, holdings.own, ledger, missing)
        for session in needed:
            own = holdings.own.get(session, START)
            before, looks = self._behind.get(session, (own, -1))
            looks = looks + 1 if before == own else 0
            behind[session] = (own, looks)
            if looks >= self._patience:
                late.append(session)
            elif not looks and session in self._behind:
                self._has_grown(feeder(session))
        for session in self._behind.keys() - behind.keys():
            if holdings.own.get(session, START) > self._behind[session][0]:  # all of it has come
                self._has_grown(feeder(session))
        self._behind = behind
        asked = dict[str, list[str]]()
        for session in late:
            may_begin = session not in holdings.own and session != missing
            patience = self._patience * self._times(feeder(session), may_begin=may_begin)
            turns = behind[session][1] // patience
            if turns:
                holders = needed[session]
                holder = holders[(turns.bit_length() - 1) % len(holders)]
                asked.setdefault(holder, []).append(session)
        return asked

    def _times(self, publisher: str, *, may_begin: bool) -> int:
        """Return how many times longer to wait for a session of this publisher; "" if unknown."""
        if publisher:
            is_busy = self._is_recent(self._busy.get(publisher))
            return _PATIENCE_WITH_BUSY_PUBLISHERS if is_busy else PATIENCE_WITH_PUBLISHERS
        is_next = may_begin and self._is_recent(self._last_busy)
        return PATIENCE_WITH_PUBLISHERS if is_next else 1

    def _has_grown(self, publisher: str) -> None:
        """Record that a session grew here, if its publisher is known."""
        if publisher:
            self._busy[publisher] = self._last_busy = self._looks

    def _is_recent(self, look: int | None) -> bool:
        """Whether the call of `choose` with this number is one of the last few; False for None."""
        usual = self._patience * PATIENCE_WITH_PUBLISHERS
        return look is not None and self._looks - look < usual


def is_even(holdings: Holdings, ledger: Ledger) -> bool:
    """Whether everything that members hold is merged, or held both here and by a majority.

    Otherwise some member needs a copy, or must report again because a report was lost. Members that
    are silent do not count; what they hold is passed on once they return.
    """
    lately = {name: holdings.of(name) for name in holdings.heard_lately}
    if _holders(lately, holdings.own, ledger, ""):
        return False
    return all(
        end <= ledger.merged_to(session) or end <= holdings.agreed(session)
        for session, end in holdings.own.items()
    )


def _holders(
    held: Mapping[str, Mapping[str, Position]],
    own: Mapping[str, Position],
    ledger: Ledger,
    missing: str,
) -> dict[str, list[str]]:
    """Return the members that hold more of each needed session than this node, most first."""
    more: dict[str, list[tuple[Position, str]]] = {}
    here, merged_to = own.get, ledger.merged_to
    for member, ends in held.items():
        for session, end in ends.items():
            is_more = end > here(session, START)
            if is_more and (session == missing or end > merged_to(session)):
                more.setdefault(session, []).append((end, member))
    return {
        session: [member for _, member in sorted(ends, key=lambda each: each[0], reverse=True)]
        for session, ends in more.items()
    }
