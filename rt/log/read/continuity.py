"""Continuity: checks that frames continue those that were read before."""

from rt.events import NewRun
from rt.format.frame import Header
from rt.position import Position


class Continuity:
    """What a reader has seen of each session so far."""

    def __init__(self) -> None:
        self._runs: dict[str, int] = {}  # last run of each session
        self._run, self._next_number = 0, 0  # run and next sequence number in a session's own log

    def new_run(self, session: str, first: Position) -> NewRun | None:
        """Record the run a session is in; return an event if it differs from the last one."""
        known = self._runs.get(session)
        self._runs[session] = first.run
        return NewRun(session, first) if known is not None and known != first.run else None

    def fault(self, position: Position, header: Header) -> str:
        """Record the next frame of a session's own log; return why it does not fit, or "".

        Numbers are reused only by a publisher that was restored from a backup: it does not know
        which numbers it used after the backup, and reuses them in a new run. Within a run nothing
        is reported, because a frame that cannot be decoded may claim more messages than it holds.
        """
        if not header.messages:
            return ""
        expected, self._next_number = self._next_number, header.sequence + header.messages
        is_new_run, self._run = position.run != self._run, position.run
        if header.sequence >= expected or not is_new_run:
            return ""
        return f"message {header.sequence} comes again, after {expected - 1}"
