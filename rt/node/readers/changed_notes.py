"""ChangedNotes: changes a note of the ledger by compare-and-set."""

import time
from collections.abc import Callable
from typing import Final, NamedTuple, Protocol

from rt.errors import Refused
from rt.node.agree.sequencer import leader_words
from rt.node.agree.steps import Steps
from rt.node.agree.view import NodeView
from sequencer.ledger.instruction import Note, note_digest

_TRIES: Final = 8  # another change came first, each time


class Decide(Protocol):
    """Has a note agreed on; see `rt.node.agree.latest.decided`."""

    def __call__(
        self, note: Note, is_done: Callable[[], bool], /, *, may_repeat: bool
    ) -> Steps[None]:
        """Propose a note, and wait until it was executed, or something that makes it pointless."""


class Changed(NamedTuple):
    """What a note holds, and whether that is agreed or only what this node knew."""

    text: str
    is_agreed: bool


class ChangedNotes:
    """Has changes of notes agreed on, each on what the ledger holds by then."""

    def __init__(
        self,
        view: Callable[[], NodeView],
        decide: Decide,
        now_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        """Prepare.

        Args:
            view: returns the node's latest view.
            decide: has a note agreed on, and waits until the view shows what came of it.
            now_ns: the time, ns since the epoch.
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
    ) -> Steps[Changed]:
        """Change a note; return what it holds then.

        Args:
            name: of the note.
            change: is given what the note holds, "" if it is not there, and the time in ns.
                Returns what it is to hold, "" to delete it, or None to leave it as it is, which no
                other node is asked about. May be called several times.
            may_repeat: whether it is as good to have another leader make the change again.

        Raises:
            Refused: this node does not lead, or nothing is decided now.
        """
        for _ in range(_TRIES):
            view = self.view()
            if not view.leads:
                raise Refused("not-leader", leader_words(view.engine.leader))
            before, now_ns = view.notes.get(name, ""), self._now_ns()
            text = change(before, now_ns)
            if text is None:
                return Changed(before, is_agreed=False)
            note = Note(now_ns, name, text, note_digest(before))
            is_over = self._is_over(name, before, text)
            yield from self._decide(note, is_over, may_repeat=may_repeat)
            if self.view().notes.get(name, "") == text:
                return Changed(text, is_agreed=True)
        raise Refused("busy", f"{name} is changed by others all the time; ask again")

    def _is_over(self, name: str, before: str, text: str) -> Callable[[], bool]:
        return lambda: text == before or self.view().notes.get(name, "") != before
