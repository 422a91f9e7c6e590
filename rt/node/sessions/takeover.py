"""Takeover: who may take over a session's name, and when."""

from math import ceil
from typing import Final, NamedTuple

from rt.amounts import duration_text
from rt.errors import Misuse, Refused
from rt.names import parse_peer, parse_session
from rt.net.authority.identity import PeerIdentity
from rt.net.exchange import Fields
from rt.node.sessions.policy import SessionPolicy
from sequencer.ledger.session_facts import Ownership

_NS: Final = 1_000_000_000


class Takeover(NamedTuple):
    """Takeover: a request to take over a session's name.

    Attributes:
        session: the session.
        owner: the new owner; "" to free the name.
        begins_again: whether the session starts over with another log, from number 0.
        by_operator: whether an operator asks; an operator need not wait.
    """

    session: str
    owner: str
    begins_again: bool
    by_operator: bool

    def demand_over(self, known: Ownership | None, policy: SessionPolicy, now_ns: int) -> Ownership:
        """Return the present ownership, if the session may be taken over.

        Args:
            known: the present ownership.
            policy: the stream's policy.
            now_ns: the time agreed between the nodes.

        Raises:
            Misuse: no publisher has opened the session.
            Refused: its owner is connected, or may come back.
        """
        if known is None:
            raise Misuse(f"no publisher has opened session {self.session!r}, so its name is free")
        if not known.closed_ns:
            raise Refused(
                "live",
                f"session {self.session!r} was pushed by {known.owner!r} until a moment ago; ask "
                f"again when it is closed, after {duration_text(policy.close_s)} of silence",
            )
        if self.by_operator or known.owner in {"", self.owner}:
            return known
        left_s = policy.take_s - (now_ns - known.closed_ns) / _NS
        if left_s > 0:
            raise Refused(
                "live",
                f"{known.owner!r} may come back to session {self.session!r}; it may be taken over "
                f"in {duration_text(ceil(left_s))}, or by an operator now",
            )
        return known


def takeover_of(request: Fields, identity: PeerIdentity) -> Takeover:
    """Return the takeover that a peer requests.

    Raises:
        Misuse: the session or the owner is not a valid name.
        Refused: a publisher asks on behalf of another.
    """
    session = parse_session(str(request.get("session", "")))
    wanted, again = str(request.get("owner") or ""), bool(request.get("begins_again"))
    if identity.may_operate:
        return Takeover(session, parse_peer(wanted) if wanted else "", again, by_operator=True)
    if wanted not in {"", identity.name}:
        words = f"{identity.title} may take over a session for itself only"
        raise Refused("role", words)
    return Takeover(session, identity.name, again, by_operator=False)
