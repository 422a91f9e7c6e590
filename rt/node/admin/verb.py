"""Verb: one thing that a node does on request."""

from collections.abc import Callable
from dataclasses import dataclass

from rt.net.authority.identity import PeerIdentity
from rt.net.exchange import Fields


@dataclass(frozen=True, slots=True)
class Verb:
    """One thing that a node does on request.

    Attributes:
        do: carries it out.
        changes: whether it is recorded.
        operators_only: whether it needs the certificate of an operator or a node.
        leases: whether a subscriber needs the grant of leases.
        pushes: whether a publisher may do it to a session that it is granted.
        shared: of a question whose answer is shared by all who ask it at about the same time, the
            fields that the answer depends on.
        refuses_latest: whether it may be done again after a refusal, as of the latest: it depends
            on the ledger, and what it changes is compared and set.
        is_latest: whether it is done as of the latest from the beginning.
        may_follow: whether a node that does not lead may answer as of the latest.
    """

    do: Callable[[Fields, PeerIdentity], Fields]
    changes: bool = False
    operators_only: bool = False
    leases: bool = False
    pushes: bool = False
    shared: tuple[str, ...] | None = None
    refuses_latest: bool = False
    is_latest: bool = False
    may_follow: bool = False
