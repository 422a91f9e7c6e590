"""ChangedNotes: changes a note of the ledger by compare-and-set."""

import time
from collections.abc import Callable
from typing import Final

from rt.errors import Refused
from rt.node.agree.sequencer import demand_leading
from rt.node.agree.steps import Steps
from rt.node.agree.view import NodeView
from sequencer.ledger.instruction import Note, note_digest

_TRIES: Final = 8  # to change a note, if other changes always come first


# A function that has a note agreed on. Its arguments are the note, a function that returns whether
# the note is executed, and `may_repeat`; see `rt.node.agree.latest.decided`.
Decide = Callable[..., Steps[None]]


class ChangedNotes:
    """ChangedNotes: changes notes by agreement, each change based on the ledger's current text."""

    def __init__(
        self,
        view: Callable[[], NodeView],
        decide: Decide,
        now_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        """Prepare.

        Args:
            view: returns the node's latest view.
            decide: proposes a note, and waits until the view shows the outcome.
            now_ns: returns the time, ns since the epoch.
        """
        self.view = view
        self._decide = decide
        self._now_ns = now_ns

    def change(
        self,
        name: str,
        change: Callable[[str, int], str | None],
        *,
        may_repeat: bool = False,
    ) -> Steps[tuple[str, bool]]:
        """Change a note; return its text, and whether a majority has just agreed on that text.

        Args:
            name: the note's name.
            change: takes the note's text ("" if there is none) and the time in ns; returns the new
                text, "" to delete the note, or None to leave it, in which case no other node is
                asked. May be called several times.
            may_repeat: whether the caller may ask another leader to make the change again.

        Raises:
            Refused: this node does not lead, or nothing can be decided now.
        """
        for _ in range(_TRIES):
            view = self.view()
            demand_leading(view)
            before, now_ns = view.notes.get(name, ""), self._now_ns()
            text = change(before, now_ns)
            if text is None:
                return before, False
            note = Note(now_ns, name, text, note_digest(before))
            is_over = self._is_over(name, before, text)
            yield from self._decide(note, is_over, may_repeat=may_repeat)
            if self.view().notes.get(name, "") == text:
                return text, True
        raise Refused("busy", f"{name} is changed by others all the time; ask again")

    def _is_over(self, name: str, before: str, text: str) -> Callable[[], bool]:
        return lambda: text == before or self.view().notes.get(name, "") != before
