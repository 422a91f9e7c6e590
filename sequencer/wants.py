"""Wants: which sessions did not come to this node though others have them, and whom to ask."""

from collections.abc import Container
from typing import Final

from rt.position import START, Position
from sequencer.holdings import Holdings
from sequencer.ledger import Ledger

# A connection may be cut without a word, and is found dead after 15 s only; or the disk is slow.
_PATIENCE_WITH_PUBLISHERS: Final = 4


class Wants:
    """What is looked at again and again, and asked for when it does not come by itself."""

    def __init__(self, patience: int) -> None:
        """Ask for a session that has not grown here for so many looks, 1 or more."""
        self._patience = patience
        self._behind: dict[str, tuple[Position, int]] = {}  # where it stands, for how many looks

    def look(
        self,
        holdings: Holdings,
        ledger: Ledger,
        *,
        missing: str = "",
        fed: Container[str] = (),
    ) -> dict[str, list[str]]:
        """Return which sessions to ask which member for now.

        The member that holds most is asked first, and the others after it if nothing comes; each
        for twice as long as the one before, so that however slow they are one of them gets to it.

        Args:
            holdings: what each member said it holds, and what this one does.
            ledger: the state here; what was merged here is not needed any more.
            missing: the session that the next instruction needs more of, though it was merged
                elsewhere.
            fed: sessions that a publisher fills just now, or seems to; they are waited for longer.
        """
        behind, asked = {}, dict[str, list[str]]()
        for session, holders in _holders(holdings, ledger, missing).items():
            own = holdings.own.get(session, START)
            stood, looks = self._behind.get(session, (own, -1))
            looks = looks + 1 if stood == own else 0
            behind[session] = (own, looks)
            patience = self._patience * (_PATIENCE_WITH_PUBLISHERS if session in fed else 1)
            if looks >= patience:
                turn = (looks // patience).bit_length() - 1
                asked.setdefault(holders[turn % len(holders)], []).append(session)
        self._behind = behind
        return asked


def _holders(holdings: Holdings, ledger: Ledger, missing: str) -> dict[str, list[str]]:
    """Return who holds more than is here, the most first, of each session that is needed."""
    more: dict[str, list[tuple[Position, str]]] = {}
    for member in holdings.others:
        for session, end in holdings.of(member).items():
            own = holdings.own.get(session, START)
            if end > own and (session == missing or end > ledger.merged_to(session)):
                more.setdefault(session, []).append((end, member))
    return {
        session: [member for _, member in sorted(ends, key=lambda each: each[0], reverse=True)]
        for session, ends in more.items()
    }
