"""Raft: the default engine, a pure function from messages, ticks and proposals to duties."""

from collections.abc import Callable, Sequence
from typing import Any

from rt.errors import Misuse, PeerError, Refused
from sequencer.raft.consensus import EngineRole, EngineState, Entry, Ready, Snapshot, Status
from sequencer.raft.core import Chance, Core, Settings
from sequencer.raft.election import Election, give_vote
from sequencer.raft.leader import Leader
from sequencer.raft.messages import (
    AnyMessage,
    Append,
    Appended,
    AskRead,
    AskVote,
    Chunk,
    ChunkTaken,
    Lead,
    ReadFrom,
    Vote,
)
from sequencer.raft.reads import READS_MAX
from sequencer.raft.receive import take_append, take_chunk


class Raft:
    """One node's engine; see `sequencer.raft.consensus.Consensus` for how to drive it.

    A node leads (`_leader`), stands (`_election`) or does neither; what it holds in any case is
    in its core. The rules of Ongaro's thesis, with pre-vote (9.6), a leader that steps down when
    it hears no majority (6.2), reads without a log entry (6.4) and transfer (3.10).

    Args:
        name: this node.
        members: all nodes, this one among them: 1, 3, 5 or 7.
        cluster: the cluster's id; messages of another cluster are refused.
        chance: spreads the election timeouts.
        state: what the journal gave back.
        settings: how long to wait, how much to send.

    Raises:
        Misuse: the members are not such a list, or not those of the state.
    """

    def __init__(
        self,
        name: str,
        members: Sequence[str],
        *,
        chance: Chance,
        cluster: str = "",
        state: EngineState | None = None,
        settings: Settings | None = None,
    ) -> None:
        self._chance = chance
        self._settings = settings or Settings()
        self._core = Core(name, members, cluster, state or EngineState(), self._settings)
        self._leader: Leader | None = None
        self._election: Election | None = None
        self._out: Ready | None = None
        self._refusal = ""
        self._handlers: dict[type, Callable[[str, int, Any], None]] = {
            AskVote: self._on_ask_vote,
            Vote: self._on_vote,
            Append: self._on_append,
            Appended: self._on_appended,
            Chunk: self._on_chunk,
            ChunkTaken: self._on_chunk_taken,
            Lead: self._on_lead,
            AskRead: self._on_ask_read,
            ReadFrom: self._on_read_from,
        }
        self._begin()

    def _begin(self) -> None:
        self._wait()
        if self._core.voter and self._core.majority == 1:
            self._stand(pre=False)

    # The interface

    @property
    def leader(self) -> str:
        """The leader of the newest known term, or ""."""
        return self._core.leader

    @property
    def leads(self) -> bool:
        """Whether this node leads."""
        return self._leader is not None

    def propose(self, command: bytes) -> Entry:
        """Append a command; `Refused` says why not."""
        return self._leading().propose(command)

    def transfer(self, to: str) -> None:
        """Hand leadership over; nothing to do if it is here already."""
        leader = self._leading()
        if to != self._core.name:
            leader.transfer(to)

    def _leading(self) -> Leader:
        if self._leader is None:
            raise Refused("not-leader", f"the leader is {self._core.leader or 'not known'}")
        return self._leader

    def read_index(self, ticket: int) -> None:
        """Ask from where a read is linearizable."""
        if self._leader is not None:
            if self._leader.reads.full:
                raise Refused("busy", f"{READS_MAX} reads are waiting already")
            self._leader.reads.ask(self._core.name, ticket)
        elif self._core.leader:
            self._core.say_early(self._core.leader, AskRead(self._core.term, ticket))
        else:
            raise Refused("no-leader", "no leader is known")

    def step(self, sender: str, data: bytes) -> None:
        """Take a message; `PeerError` if it is not one of this cluster's."""
        core = self._core
        if sender not in core.others:
            raise PeerError(f"{sender!r} is not another member of {list(core.members)}")
        try:
            incarnation, message = core.decode(data)
        except PeerError as error:
            self._refusal = f"{sender}: {error}"
            raise
        if message.term == core.term or self._is_current(sender, message):
            self._handlers[type(message)](sender, incarnation, message)

    def tick(self) -> None:
        """Let a tick pass: signs of life as leader, patience otherwise."""
        if self._leader is not None:
            if not self._leader.tick():
                self._follow(self._core.term, "")
            return
        self._silent_ticks += 1
        if self._silent_ticks >= self._patience_ticks:
            self._core.leader = ""
            self._wait()
            if self._core.voter:
                self._stand(pre=True)

    def ready(self) -> Ready | None:
        """The next duties, if the last ones are done."""
        if self._out is not None:
            return None
        if self._leader is not None:
            self._leader.flush()
        self._out = self._core.take_ready()
        return self._out

    def persisted(self, ready: Ready) -> None:
        """Count what has become durable."""
        if ready is not self._out:
            raise Misuse("persisted() is called once, with the Ready that was taken last")
        self._out = None
        self._core.persisted(ready)
        if self._leader is not None:
            self._leader.advance()

    def compact(self, index: int, data: bytes) -> Snapshot | None:
        """Take the application's state and cut the log behind it."""
        needed = index if self._leader is None else self._leader.needed(index)
        return self._core.compact(index, data, needed)

    def status(self) -> Status:
        """What can be shown."""
        core = self._core
        return Status(
            name=core.name,
            role=self._role(),
            term=core.term,
            leader=core.leader,
            commit=core.commit,
            last=core.log.last,
            durable=core.log.durable,
            snapshot=core.snapshot.index if core.snapshot else 0,
            peers=tuple(self._leader.peers()) if self._leader else (),
            refusal=self._refusal,
        )

    def _role(self) -> EngineRole:
        if self._leader is not None:
            return EngineRole.LEADER
        if self._election is not None:
            return EngineRole.PRE_CANDIDATE if self._election.pre else EngineRole.CANDIDATE
        return EngineRole.FOLLOWER if self._core.voter else EngineRole.LEARNER

    # Terms

    def _is_current(self, sender: str, message: AnyMessage) -> bool:
        """Come to the term of a message with another one; False if it is not to be handled."""
        if message.term < self._core.term:
            self._answer_stale(sender, message)
            return False
        if isinstance(message, AskVote):
            if self._hears_leader() and not message.forced:
                return False
            if message.pre:
                return True
        if isinstance(message, Vote) and message.pre and message.granted:
            return True
        self._follow(message.term, "")
        return True

    def _answer_stale(self, sender: str, message: AnyMessage) -> None:
        """Tell a node of an older term that there is a newer one; its other words are void."""
        core = self._core
        if isinstance(message, Append | Chunk):
            core.say(sender, Appended(core.term, False, 0, 0))
        elif isinstance(message, AskVote):
            core.say(sender, Vote(core.term, False, message.pre))

    def _hears_leader(self) -> bool:
        """Whether there is a leader that needs no replacing: it was heard a moment ago."""
        if self._leader is not None:
            return True
        return bool(self._core.leader) and self._silent_ticks < self._settings.election_ticks

    def _follow(self, term: int, leader: str) -> None:
        """Lead and stand no more; in a new term, no vote is given yet."""
        if term != self._core.term:
            self._core.ballot(term, "")
        self._leader = self._election = None
        self._core.leader = leader
        self._wait()

    def _wait(self) -> None:
        """Begin a new wait, of one to two election timeouts."""
        self._silent_ticks = 0
        least = self._settings.election_ticks
        self._patience_ticks = least + self._chance.randrange(least)

    # Elections

    def _stand(self, *, pre: bool, forced: bool = False) -> None:
        self._core.leader = ""
        self._election = Election(self._core, pre=pre, forced=forced)
        self._settle()

    def _settle(self) -> None:
        """Go on from a won election; one that is not won ends with the wait."""
        election = self._election
        if election is None:
            return
        if election.won and election.pre:
            self._wait()
            self._stand(pre=False)
        elif election.won:
            self._election = None
            self._leader = Leader(self._core)

    def _on_ask_vote(self, sender: str, _incarnation: int, message: AskVote) -> None:
        if not self._core.voter:
            return
        vote = give_vote(self._core, sender, message)
        if vote.granted and not vote.pre:
            self._wait()
        self._core.say(sender, vote)

    def _on_vote(self, sender: str, incarnation: int, message: Vote) -> None:
        if self._election is not None:
            self._election.count(sender, incarnation, message)
            self._settle()

    def _on_lead(self, sender: str, _incarnation: int, _message: Lead) -> None:
        if sender == self._core.leader and self._core.voter:
            self._stand(pre=False, forced=True)

    # Following

    def _on_append(self, sender: str, _incarnation: int, message: Append) -> None:
        self._heed(sender)
        answer = take_append(self._core, message)
        if not (message.quiet and answer.taken):
            self._core.acknowledge(sender, answer)

    def _on_chunk(self, sender: str, _incarnation: int, message: Chunk) -> None:
        self._heed(sender)
        answer = take_chunk(self._core, message)
        if isinstance(answer, Appended):
            self._core.acknowledge(sender, answer)
        else:
            self._core.say(sender, answer)

    def _heed(self, sender: str) -> None:
        """Follow the sender, which leads this term."""
        if self._leader is not None or self._core.leader not in {"", sender}:
            raise PeerError(f"{sender} and {self._core.leader} both lead term {self._core.term}")
        self._core.leader = sender
        self._election = None
        self._silent_ticks = 0

    # Leading

    def _on_appended(self, sender: str, incarnation: int, message: Appended) -> None:
        if self._leader is not None:
            self._leader.on_appended(sender, incarnation, message)

    def _on_chunk_taken(self, sender: str, incarnation: int, message: ChunkTaken) -> None:
        if self._leader is not None:
            self._leader.on_chunk_taken(sender, incarnation, message)

    def _on_ask_read(self, sender: str, _incarnation: int, message: AskRead) -> None:
        if self._leader is not None and not self._leader.reads.full:
            self._leader.reads.ask(sender, message.ticket)

    def _on_read_from(self, sender: str, _incarnation: int, message: ReadFrom) -> None:
        if sender == self._core.leader:
            self._core.answer_read(message.ticket, message.index)
