"""Two sites: a standby is promoted while the old cluster lives, and clients fence that."""

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache, partial
from hashlib import blake2b
from random import Random
from typing import Final

from cryptography import x509

from replicator.push.progress import in_next_log
from rt.errors import Misuse, Refused
from rt.format.manifest import LogIdentity
from rt.log.files.directory import LogDirectory
from rt.log.read.proof import Proof, last_proof
from rt.net.authority.certificates import AUTHORITY, certificate_files, init_authority
from rt.net.authority.succession import Succession, one_line
from rt.net.authority.successions import Greeting, Successions
from rt.net.authority.trust import trust_of
from rt.node.founding.carried_state import CarriedState
from rt.node.founding.from_copy import NO_GROUP, Founding, import_log, read_founding
from rt.position import Position
from sequencer.ledger.instruction import Note
from sequencer.ledger.seal import SEALED_NOTE, Seal, moved_away, seal_of, sealed
from sequencer.raft.consensus import Snapshot
from sequencer.raft.quorum import Roster

from .checkers import Violation
from .clock import Clock
from .copying import IDENTITY
from .merge_cluster import MergeCluster
from .merge_node import MergeNode
from .nemesis import Nemesis
from .node import SimNode
from .publisher import SESSIONS, STREAM, Pipe, Publisher
from .stream import BEGIN_NS, OUT

LOOK_US: Final = 20_000
STATES_MAX: Final = 8
PROMOTED_TICKS: Final = 15, 70
AWAY_TICKS: Final = 0, 60  # how much later publishers hear of the new site's nodes
NODE: Final = "node"  # the directory of a node in which it keeps the word
RESTART_SHARE: Final = 0.5  # of the worlds, all old nodes restart once one has heard the word
OLD, NEW = IDENTITY.id, "9" * 32
GROUPS: Final = [
    f"{group or NO_GROUP}={','.join(name for name, of in SESSIONS.items() if of == group)}"
    for group in dict.fromkeys(SESSIONS.values())
]


@cache
def authorities() -> tuple[str, str]:
    """Return the directories of the sites' authority, and of one that no site trusts."""
    top = tempfile.mkdtemp(prefix="rt-sim-")
    made = f"{top}/ours", f"{top}/theirs"
    for each in made:
        init_authority(each)
    return made


def trusted() -> Sequence[x509.Certificate]:
    """Return the certificates whose signatures count at the sites."""
    return trust_of(certificate_files(authorities()[0], AUTHORITY).ca).facts.authorities


class Pusher:
    """The process that ships a session: what it has heard, on all of its connections."""

    def __init__(self, publisher: Publisher) -> None:
        self.publisher = publisher
        self.known = Successions(STREAM, trusted)

    def hear(self, text: str) -> None:
        """Take what a node says; the next connection to begin forgets what was confirmed."""
        if self.known.hear(text):
            self.publisher.begin_epoch()


class KeepingPublisher(Publisher):
    """A publisher that keeps what was merged, for a standby that is behind."""

    def archive(self, merged: Position) -> None:
        """Keep it."""

    def begin_epoch(self) -> None:
        """Forget what the log that has ended confirmed, as a pusher does."""
        self.confirmed = in_next_log(self.confirmed)
        self._reached.clear()
        self.news += 1


