"""Publishers that leave: their sessions are closed, expire, or are taken over."""

from random import Random
from typing import TYPE_CHECKING, NamedTuple

from rt.errors import Refused
from rt.events import SessionChange
from rt.node.sessions.policy import SESSIONS_NOTE, SessionPolicy
from rt.position import START
from sequencer.ledger.instruction import Note
from sequencer.ledger.life import Life

from .checkers import Violation
from .publisher import FIRST_PEER, SESSIONS

if TYPE_CHECKING:
    from .merge_cluster import MergeCluster
    from .merge_node import MergeNode

LEAVES_US = 300_000  # longest time between two departures
AWAY_US = 600_000  # longest absence
LOOK_US = 20_000
CLOSE_S = 0.1
RIVAL_SHARE = 0.5  # share of takeovers of the same log in which the owner returns
RIVAL_US = 300_000  # longest time from the decision on a takeover to its order


class Heir(NamedTuple):
    """The next owner of a session.

    Attributes:
        name: the name in its certificate.
        begins_again: whether it has another log.
        has_rival: whether the owner returns after the decision but before the order.
    """

    name: str
    begins_again: bool
    has_rival: bool


class Leaving:
    """Makes publishers leave, and others take over; each name has one owner at any time."""

    def __init__(self, world: "MergeCluster", seed: object, *, may: bool) -> None:
        self._world = world
        self._chance = Random(f"{seed} leaving")
        self.is_on = may and self._chance.random() < world.leaving_share
        self._policy = SessionPolicy(CLOSE_S, 0, self._chance.choice([0.0, 0.5, 3.0]))
        self._until_us: dict[str, int] = {}  # when each absent publisher returns
        self._rivals = Random(f"{seed} rivals")
        self._heirs: dict[str, Heir] = {}
        self._decided: dict[
            str, tuple[int, Life]
        ] = {}  # the order for each heir, and the time from which it is sent
        self._last_logs: dict[str, str] = {}
        if self.is_on:
            world.clock.after(self._chance.randrange(LEAVES_US), self._leave)
            world.clock.after(LOOK_US, self._look)

    @property
    def is_over(self) -> bool:
        """Whether every publisher has returned."""
        return not (self._until_us or self._heirs or self._world.stream.expired)

    def is_away(self, session: str) -> bool:
        """Whether a publisher has left."""
        is_waiting = session in self._heirs and session not in self._decided
        return session in self._until_us or is_waiting

    def is_contested(self, session: str) -> bool:
        """Whether a node may take another publisher for the owner, already or still."""
        peer = self._world.publishers[session].peer
        return peer != FIRST_PEER or session in self._decided

    def _leave(self) -> None:
        world, chance = self._world, self._chance
        if not world.nodes or not world.nemesis.active:
            return
        world.clock.after(chance.randrange(1, LEAVES_US), self._leave)
        session = chance.choice([name for name, group in SESSIONS.items() if not group])
        publisher = world.publishers[session]
        is_pending = self.is_away(session) or session in self._heirs
        if is_pending or not publisher.alive or not world.stream.merged.get(session):
            return
        world.trace(f"{session} of {publisher.peer} leaves at {publisher.end}")
        world.stream.begun_again.add(session)
        self._until_us[session] = world.clock.now_us + chance.randrange(AWAY_US)
        if chance.random() < 0.5:
            name, begins_again = f"heir{chance.randrange(1000)}", chance.random() < 0.5
            has_rival = not begins_again and self._rivals.random() < RIVAL_SHARE
            self._heirs[session] = Heir(name, begins_again, has_rival)
        for node in world.nodes.values():
            if node.alive:
                node.lose_publisher(session)

    def _look(self) -> None:
        world = self._world
        world.clock.after(LOOK_US, self._look)
        for session, until_us in list(self._until_us.items()):
            if world.clock.now_us >= until_us or not world.nemesis.active:
                del self._until_us[session]
        for session in sorted(world.stream.expired):
            self._begin_again(session)
        for node in world.nodes.values():
            if node.alive and node.raft.leads:
                self._set_policy(node)
                for session in list(self._heirs):
                    self._hand_over(node, session)

    def _set_policy(self, node: "MergeNode") -> None:
        text = self._policy.text()
        if node.member.executor.ledger.notes.get(SESSIONS_NOTE) != text:
            node.order(Note(1, SESSIONS_NOTE, text))

    def _begin_again(self, session: str) -> None:
        """Begin another log, since the old one was retired and may not be merged any more."""
        world = self._world
        publisher = world.publishers[session]
        publisher.begin_again()
        world.stream.logs[session] = publisher.identity.id
        world.stream.expired.discard(session)
        world.trace(f"{session} begins again after it has expired")

    def _hand_over(self, node: "MergeNode", session: str) -> None:
        """Order the takeover by an heir, as `SessionAdmin` does, until it is decided."""
        world, (heir, begins_again, has_rival) = self._world, self._heirs[session]
        publisher, ledger = world.publishers[session], node.member.executor.ledger
        known = ledger.opened.get(session)
        if known is None and not node.has_all(len(world.checker.decided)):
            return  # a leader that has not executed its log knows no owner yet
        if known is None or known.owner == heir:
            if known is not None and session not in world.stream.expired:
                publisher.peer = heir
            del self._heirs[session]
            self._decided.pop(session, None)
            self._last_logs.pop(session, None)
        elif session in self._decided:
            due_us, life = self._decided[session]
            if world.clock.now_us >= due_us:
                node.order(life)
                if known.since != life.since:  # the owner had returned, and leaves once more
                    del self._decided[session]
                    self._heirs[session] = Heir(heir, begins_again, has_rival=False)
        elif known.closed_ns and node.archiver.settled_index >= ledger.index:
            if begins_again and session not in self._last_logs:
                self._last_logs[session] = publisher.begin_again()
                world.stream.next_logs[session] = publisher.identity.id
            life = Life(
                1, SessionChange.TAKEN, session, ledger.merged_to(session),
                log=self._last_logs.get(session, ""), owner=heir, since=known.since,
                begins_again=begins_again,
            )  # fmt: skip
            if has_rival:
                self._until_us.pop(session, None)
                self._decided[session] = world.clock.now_us + self._rivals.randrange(RIVAL_US), life
            else:
                node.order(life)

    def demand_owners(self) -> None:
        """Check that every node refuses a stranger every name that has an owner."""
        world = self._world
        for node in world.nodes.values():
            for session, known in node.member.executor.ledger.opened.items():
                if not known.owner:
                    continue
                identity = world.publishers[session].identity
                try:
                    inbox = node.inboxes.claim(identity, "stranger", _NoBell(), START)
                except Refused as error:
                    if error.code not in {"owned", "reserve"}:
                        raise Violation(f"{node.name} refuses a stranger: {error}") from None
                else:
                    inbox.release()
                    raise Violation(f"{node.name} lets a stranger push {session}")


class _NoBell:
    def set(self) -> None:
        """Do nothing: no thread waits."""
