"""MemberAdmin: changes the members of a running cluster for an operator."""

import time
from collections.abc import Callable
from typing import Final

from rt.errors import Refused
from rt.names import parse_node
from rt.net.authority.identity import PeerIdentity
from rt.net.exchange import Fields
from rt.node.admin.verb import Verb
from rt.node.agree.sequencer import NodeSequencer, leader_words
from rt.node.retain.retention import Retention
from rt.node.settings.node import NodeSettings, parse_address
from sequencer.member import Member
from sequencer.raft.consensus import Configuration, Consensus, EngineRole, Entry, Status

_DECIDED_S: Final = 10.0  # a change is decided in milliseconds, or there is no quorum
_POLL_S: Final = 0.01


class MemberAdmin:
    """MemberAdmin: adds, promotes, moves and removes members, on the leader.

    A client that lost the answer may ask again: a change is not made twice, except that a removed
    node is no longer a member. Every answer waits until the change is decided.

    Threads: any connection's. `_member`, `_retention` and `_targets` are used only inside
        `_sequencer.ask`.
    """

    def __init__(
        self, settings: NodeSettings, sequencer: NodeSequencer, member: Member, retention: Retention
    ) -> None:
        """Prepare; the arguments are those of `rt.node.admin.node_admin.NodeAdmin`."""
        self._settings, self._sequencer = settings, sequencer
        self._member, self._retention = member, retention
        self._targets: dict[str, int] = {}  # the instruction that a learner must reach

    @property
    def verbs(self) -> dict[str, Verb]:
        """The requests it serves, by name."""
        changes = {
            "add-member": self._add,
            "promote-member": self._promote,
            "move-member": self._move,
            "remove-member": self._remove,
        }
        verbs = {name: Verb(do, changes=True, operators_only=True) for name, do in changes.items()}
        return verbs | {"members": Verb(self._members)}

    def _members(self, request: Fields, _identity: PeerIdentity) -> Fields:
        """Return the members, to be checked and to be written into a new node's configuration.

        Any node returns those at the end of its log, which lead a client to the others. They may be
        outdated or undecided; `{"decided": true}` asks the leader for the decided ones.
        """
        engine, changed_at = self._sequencer.ask(self._look)
        if request.get("decided"):
            if engine.role is not EngineRole.LEADER:
                raise Refused("not-leader", leader_words(engine.leader))
            if engine.commit < changed_at:
                raise Refused("undecided", "the last change of the members is not decided yet")
        live = {peer.name for peer in engine.peers if peer.silent_ticks <= self._election_ticks}
        return {
            "cluster": self._settings.cluster_id,
            "stream": self._settings.stream,
            "leader": engine.leader,
            "node": engine.name,
            "members": [
                {"name": name, "address": self._address(name, seat.address), "votes": seat.votes,
                 "live": name in live or name == engine.name}
                for name, seat in sorted(engine.members.items())
            ],
        }  # fmt: skip

    def _look(self) -> tuple[Status, int]:
        engine = self._member.engine
        return engine.status(), engine.last_change.index

    @property
    def _election_ticks(self) -> int:
        return self._settings.agreement.timers.election_ticks

    def _address(self, name: str, address: str) -> str:
        return address or self._settings.places.get(name, "")

    def _add(self, request: Fields, identity: PeerIdentity) -> Fields:
        if self._settings.is_alone:
            raise Refused(
                "alone",
                "this node was founded as the only one, without a cluster_id; found a cluster with "
                "3 nodes instead, and publish to it",
            )
        name, address = _name(request), _place(request)

        def add(engine: Consensus, members: Configuration) -> Entry | None:
            seat = members.get(name)
            if seat is not None and not seat.votes and seat.address == address:
                return None
            self._targets.pop(name, None)
            return engine.add(name, address)

        return self._change(add, identity)

    def _promote(self, request: Fields, identity: PeerIdentity) -> Fields:
        name = _name(request)

        def promote(engine: Consensus, members: Configuration) -> Entry | None:
            seat = members.get(name)
            if seat is not None and seat.votes:
                return None
            if seat is not None and engine.leads:
                self._demand_merged(name)
            return engine.promote(name)

        return self._change(promote, identity)

    def _demand_merged(self, name: str) -> None:
        """Refuse a learner whose durable merged log has not reached its target.

        The target is the majority's position when its promotion was first requested.
        """
        durable, settled = self._retention.durable_at(name), self._retention.settled_index
        target = self._targets.setdefault(name, settled)
        if durable is None:
            raise Refused("not-caught-up", f"{name} was not heard lately; is it running?")
        if durable < target:
            words = f"has merged {durable} of {target} instructions durably"
            raise Refused("not-caught-up", f"{name} {words}")

    def _move(self, request: Fields, identity: PeerIdentity) -> Fields:
        name, address = _name(request), _place(request)

        def move(engine: Consensus, members: Configuration) -> Entry | None:
            seat = members.get(name)
            return None if seat and seat.address == address else engine.move(name, address)

        return self._change(move, identity)

    def _remove(self, request: Fields, identity: PeerIdentity) -> Fields:
        name = _name(request)

        def remove(engine: Consensus, _members: Configuration) -> Entry:
            try:
                return engine.remove(name)
            except Refused as error:
                if error.code == "leads":
                    _hand_over(engine, name)
                raise

        return self._change(remove, identity)

    def _change(
        self,
        make: Callable[[Consensus, Configuration], Entry | None],
        identity: PeerIdentity,
    ) -> Fields:
        """Have the leader make a change, unless it is already made; wait until it is decided."""
        engine = self._member.engine

        def ask() -> tuple[int, int]:
            entry = make(engine, engine.members)
            if entry is not None:
                return entry.term, entry.index
            if not engine.leads:
                raise Refused("not-leader", leader_words(engine.leader))
            return engine.status().term, engine.last_change.index

        self._await(*self._sequencer.ask(ask))
        return self._members({}, identity)

    def _await(self, term: int, index: int) -> None:
        """Wait until an entry is committed in this term; refuse if it cannot be."""
        end_s = time.monotonic() + _DECIDED_S
        while True:
            engine = self._sequencer.view.engine
            if engine.term > term or time.monotonic() > end_s:
                words = "no majority decided it in time; it may yet come: look, and ask again"
                raise Refused("undecided", words)
            if engine.commit >= index:
                return
            time.sleep(_POLL_S)


def _hand_over(engine: Consensus, name: str) -> None:
    """Hand leadership to the most advanced other member, so that this one can be removed."""
    status = engine.status()
    able = [p for p in status.peers if p.counts]
    if not able:
        raise Refused("no-quorum", f"{name} is the only member")
    best = max(able, key=lambda each: (-each.silent_ticks, each.match)).name
    engine.transfer(best)
    raise Refused("handing-over", f"{name} leads, and hands over to {best}; ask again")


def _name(request: Fields) -> str:
    return str(parse_node(str(request.get("name", ""))))


def _place(request: Fields) -> str:
    address = str(request.get("address", ""))
    parse_address(address, "address")
    return address