class SiteNode(MergeNode):
    """A node of one site, which says and hears which log continues another."""

    world: "Site"

    def __init__(self, name: str, world: "Site", chance: Random) -> None:
        self.greetings: dict[str, Greeting] = {}
        self.refused_by: Succession | None = None  # it has turned a peer away by this
        super().__init__(name, world, chance)

    def start_duties(self) -> None:
        """Start with what is beside the certificates, and with what the node has kept."""
        self.disk.make_directory(NODE)
        self.known = Successions(
            STREAM, trusted, log=self.world.merged_identity.id, kept=(self.disk, NODE)
        )
        for text in self.world.word:
            self.known.hear(text)
        if self.lost or self.is_older_copy:
            self.refused_by = None
        if self.refused_by is not None and self.known.ended != self.refused_by:
            raise Violation(f"{self.name} forgets that its log has ended: {self.refused_by}")
        super().start_duties()

    def hear(self, text: str) -> None:
        """Take a peer's word, as `NodeSuccessions.hear` does; `Refused` if the log has ended."""
        if self.known.ended_by(text) is not None:
            self.demand_current()

    def hear_gossip(self, text: str) -> None:
        """Take a word that anyone brings."""
        try:
            self.hear(text)
        except Refused as error:
            self.world.trace(f"{self.name}: {error}")

    def demand_current(self) -> None:
        """Turn a peer away if the log has ended, and remember by which word."""
        try:
            self.known.demand_current()
        except Refused:
            if self.known.keep():  # not where the disk has failed
                self.refused_by = self.known.ended
            raise

    def ship(self, session: str) -> None:
        """Let a publisher's connection carry a little; it begins again after news."""
        greeting = self.greetings.get(session)
        is_own = session in self.pipes and session not in self.relayed
        if is_own and (self.seal is not None or (greeting and greeting.is_outdated)):
            self.hang_up(session)
        else:
            super().ship(session)

    def _refuse_pullers(self, why: Refused) -> None:
        """Readers go elsewhere; here they only copy to be promoted."""

    @property
    def seal(self) -> Seal | None:
        """The seal that this node has executed."""
        return seal_of(self.view.notes)

    def _tell_publisher(self, session: str, pipe: Pipe) -> None:
        site, pusher = self.world, self.world.sites.pushers[session]
        ack, publisher = pipe.acked(), pusher.publisher
        if ack is None:
            return
        if pusher.known.after(site.merged_identity.id) is not None:
            raise Violation(f"{self.name} confirms to {session}, which knows that its log ended")
        if publisher.hear(self.name, ack):
            site.stream.confirms(session, session, ack.replicated, ack.merged)
            if (told := publisher.confirmed) and pusher.known.texts:
                site.stream.confirms(session, session, told.replicated, told.merged)


