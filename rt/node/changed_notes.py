"""ChangedNotes: changes a note of the ledger by compare-and-set."""

import time
from collections.abc import Callable
from typing import Final

from rt.errors import Refused
from rt.node.sequencer import leader_words
from rt.node.view import NodeView
from sequencer.instruction import Note, note_digest

_TRIES: Final = 8  # another change came first, each time

Decide = Callable[[Note, Callable[[], bool]], None]


class ChangedNotes:
    """Has changes of notes agreed on, each on what the ledger holds by then."""

    def __init__(self, view: Callable[[], NodeView], decide: Decide) -> None:
        """Prepare.

        Args:
            view: returns the node's latest view.
            decide: has a note agreed on, and waits until the view shows what came of it.
        """
        self._view = view
        self._decide = decide

    def change(self, name: str, change: Callable[[str, int], str | None]) -> str:
        """Change a note; return what it holds then.

        Args:
            name: of the note.
            change: is given what the note holds, "" if it is not there, and the time in ns.
                Returns what it is to hold, "" to delete it, or None to leave it as it is, which no
                other node is asked about. May be called several times.

        Raises:
            Refused: this node does not lead, or nothing is decided now.
        """
        for _ in range(_TRIES):
            view = self._view()
            if not view.leads:
                raise Refused("not-leader", leader_words(view.engine.leader))
            before, now_ns = view.notes.get(name, ""), time.time_ns()
            text = change(before, now_ns)
            if text is None:
                return before
            note = Note(now_ns, name, text, note_digest(before))
            self._decide(note, self._is_over(name, before, text))
            if self._view().notes.get(name, "") == text:
                return text
        raise Refused("busy", f"{name} is changed by others all the time; ask again")

    def _is_over(self, name: str, before: str, text: str) -> Callable[[], bool]:
        return lambda: text == before or self._view().notes.get(name, "") != before
