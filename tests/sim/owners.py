"""Tracks the owner of each session by the events in the merged log; no name has two owners."""

from typing import Any

from .checkers import Violation


class Owners:
    """Follows owners from event to event: a live one is never displaced, and a name changes hands
    only once it is closed.
    """

    def __init__(self) -> None:
        self.by_session: dict[str, str] = {}
        self.closed: set[str] = set()
        self.begun: set[str] = set()  # sessions whose log is decided: it may be merged

    def take(self, session: str, event: dict[str, Any]) -> bool:
        """Take an event; return whether it ends the session's log."""
        change, owner = event["event"], event.get("owner", "")
        known, is_live = self.by_session.get(session), session not in self.closed
        is_right = {
            "opened": known is None,
            "resumed": known is not None and (not known or owner in {"", known}),
            "closed": known is not None and is_live,
            "taken": known is not None and not is_live and bool(owner),
            "expired": known is not None and not is_live,
            "reset": True,
        }
        if not is_right[change]:
            raise Violation(f"{session} of {known!r}, live: {is_live}, is {change} by {owner!r}")
        is_pushed = change in {"opened", "resumed"} and bool(owner)
        if change in {"opened", "resumed", "taken"}:
            self.by_session[session] = owner or known or ""
        if change == "expired":
            del self.by_session[session]
        (self.closed.discard if is_pushed else self.closed.add)(session)
        is_end = change in {"reset", "expired"} or (change == "taken" and not event["after"])
        if change in {"opened", "resumed"}:
            self.begun.add(session)
        elif is_end:
            self.begun.discard(session)
        return is_end

    def demand_begun(self, session: str) -> None:
        """Check that a session, or its next log, is opened or resumed before its first message."""
        if session not in self.begun:
            raise Violation(f"{session} is merged before it is opened")
