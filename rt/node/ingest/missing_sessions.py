"""MissingSessions: asks other nodes for sessions whose publishers do not reach this node."""

import logging
from typing import Final

from rt.node.ingest.inboxes import Inboxes
from rt.position import START, Position
from sequencer.member import WANT, Member
from sequencer.planning.holdings import Report, ReportKind, encode_report
from sequencer.planning.wants import Wants

_log: Final = logging.getLogger("rt.node")


class MissingSessions:
    """MissingSessions: asks other nodes to push the sessions that this node lacks.

    A request is repeated for as long as the session does not arrive.
    """

    def __init__(self, member: Member, sessions: Inboxes, patience: int) -> None:
        """Prepare.

        Args:
            member: this node's member, which sends the requests.
            sessions: the copies on this node.
            patience: how often a session is found not to have grown before another node is asked
                for it.
        """
        self._member = member
        self._sessions = sessions
        self._wants = Wants(patience)
        self._asked: dict[str, str] = {}  # by session, the node last asked

    def request(self, missing: tuple[str, Position] | None) -> None:
        """Search for sessions that did not arrive, and ask for them; called a few times a second.

        Args:
            missing: the session that lacks bytes for the next instruction, and the end of these
                bytes; None if no bytes are missing (`Execution.missing`).
        """
        member = self._member
        if not member.holdings.others:
            return
        asked = self._wants.choose(
            member.holdings,
            member.executor.ledger,
            missing=missing[0] if missing else "",
            feeder=self.feeder,
        )
        for holder, sessions in asked.items():
            own = member.holdings.own
            items = {session: own.get(session, START) for session in sessions}
            member.send(holder, WANT, encode_report(Report(ReportKind.CHANGES, items)))
        self._say({session: holder for holder in asked for session in asked[holder]})

    def feeder(self, session: str) -> str:
        """Return the publisher that pushes a session here, "" if none is connected."""
        copy = self._sessions.get(session)
        return copy.peer if copy is not None and copy.is_fed else ""

    def _say(self, asked: dict[str, str]) -> None:
        for session, holder in asked.items():
            if self._asked.get(session) != holder:
                _log.warning("session %s does not arrive; asking node %s for it", session, holder)
        self._asked = asked
