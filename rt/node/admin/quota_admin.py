"""QuotaAdmin: shows and changes the quotas of a stream's publishers."""

from collections.abc import Callable

from rt.net.authority.identity import PeerIdentity
from rt.net.exchange import Fields
from rt.node.admin.verb import CHANGE, Verb
from rt.node.agree.view import NodeView
from rt.node.sessions.quotas import QUOTAS_NOTE, SessionQuotas, parse_quotas, quotas_of_notes


class QuotaAdmin:
    """QuotaAdmin: answers requests about quotas; any thread may call it."""

    def __init__(
        self,
        view: Callable[[], NodeView],
        change_note: Callable[[str, Callable[[str, int], str | None]], object],
    ) -> None:
        """Prepare; `change_note` changes a note by agreement, like `ChangedNotes.change`."""
        self._view, self._change_note = view, change_note

    @property
    def verbs(self) -> dict[str, Verb]:
        """The requests that this object serves, by name."""
        return {"session-quota": Verb(self._show), "set-session-quota": CHANGE(self._change)}

    def _show(self, _request: Fields, _identity: PeerIdentity) -> Fields:
        return quotas_of_notes(self._view().notes).fields()

    def _change(self, request: Fields, identity: PeerIdentity) -> Fields:
        """Change the limits of all publishers, or of the named one.

        Raises:
            Misuse: the limits are malformed, or a newer version wrote the present note.
        """
        publisher, given = str(request.get("publisher", "")), request.get("quota")

        def changed(text: str, _now_ns: int) -> str:
            known = parse_quotas(text) if text else SessionQuotas()
            return known.changed(given, publisher).text()

        self._change_note(QUOTAS_NOTE, changed)
        return self._show(request, identity)
