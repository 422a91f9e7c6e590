"""MemberAdmin: changes the members of a running cluster for an operator."""

from collections.abc import Callable

from rt.errors import Refused
from rt.names import parse_node
from rt.net.addresses import parse_address
from rt.net.authority.identity import PeerIdentity
from rt.net.exchange import Fields
from rt.node.admin.verb import CHANGE, Verb
from rt.node.agree.sequencer import NodeSequencer, not_leader
from rt.node.agree.steps import UNDECIDED, Until
from rt.node.retain.retention import Retention
from rt.node.settings.node import NodeSettings
from sequencer.member import Member
from sequencer.raft.consensus import Configuration, EngineRole, Entry
from sequencer.raft.engine import Raft


class MemberAdmin:
    """MemberAdmin: adds, promotes, moves and removes members, on the leader.

    Every answer waits until the change is decided. A client that lost the answer may ask again: it
    gets an answer without a second change. A repeated removal is refused, since the node is no
    longer a member.

    Threads: any connection's thread may call it. `_member`, `_retention` and `_targets` are used
        only inside `_sequencer.ask`.
    """

    def __init__(
        self,
        settings: NodeSettings,
        sequencer: NodeSequencer,
        member: Member,
        retention: Retention,
        wait: Callable[[Until], None],
    ) -> None:
        """Prepare; the arguments are the same as for `node_admin.NodeAdmin`."""
        self._settings, self._sequencer = settings, sequencer
        self._member, self._retention, self._wait = member, retention, wait
        self._targets: dict[str, int] = {}  # the instruction that a learner must reach

    @property
    def verbs(self) -> dict[str, Verb]:
        """The requests that this object serves, by name."""
        return {
            "add-member": CHANGE(self._add),
            "promote-member": CHANGE(self._promote),
            "move-member": CHANGE(self._move),
            "remove-member": CHANGE(self._remove),
            "members": Verb(self._members, for_all=True),
        }

    def _members(self, request: Fields, _identity: PeerIdentity) -> Fields:
        """Return the members, so that clients find all nodes and new ones can be configured.

        Any node returns the members at the end of its log, which may be outdated or undecided. With
        `{"decided": true}` only the leader answers, with the decided members.
        """
        own, settings = self._member.engine, self._settings
        engine, changed_at = self._sequencer.ask(lambda: (own.status(), own.last_change.index))
        if request.get("decided"):
            if engine.role is not EngineRole.LEADER:
                raise not_leader(engine.leader)
            if engine.commit < changed_at:
                raise Refused("undecided", "the last change of the members is not decided yet")
        ticks = settings.agreement.timers.election_ticks
        live = {peer.name for peer in engine.peers if peer.silent_ticks <= ticks}
        return {
            "cluster": settings.cluster_id,
            "log": settings.storage.log_id,
            "stream": settings.stream,
            "leader": engine.leader,
            "node": engine.name,
            "members": [
                {"name": name, "address": seat.address or settings.places.get(name, ""),
                 "votes": seat.votes, "live": name in live or name == engine.name}
                for name, seat in sorted(engine.members.items())
            ],
        }  # fmt: skip

    def _add(self, request: Fields, identity: PeerIdentity) -> Fields:
        if self._settings.is_alone:
            raise Refused(
                "alone",
                "this node was founded as the only one, without a cluster_id; found a cluster with "
                "3 nodes instead, and publish to it",
            )
        name, address = _name(request), _place(request)

        def add(engine: Raft, members: Configuration) -> Entry | None:
            seat = members.get(name)
            if seat is not None and not seat.votes and seat.address == address:
                return None
            self._targets.pop(name, None)
            return engine.changes.add(name, address)

        return self._change(add, identity)

    def _promote(self, request: Fields, identity: PeerIdentity) -> Fields:
        name = _name(request)

        def promote(engine: Raft, members: Configuration) -> Entry | None:
            seat = members.get(name)
            if seat is not None and seat.votes:
                return None
            if seat is not None and engine.leads:
                self._demand_merged(name)
            return engine.changes.promote(name)

        return self._change(promote, identity)

    def _demand_merged(self, name: str) -> None:
        """Refuse to promote a learner whose durable merged log has not reached its target.

        The target is the instruction that a majority had durably merged when the promotion was
        first requested.
        """
        durable, settled = self._retention.durable_at(name), self._retention.settled_index
        if durable is None:
            raise Refused("not-caught-up", f"{name} was not heard lately; is it running?")
        if not settled:  # this node has just started; the first report of a majority is due
            raise Refused("not-caught-up", "what a majority has merged is not known here yet")
        target = self._targets.setdefault(name, settled)
        if durable < target:
            words = f"has merged {durable} of {target} instructions durably"
            raise Refused("not-caught-up", f"{name} {words}")

    def _move(self, request: Fields, identity: PeerIdentity) -> Fields:
        name, address = _name(request), _place(request)

        def move(engine: Raft, members: Configuration) -> Entry | None:
            seat = members.get(name)
            return None if seat and seat.address == address else engine.changes.move(name, address)

        return self._change(move, identity)

    def _remove(self, request: Fields, identity: PeerIdentity) -> Fields:
        name = _name(request)

        def remove(engine: Raft, _members: Configuration) -> Entry:
            try:
                return engine.changes.remove(name)
            except Refused as error:
                if error.code == "leads":
                    _hand_over(engine, name)
                raise

        return self._change(remove, identity)

    def _change(
        self,
        make: Callable[[Raft, Configuration], Entry | None],
        identity: PeerIdentity,
    ) -> Fields:
        """Have the leader make a change, unless it is already made; wait until it is decided."""
        engine = self._member.engine

        def ask() -> tuple[int, int]:
            entry = make(engine, engine.members)
            if entry is not None:
                return entry.term, entry.index
            if not engine.leads:
                raise not_leader(engine.leader)
            return engine.status().term, engine.last_change.index

        self._await(*self._sequencer.ask(ask))
        return self._members({}, identity)

    def _await(self, term: int, index: int) -> None:
        """Wait until an entry is committed; refuse if a later term begins, which may lose it."""

        def is_decided() -> bool:
            engine = self._sequencer.view.engine
            if engine.term > term:
                raise Refused("undecided", UNDECIDED)
            return engine.commit >= index

        self._wait(Until(is_decided))


def _hand_over(engine: Raft, name: str) -> None:
    """Hand leadership to the member heard from most recently, then raise `Refused`.

    Of several such members, the most advanced is chosen. A leader cannot be removed; the refusal
    asks the client to try again.
    """
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
