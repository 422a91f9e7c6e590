"""ShippingNotes: tells publishers, in their sessions' directories, why messages do not arrive."""

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from replicator.push.connection import PushConnection
from replicator.push.session_book import SessionBook
from replicator.wire.backoff import Complaint
from replicator.wire.dialer import without
from rt.errors import NAME_TAKEN, spoken
from rt.log.notify.shipping import ShippingNote
from rt.position import Position

_log: Final = logging.getLogger(__name__)
_SENT: Final = "everything was sent; rt status shows what the nodes wait for"
_SENDING: Final = "it is being sent, and no node has confirmed more for a second"


class ShippingNotes:
    """Writes into each session's directory why its published messages are not merged yet.

    Threads: one thread at a time calls a method for a session, and only one at a time `look_at`.
    """

    def __init__(
        self,
        book: SessionBook,
        connections: Sequence[PushConnection],
        errors: Callable[[str], Mapping[str, str]],
    ) -> None:
        """Prepare; `errors` returns for each node why a session is not shipped to it, or ""."""
        self._book = book
        self._errors = errors
        self._connections = connections
        self._noted: set[str] = set()
        self._merged: dict[str, Position] = {}  # as of the last look
        self._complaint = Complaint(_log, "what shipping waits for cannot be noted")

    def look_at(self, session: str) -> None:
        """Write, renew or remove the note of a session; a failure is logged."""
        try:
            if self._book.has_log(session):
                self._note(session, self._reason(session))
        except OSError as error:
            self._complaint.say(spoken(error))

    def withdraw(self, session: str) -> None:
        """Remove the note of a session that is no longer shipped."""
        self._merged.pop(session, None)
        self._note(session, "")

    def withdraw_all(self) -> None:
        """Remove all notes."""
        for session in list(self._noted):
            self.withdraw(session)

    def _note(self, session: str, reason: str) -> None:
        if not reason and session not in self._noted:
            return
        ShippingNote(self._book.path(session)).write(reason, self._code(session))
        if reason:
            self._noted.add(session)
        else:
            self._noted.discard(session)

    def _code(self, session: str) -> str:
        """Return `NAME_TAKEN` if a majority refuses the session with this code, otherwise "".

        A minority may lag behind, and then refuses the session only for a moment.
        """
        refusing = sum(each.refusal(session) == NAME_TAKEN for each in self._connections)
        return NAME_TAKEN if refusing > len(self._connections) // 2 else ""

    def _reason(self, session: str) -> str:
        by_error: dict[str, list[str]] = {}
        for node, error in self._errors(session).items():
            if error:
                by_error.setdefault(without(node, error), []).append(node)
        said = [f"{', '.join(nodes)}: {error}" for error, nodes in by_error.items()]
        return "; ".join(said) or self._standstill(session)

    def _standstill(self, session: str) -> str:
        """Return why nothing of a shipped session was merged since the last look.

        Return "" if something was merged since, or if everything that was sent is merged.
        """
        progress = self._book.progress(session)
        merged = max(progress.reached(each.name).merged for each in self._connections)
        before, self._merged[session] = self._merged.get(session), merged
        if merged != before:
            return ""
        ends = (each.all_sent(session) for each in self._connections)
        sent = next((end for end in ends if end is not None), None)
        if sent is not None and merged >= sent:
            return ""
        return _SENDING if sent is None else _SENT
