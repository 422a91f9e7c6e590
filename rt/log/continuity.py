"""Continuity: whether what is read of a log continues what was read of it before."""

from rt.events import NewRun
from rt.format.frame import Header
from rt.position import Position


class Continuity:
    """What a reader has met of each session so far."""

    def __init__(self) -> None:
        self._runs: dict[str, int] = {}  # of each session, the last one
        self._run, self._next_number = 0, 0  # in a session's own log

    def new_run(self, session: str, first: Position) -> NewRun | None:
        """Record in which run a session is read; return the event if that is another one."""
        known = self._runs.get(session)
        self._runs[session] = first.run
        return NewRun(session, first) if known is not None and known != first.run else None

    def fault(self, position: Position, header: Header) -> str:
        """Record the next frame of a session's own log; return why it does not continue it, or "".

        A publisher never uses a number twice. If it comes back from a backup, it does not know of
        the numbers after it, and begins a run with them. Inside a run, a frame that cannot be
        decoded may claim more than it holds.
        """
        if not header.messages:
            return ""
        expected, self._next_number = self._next_number, header.sequence + header.messages
        is_new_run, self._run = position.run != self._run, position.run
        if header.sequence >= expected or not is_new_run:
            return ""
        return f"message {header.sequence} comes again, after {expected - 1}"
