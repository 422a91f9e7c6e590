"""NodeRelay: asks other nodes for sessions that do not come here, and passes on what they lack."""

import logging
from typing import Final

from replicator.relay import HeldCopy, Relay
from rt.errors import Refused
from rt.net.certificates import certificate_files
from rt.net.tls import Contexts, client_context
from rt.node.inbox import Inboxes, NodeInbox
from rt.node.settings import NodeSettings
from rt.position import START, Position
from sequencer.holdings import decode_report, encode_report
from sequencer.member import WANT, Member
from sequencer.wants import Wants

_log: Final = logging.getLogger("rt.node")
_LOOK_S: Final = 0.25


class NodeRelay:
    """Keeps a session coming that its publisher brings to some nodes only.

    Who lacks it asks who holds it, again and again; who is asked pushes its copy, as the publisher
    would, and gives way when the publisher comes. Nobody remembers anything of the other.
    """

    def __init__(self, settings: NodeSettings, member: Member, inboxes: Inboxes) -> None:
        """Stand ready; `turn` asks, and what others ask for is passed on by threads of its own."""
        self._member = member
        self._inboxes = inboxes
        # half the time after which the merged log is copied instead
        self._wants = Wants(max(1, round(settings.missing_s / 2 / _LOOK_S)))
        self._next_look_s = float("-inf")
        self._asked: dict[str, str] = {}  # by session, who was asked for it last
        # of whatever dials another node as its client
        self.contexts = Contexts(certificate_files(settings.certs, settings.name), client_context)
        self._relays = {
            name: Relay(name, address, self.contexts, settings.stream, self._copy_of)
            for name, address in settings.addresses.items()
            if name != settings.name
        }
        member.handlers[WANT] = self._take_want

    def turn(self, now_s: float, missing: tuple[str, Position] | None) -> None:
        """Ask for what did not come, a few times a second. The sequencing thread calls it.

        Args:
            now_s: by a clock that only goes on.
            missing: as `Member.missing` says.
        """
        member = self._member
        if now_s < self._next_look_s or not self._relays:
            return
        self._next_look_s = now_s + _LOOK_S
        asked = self._wants.look(
            member.holdings,
            member.executor.ledger,
            missing=missing[0] if missing else "",
            fed={each.session for each in self._inboxes.every() if each.is_fed},
        )
        for holder, sessions in asked.items():
            own = member.holdings.own
            items = {session: own.get(session, START) for session in sessions}
            member.send(holder, WANT, encode_report(items, whole=False))
        self._say({session: holder for holder in asked for session in asked[holder]})

    def stop(self) -> None:
        """Pass nothing on any more."""
        for relay in self._relays.values():
            relay.stop()

    def _say(self, asked: dict[str, str]) -> None:
        for session, holder in asked.items():
            if self._asked.get(session) != holder:
                _log.warning("session %s does not come; node %s is asked for it", session, holder)
        self._asked = asked

    def _take_want(self, sender: str, body: bytes) -> None:
        _, sessions = decode_report(body)
        for session in sessions:
            if self._inboxes.get(session) is not None:
                self._relays[sender].want(session)

    def _copy_of(self, session: str) -> HeldCopy | None:
        inbox = self._inboxes.get(session)
        if inbox is None:
            return None
        return HeldCopy(inbox.appender.directory, lambda: self._durable(inbox), inbox.doubted)

    def _durable(self, inbox: NodeInbox) -> Position:
        if self._inboxes.get(inbox.session) is not inbox:
            raise Refused("busy", f"the copy of session {inbox.session!r} was set aside")
        return inbox.durable
