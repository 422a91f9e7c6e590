"""Mistakes with sessions that an operator ends: only worlds with merged logs see them."""

from rt.format.ranges import Range
from rt.node.begun import Begun, BegunCopies
from rt.node.inboxes import Inboxes
from sequencer.ledger import Ledger
from sequencer.life import Life

from .mutants_merge import merging
from .mutation import Patch


@merging
def next_copy_dropped_by_the_repetition() -> list[Patch]:
    """After a crash, the instruction is repeated and ends the copy that was begun after it."""
    right = BegunCopies.get

    def get(self: BegunCopies, session: str) -> Begun:
        return right(self, session)._replace(after=0)

    return [(BegunCopies, "get", get)]


@merging
def copies_survive_a_reset() -> list[Patch]:
    """The ledger begins again, and the nodes keep the copies of the last log."""
    return [(Inboxes, "drop_all", lambda self, ended, is_needed: None)]


@merging
def change_made_on_any_state() -> list[Patch]:
    """A reset that was decided for another state, or was made before, is made all the same."""
    return [(Ledger, "changes", lambda self, life: True)]


@merging
def numbers_survive_a_reset() -> list[Patch]:
    """The next log's messages are taken for repeats of the last one's."""
    right = Ledger.change

    def change(self: Ledger, life: Life, merged: Range, size: int) -> None:
        watermarks = dict(self.watermarks)
        right(self, life, merged, size)
        self.watermarks.update(watermarks)

    return [(Ledger, "change", change)]
