"""QuotaAdmin: shows and changes the quotas of a stream's publishers."""

from collections.abc import Callable

from rt.net.authority.identity import PeerIdentity
from rt.net.exchange import Fields
from rt.node.admin.verb import Verb
from rt.node.agree.steps import Need, perform
from rt.node.agree.view import NodeView
from rt.node.readers.changed_notes import ChangedNotes, Decide
from rt.node.sessions.quotas import QUOTAS_NOTE, SessionQuotas, parse_quotas, quotas_of_notes


class QuotaAdmin:
    """QuotaAdmin: answers requests about quotas; any thread may call it."""

    def __init__(
        self,
        view: Callable[[], NodeView],
        decide: Decide,
        carry_out: Callable[[Need], object],
    ) -> None:
        """Prepare; the arguments are those of `ChangedNotes` and of `perform`."""
        self._carry_out = carry_out
        self._view = view
        self._notes = ChangedNotes(view, decide)

    @property
    def verbs(self) -> dict[str, Verb]:
        """The requests it serves, by name."""
        change = Verb(self._change, changes=True, operators_only=True)
        return {"session-quota": Verb(self._show), "set-session-quota": change}

    def _show(self, _request: Fields, _identity: PeerIdentity) -> Fields:
        return quotas_of_notes(self._view().notes).fields()

    def _change(self, request: Fields, identity: PeerIdentity) -> Fields:
        """Change the limits of all publishers, or of the named one.

        Raises:
            Misuse: they are malformed, or a newer version wrote the present note.
        """
        publisher, given = str(request.get("publisher", "")), request.get("quota")

        def changed(text: str, _now_ns: int) -> str:
            known = parse_quotas(text) if text else SessionQuotas()
            return known.changed(given, publisher).text()

        perform(self._notes.change(QUOTAS_NOTE, changed), self._carry_out)
        return self._show(request, identity)