class Site(MergeCluster):
    """One of the sites: a cluster of its own, with publishers that know both."""

    may_have_outsider = may_fill_last = may_leave = False
    cutting_share = resetting_share = 0.0

    def __init__(
        self,
        sites: "SitesWorld",
        seed: int,
        log: Callable[[str], None] | None,
        *,
        identity: LogIdentity = IDENTITY,
        founding: Founding | None = None,
        word: Sequence[str] = (),
    ) -> None:
        self.sites, self.founding_state, self.word = sites, founding, word
        self.merged_identity = identity
        self.founding_name = "old" if founding is None else "new"
        told = None if log is None else partial(_told, log, self.founding_name)
        super().__init__(seed, log=told)

    def draw_names(self, chance: Random) -> tuple[str, ...]:
        first = 1 if self.founding_state is None else 8
        return tuple(f"n{first + each}" for each in range(chance.choice([1, 3, 3, 3, 5])))

    def _make_clock(self) -> Clock:
        return self.sites.clock

    def make_nemesis(self, chance: Random) -> Nemesis:
        made = super().make_nemesis(chance)
        self.publishers = dict(self.sites.publishers)
        state = self.founding_state
        if state is not None:
            ledger = state.ledger
            self.stream.continues(self.sites.old.stream, ledger, self.names)
            self.checker.begins_after(ledger.index)
        return made

    def _make_node(self, name: str, chance: Random) -> SiteNode:
        return SiteNode(name, self, chance)

    def founded_with(self, node: SimNode) -> Snapshot | None:
        """Give a node of the new site the standby's log, and return the state."""
        state = self.founding_state
        if state is None:
            return None
        import_log(node.disk, state, OUT, self.merged_identity)
        roster = Roster.founding(dict.fromkeys(self.names, "")).at(0)
        return Snapshot(state.ledger.index, state.term, roster, state.ledger.encode())

    @property
    def merges_own_copies(self) -> bool:
        """Not at the new site, which begins with a log."""
        return len(self.names) == 1 and self.founding_state is None

    def greet(self, node: MergeNode, session: str) -> None:
        """Have both say which log continues another; `Refused` if the node's own has ended."""
        assert isinstance(node, SiteNode)
        pusher = self.sites.pushers[session]
        greeting = node.greetings[session] = Greeting(pusher.known)
        texts = greeting.begin()
        for text in node.known.texts:
            pusher.hear(text)
        for text in texts:
            node.hear(text)
        node.demand_current()
        if node.seal is not None:
            raise node.seal.refusal
        if greeting.is_outdated:
            raise Refused("busy", "it begins again")

    @property
    def fenced_by(self) -> Succession | None:
        """The word that a node which runs has heard, or kept, by which the site's log has ended."""
        every = [node for node in self.nodes.values() if node.alive]
        return next((node.known.ended for node in every if node.known.ended is not None), None)

    def is_turned_away(self, error: Exception) -> bool:
        """Whether a publisher is refused because the log has ended."""
        return getattr(error, "code", "") == SEALED_NOTE

    def seal(self, by: str, moved_to: str) -> None:
        """Have it sealed, as `StandbyAdmin` does, if a node leads."""
        for node in self.nodes.values():
            if node.alive and node.raft.leads:
                assert isinstance(node, SiteNode)
                text = node.member.executor.ledger.notes.get(SEALED_NOTE, "")
                now_ns = 1 + self.clock.now_us * 1000
                if (wanted := sealed(text, by, moved_to, now_ns)) is not None:
                    node.order(Note(now_ns, SEALED_NOTE, wanted))

    def begin(self) -> Callable[[], bool]:
        """Return what looks for progress during the faults."""
        return self._progress().look

    @property
    def is_over(self) -> bool:
        """Whether all nodes have agreed that another cluster continues the log."""
        return all(
            node.alive and moved_away(node.member.executor.ledger.notes)
            for node in self.nodes.values()
        )

    def hash(self) -> bytes:
        """Return the hash of the trace."""
        return self._trace.digest()


