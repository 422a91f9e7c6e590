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
        do: carries out the request.
        changes: whether it is a change, which the audit log records.
        operators_only: whether it needs the certificate of an operator or a node.
        leases: whether a subscriber needs the grant of leases.
        pushes: whether a publisher may make it for a session that it is granted.
        for_all: whether every admitted peer may ask, including publishers.
        shared: the request fields that the answer depends on, if peers may share an answer;
            otherwise None.
        refuses_latest: whether a request that would be refused is first tried again on the latest
            state; for requests that depend on the ledger, and change it only by compare-and-set.
        is_latest: whether it is carried out on the latest state from the start.
        may_follow: whether a follower may answer from the latest state.
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


CHANGE: Final = partial(Verb, changes=True, operators_only=True)  # one that concerns all peers
