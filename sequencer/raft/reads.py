"""Linearizable reads: a majority confirms the leader after each read is requested."""

from typing import Final

from sequencer.raft.core import Core
from sequencer.raft.messages import ReadIndexReply

READS_MAX: Final = 1024  # waiting requests of all nodes together


class Reads:
    """Reads: reads that wait for a majority to confirm that this node still leads.

    All reads requested between two rounds of heartbeats share the later round. A read is answered
    with the commit index as of its round, which covers every write that completed before it.

    Attributes:
        asked: by whom, and with which ticket: in no round yet.
        rounds: those that are open: number, commit index, and the reads in it.
        round: the newest round; every message to a peer carries it and every reply returns it.
    """

    __slots__ = ("_core", "asked", "round", "rounds")

    def __init__(self, core: Core) -> None:
        self._core = core
        self.round = 0
        self.asked: list[tuple[str, int]] = []
        self.rounds: list[tuple[int, int, list[tuple[str, int]]]] = []

    @property
    def is_idle(self) -> bool:
        """Whether every requested read is answered."""
        return not (self.asked or self.rounds)

    @property
    def full(self) -> bool:
        """Whether further reads must be refused."""
        return len(self.asked) + sum(len(asked) for _, _, asked in self.rounds) >= READS_MAX

    def ask(self, asker: str, ticket: int) -> None:
        """Accept a read of this node or of a follower."""
        self.asked.append((asker, ticket))

    def open_round(self, confirmed: bool) -> None:
        """Open a round for the reads requested so far, once an entry of this term is committed.

        Before that, the commit index may be lower than one an earlier leader has answered with.
        """
        if self.asked and confirmed:
            self.round += 1
            self.rounds.append((self.round, self._core.commit, self.asked))
            self.asked = []

    def settle(self, round_: int) -> None:
        """Answer the reads of every round that a majority has confirmed."""
        while self.rounds and self.rounds[0][0] <= round_:
            _, index, asked = self.rounds.pop(0)
            for asker, ticket in asked:
                self._answer(asker, ticket, index)

    def _answer(self, asker: str, ticket: int, index: int) -> None:
        if asker == self._core.name:
            self._core.finish_read(ticket, index)
        else:
            self._core.outgoing.send_now(asker, ReadIndexReply(self._core.term, ticket, index))
