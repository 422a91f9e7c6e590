"""ShippingNotes: tells publishers, in their sessions' directories, why messages do not arrive."""

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from replicator.push.connection import PushConnection
from replicator.push.pace import paced
from replicator.push.session_book import SessionBook
from replicator.wire.backoff import Complaint
from replicator.wire.dialer import without
from rt.errors import NAME_TAKEN, spoken
from rt.log.notify.shipping import ShippingNote
from rt.position import Position

_log: Final = logging.getLogger(__name__)
_LOOK_S: Final = 1.0
_SENT: Final = "everything was sent; rt status shows what the nodes wait for"
_SENDING: Final = "it is being sent, and no node has confirmed more for a second"


class ShippingNotes:
    """ShippingNotes: writes why each session is not merged as far as it was published.

    Checks once a second or, at a thousand sessions, every few seconds.

    Threads: its own thread runs `look`, and alone touches `_noted` and `_merged`; `start` and
    `stop` are called by the owner. Only `_stopping` is shared.
    """

    def __init__(
        self,
        book: SessionBook,
        connections: Sequence[PushConnection],
        errors: Callable[[str], Mapping[str, str]],
        also: Callable[[], None] = lambda: None,
    ) -> None:
        """Do nothing before `start`.

        Args:
            book: the sessions.
            connections: to the nodes.
            errors: returns, by node, why a session is not shipped; "" where it is.
            also: writes other notes for publishers; `OSError` if that fails.
        """
        self._book = book
        self._errors = errors
        self._also = also
        self._connections = connections
        self._noted: set[str] = set()
        self._merged: dict[str, Position] = {}  # as of the last look
        self._complaint = Complaint(_log, "what shipping waits for cannot be noted")
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="note shipping", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """Stop, and remove the notes: nothing is shipped any more."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()
        for session in list(self._noted):
            self._note(session, "")

    def _run(self) -> None:
        while not self._stopping.wait(_LOOK_S):
            try:
                self.look()
            except OSError as error:
                self._complaint.say(spoken(error))

    def look(self) -> None:
        """Write, renew or remove the note of each session."""
        self._also()
        for session in paced(self._book.names(), self._stopping):
            if self._book.has_log(session):
                self._note(session, self._reason(session))

    def _note(self, session: str, reason: str) -> None:
        if not reason and session not in self._noted:
            return
        ShippingNote(self._book.path(session)).write(reason, self._code(session))
        if reason:
            self._noted.add(session)
        else:
            self._noted.discard(session)

    def _code(self, session: str) -> str:
        """Return `NAME_TAKEN` if a majority refuses the session with it, since one node may lag."""
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
        """Explain why a shipped session made no merge progress since the last check."""
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