class SitesWorld:
    """A cluster that is continued by another, which a standby begins, while it lives.

    One copy and the newest states that were saved are the standby's. It is promoted in the middle
    of the faults: as `--drained`, once the copy has all of the sealed log, or as `--now`, with what
    it has, while the old cluster goes on. Publishers keep what they have sent, and ship to both
    sites. The old one is then ended by what their connections hand on, and by nothing else. In half
    of the worlds its power fails once a node of it has heard, and no publisher reaches it for a
    while: the nodes have to remember. Anyone brings forged words to nodes and publishers, and
    true ones to nodes of both sites.

    Checks, besides all that each site promises: both logs are equal up to the cut, and the new one
    has each message once, in order; no node confirms anything to a publisher that knows of the end
    of its log, nor is a publisher left with what that log has confirmed; no log ends by what its
    authority has not signed; a node that has turned a peer away by the word does so after each
    restart; and in the end everything that publishers have is merged at the new one, and the old
    one is sealed, unless all publishers have died, so that none could tell it.
    """

    def __init__(self, seed: int, log: Callable[[str], None] | None = None) -> None:
        self.seed, self._log, self.events = seed, log, 0
        self._chance = chance = Random(f"{seed} sites")
        self.clock = Clock()
        self.publishers = {
            name: KeepingPublisher(name, Random(chance.getrandbits(32))) for name in SESSIONS
        }
        self.pushers = {name: Pusher(each) for name, each in self.publishers.items()}
        self.is_drained = chance.random() < 0.4
        self.old = Site(self, 2 * seed, log)
        self.new: Site | None = None
        self._states: list[CarriedState] = []
        self._sealed: tuple[int, Position, Proof] | None = None  # index, end and proof there
        self._word = ""
        self._restarts = chance.random() < RESTART_SHARE
        self._looks = [self.old.begin()]
        self.clock.after(chance.randint(*PROMOTED_TICKS) * self.old.tick_us, self._promote)
        self.clock.after(LOOK_US, self._look)

    @property
    def sides(self) -> list[Site]:
        """The sites that there are."""
        return [self.old] if self.new is None else [self.old, self.new]

    def run(self) -> str:
        """Run the faults, then demand progress; return the hash of the trace."""
        tick_us = self.old.tick_us
        ticks = 2 * self.old.fault_ticks
        self.until(ticks * tick_us, lambda: sum(look() for look in self._looks) > 0)
        for side in self.sides:
            side.end_faults()
        timeouts = [side.heal_timeouts * side.settings.election_ticks for side in self.sides]
        if not self.until(max(timeouts) * tick_us, self._is_done):
            states = [state for side in self.sides for state in side.states()]
            known = {name: str(each.publisher.confirmed) for name, each in self.pushers.items()}
            raise Violation(f"no progress after the faults: {self.old.is_over} {states} {known}")
        hashes = b"".join(side.hash() for side in self.sides)
        return blake2b(hashes, digest_size=8).hexdigest()

    def until(self, time_us: int, done: Callable[[], bool]) -> bool:
        """Go on until something is done, or for so long; return whether it is done."""
        end_us = self.clock.now_us + time_us
        while self.clock.now_us < end_us:
            self.clock.step(50)
            self.events += 50
            if done():
                return True
        return False

    def _is_done(self) -> bool:
        """Whether everything is merged at the new site, known to publishers, and the old sealed."""
        new = self.new
        if new is None or not new.recovered():
            return False
        alive = [each for each in self.pushers.values() if each.publisher.alive]
        may_hear = self.is_drained or alive or self.old.fenced_by is not None
        if may_hear and not self.old.is_over:
            return False
        return all(
            each.publisher.confirmed.merged == each.publisher.end
            and (self.is_drained or each.known.after(OLD) is not None)
            for each in alive
        )

    def _look(self) -> None:
        """Carry the state, bring words, and have the old site sealed that has heard one."""
        self.clock.after(LOOK_US, self._look)
        self._carry_state()
        self._gossip()
        old, new = self.old, self.new
        notes = [node.member.executor.ledger.notes for node in old.nodes.values() if node.alive]
        is_sealed = any(SEALED_NOTE in each for each in notes)
        if new is None and (old.fenced_by or (is_sealed and not self.is_drained)):
            raise Violation("the old site ends though no other was promoted")
        if new is not None and new.fenced_by:
            raise Violation("the new site ends, though no other continues it")
        if new is not None and self.is_drained:
            old.seal("operator ops", "b1:7420")
        elif old.fenced_by is not None:
            if self._restarts:
                self._restart_old()
            if (word := old.fenced_by) is not None:
                old.seal(word.by, word.moved_to)

    def _restart_old(self) -> None:
        """Have the power of the whole old site fail, and no client bring the word again."""
        self._restarts = False
        for node in self.old.nodes.values():
            if node.alive:
                node.die("with its site", power=True)
                self.old.nemesis.restart_later(node)
        for each in self.old.links:
            self.old.links[each] = 0.0

    def _carry_state(self) -> None:
        """Have the standby carry the state that a node has saved last."""
        node = self._chance.choice(list(self.old.nodes.values()))
        newest = node.raft.core.snapshots.newest if node.alive else None
        if newest is None or not newest.data or self.new is not None:
            return
        groups = {name: group for name, group in SESSIONS.items() if group}
        self._states.append(
            CarriedState(STREAM, OLD, newest.term, groups, self.old.names, newest.data)
        )
        del self._states[:-STATES_MAX]

    def _gossip(self) -> None:
        """Bring a forged word to a node and a publisher, or the true one to a node."""
        chance = self._chance
        if not self.old.nemesis.active or chance.random() < 0.7:
            return
        node = chance.choice([node for side in self.sides for node in side.nodes.values()])
        assert isinstance(node, SiteNode)
        text = chance.choice([*_forged(), self._word] if self._word else _forged())
        if text != self._word:
            chance.choice(list(self.pushers.values())).hear(text)
        if node.alive and self.clock.now_us >= node.paused_until_us:
            node.guarded(node.hear_gossip, text)

    def _promote(self) -> None:
        """Promote the standby as soon as that is possible."""
        founding, cut, proof = self._founding()
        if founding is None:
            self.clock.after(LOOK_US, self._promote)
            return
        if (founding.ledger.number, founding.ledger.digest) != (proof.number, proof.digest):
            raise Violation(f"the new site begins with {founding.ledger}, the copy has {proof}")
        self.old.subscriber.stop()
        identity, words = IDENTITY, ()
        if not self.is_drained:
            word = Succession(
                STREAM, OLD, NEW, str(cut), proof.number, proof.digest.hex(), "b1:7420",
                "rt standby promote", BEGIN_NS,
            )  # fmt: skip
            self._word = one_line(word.signed(authorities()[0])).decode().rstrip()
            identity, words = IDENTITY._replace(id=NEW), (self._word,)
        self.new = new = Site(
            self, 2 * self.seed + 1, self._log, identity=identity, founding=founding, word=words
        )
        new.trace(f"continues at {cut}, drained {self.is_drained}")
        away_us = self._chance.randint(*AWAY_TICKS) * new.tick_us
        for each in new.links:
            new.links[each] = 0.0
        self.clock.after(away_us, lambda: new.nemesis.active and new.draw_links(self._chance))
        self._looks.append(new.begin())
        if not self.old.nemesis.active:
            new.end_faults()

    def _founding(self) -> tuple[Founding | None, Position, Proof]:
        """Return what the standby can begin a cluster with now."""
        copy = self.old.subscriber
        log = LogDirectory(OUT, copy.disk)
        log.refresh()
        cut, proof = last_proof(log)
        nothing = None, cut, proof
        if self.is_drained and not self._has_drained(cut, proof):
            return nothing
        least = self._sealed[0] if self._sealed is not None else 0
        for carried in reversed(self._states):
            state = carried.state()
            if state.end <= cut and state.index >= least:
                try:
                    return (
                        read_founding(OUT, GROUPS, self.old.file_bytes, carried, disk=copy.disk),
                        cut,
                        proof,
                    )
                except Misuse as error:
                    if not str(error).endswith(("use a later state", "to found a cluster from")):
                        raise
        return nothing

    def _has_drained(self, cut: Position, proof: Proof) -> bool:
        """Seal the old site; return whether the copy has all of its log, which must be equal."""
        if self._sealed is None:
            self.old.seal("operator ops", "")
            there = [node for node in self.old.nodes.values() if node.alive]
            for ledger in (node.member.executor.ledger for node in there):
                if SEALED_NOTE in ledger.notes:
                    proof = Proof(ledger.number, ledger.digest)
                    self._sealed = ledger.index, ledger.end, proof
            return False
        if cut < self._sealed[1]:
            return False
        if proof != self._sealed[2]:
            raise Violation(f"the copy of the sealed log has {proof}, and not {self._sealed}")
        return True


@cache
def _forged() -> list[str]:
    """Return words that another authority has signed: each of the logs has ended."""
    word = Succession(STREAM, OLD, "e" * 32, "0.0.0", 0, "0" * 32, "e1:7420", "anyone", 0)
    every = word, replace(word, old=NEW)
    return [one_line(each.signed(authorities()[1])).decode().rstrip() for each in every]


def _told(log: Callable[[str], None], site: str, line: str) -> None:
    log(f"{site:4}{line}")
