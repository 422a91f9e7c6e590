"""Linearizable reads: a majority confirms the leader after the question was asked."""

from typing import Final

from sequencer.raft.core import Core
from sequencer.raft.messages import ReadFrom

READS_MAX: Final = 1024  # questions that wait, of all nodes together


class Reads:
    """The questions that wait for a majority to confirm that this node still leads.

    All questions between two rounds of signs of life share the later round. A question is
    answered with the commit index as of its round, which holds every write that ended before it.

    Attributes:
        round: the newest round; every message to a peer carries it and every answer returns it.
    """

    __slots__ = ("_asked", "_core", "_rounds", "round")

    def __init__(self, core: Core) -> None:
        self._core = core
        self.round = 0
        self._asked: list[tuple[str, int]] = []
        self._rounds: list[tuple[int, int, list[tuple[str, int]]]] = []

    @property
    def waiting(self) -> bool:
        """Whether a round is open."""
        return bool(self._rounds)

    @property
    def full(self) -> bool:
        """Whether no question can be taken."""
        return len(self._asked) + sum(len(asked) for _, _, asked in self._rounds) >= READS_MAX

    def ask(self, asker: str, ticket: int) -> None:
        """Take a question of this node or of a follower."""
        self._asked.append((asker, ticket))

    def open_round(self, confirmed: bool) -> None:
        """Open a round for what was asked, once an entry of this term is committed.

        Before that the commit index may be behind what an older leader has answered.
        """
        if self._asked and confirmed:
            self.round += 1
            self._rounds.append((self.round, self._core.commit, self._asked))
            self._asked = []

    def settle(self, round_: int) -> None:
        """Answer the questions of the rounds that a majority has returned."""
        while self._rounds and self._rounds[0][0] <= round_:
            _, index, asked = self._rounds.pop(0)
            for asker, ticket in asked:
                self._answer(asker, ticket, index)

    def _answer(self, asker: str, ticket: int, index: int) -> None:
        if asker == self._core.name:
            self._core.answer_read(ticket, index)
        else:
            self._core.say_early(asker, ReadFrom(self._core.term, ticket, index))
