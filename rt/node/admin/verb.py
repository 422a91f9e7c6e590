"""Verb: a kind of request that a node serves."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

from rt.net.authority.identity import PeerIdentity
from rt.net.exchange import Fields


@dataclass(frozen=True, slots=True)
class Verb:
    """Verb: a kind of request that a node serves.

    Attributes:
        do: carries it out.
        changes: whether it is recorded in the audit log.
        operators_only: whether it needs the certificate of an operator or a node.
        leases: whether a subscriber needs the grant of leases.
        pushes: whether a publisher may make it for a session that it is granted.
        for_all: whether every peer that is let in may ask, publishers too.
        shared: the request fields that the answer depends on, if peers may share an answer; else
            None.
        refuses_latest: whether a refusal is repeated as of the latest: it depends on the ledger,
            and changes it only by compare-and-set.
        is_latest: whether it is carried out as of the latest from the start.
        may_follow: whether a follower may answer as of the latest.
    """

    do: Callable[[Fields, PeerIdentity], Fields]
    changes: bool = False
    operators_only: bool = False
    leases: bool = False
    pushes: bool = False
    for_all: bool = False
    shared: tuple[str, ...] | None = None
    refuses_latest: bool = False
    is_latest: bool = False
    may_follow: bool = False


CHANGE: Final = partial(Verb, changes=True, operators_only=True)  # that concerns everyone
