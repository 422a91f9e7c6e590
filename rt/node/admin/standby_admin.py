"""StandbyAdmin: gives a standby the cluster's state, and seals a cluster that another continues."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict

from rt.errors import Refused
from rt.net.authority.certificates import certificate_files
from rt.net.authority.identity import CertificateRole, PeerIdentity
from rt.net.authority.succession import parse_succession
from rt.net.authority.trust import trust_of
from rt.net.exchange import Fields
from rt.net.fencing import SUCCEED
from rt.node.admin.node_successions import NodeSuccessions
from rt.node.admin.verb import CHANGE, Verb
from rt.node.agree.sequencer import NodeSequencer
from rt.node.founding.carried_state import CarriedState
from rt.node.ingest.inboxes import Inboxes
from rt.node.settings.node import NodeSettings
from rt.position import Position
from sequencer.ledger.format_level import SEALING, demand_level
from sequencer.ledger.seal import SEALED_NOTE, seal_of, sealed
from sequencer.member import Member


class StandbyAdmin:
    """StandbyAdmin: answers the requests of `rt standby` and `rt cluster seal`.

    Threads: any connection's thread may call it; `_member` is used only inside `_sequencer.ask`.
        `_reached` is changed an entry at a time.
    """

    def __init__(
        self,
        settings: NodeSettings,
        sequencer: NodeSequencer,
        member: Member,
        copies: Inboxes,
        *,
        change_note: Callable[[str, Callable[[str, int], str | None]], object],
        successions: NodeSuccessions | None = None,
        is_own: bool = True,
    ) -> None:
        """Prepare.

        Args:
            settings: this node's settings.
            sequencer: takes orders, and answers questions between two steps.
            member: this node's member.
            copies: this node's copies of sessions.
            change_note: changes a note by agreement, like `ChangedNotes.change`.
            successions: knows the signed statement that ended the node's log, if there is one. None
                to check for no such statement.
            is_own: whether publishers whose grants name no stream may push here.
        """
        self._settings, self._is_own = settings, is_own
        self._sequencer, self._member, self._copies = sequencer, member, copies
        self._change_note, self._successions = change_note, successions
        self._authority = certificate_files(settings.certs, settings.name).ca
        # For each mirror, by name, the position up to which it last said that it has the log.
        self._reached: dict[str, Position] = {}

    @property
    def verbs(self) -> dict[str, Verb]:
        """The requests that this object serves, by name."""
        return {
            "standby-state": Verb(self._state),
            "standby-reach": Verb(self._reach, for_all=True),
            "seal": CHANGE(self._seal),
            SUCCEED: Verb(self._succeed, changes=True, for_all=True),
            "unseal": CHANGE(self._unseal),
        }

    def hear(self, identity: PeerIdentity, position: Position) -> None:
        """Record up to which position a mirror has the log; ignore other peers.

        A mirror sends this position when it asks where the log ends.
        """
        if identity.role is CertificateRole.MIRROR:
            self._reached[identity.name] = position

    def _reach(self, _request: Fields, identity: PeerIdentity) -> Fields:
        """For each standby that reports here, return the position up to which it has the log.

        Publishers keep their files until the standbys have the messages.

        Raises:
            Refused: the peer has no grant for the stream, so it may not know the standbys.
        """
        stream = self._settings.stream
        pushes = identity.role is CertificateRole.PUBLISHER and identity.may_push_to(
            stream, is_own=self._is_own
        )
        if not (pushes or identity.may_look(stream)):
            raise Refused(
                "role",
                f"{identity.title} may not ask this; a publisher or subscriber of stream {stream}, "
                "an operator or a node may",
            )
        return {"reached": {name: str(each) for name, each in self._reached.copy().items()}}

    def _state(self, _request: Fields, identity: PeerIdentity) -> Fields:
        """Return the last saved state, which is a few seconds old; any node has one.

        Raises:
            Refused: the peer may not read the state, or none was saved yet.
        """
        if not (identity.may_operate or identity.role is CertificateRole.MIRROR):
            words = f"{identity.title} may not ask this; a mirror, an operator or a node may"
            raise Refused("role", words)
        engine, log = self._member.engine, self._member.executor.appender.identity
        newest, members = self._sequencer.ask(
            lambda: (engine.core.snapshots.newest, tuple(engine.status().members))
        )
        if newest is None or not newest.data:
            raise Refused("undecided", "the nodes have saved no state yet; ask again in a while")
        known = (inbox.appender.identity for inbox in self._copies.every())
        groups = {each.name: each.group for each in known if each.group}
        return CarriedState(log.stream, log.id, newest.term, groups, members, newest.data).fields()

    def _seal(self, request: Fields, identity: PeerIdentity) -> Fields:
        """End the log here: nothing is merged and no state changes until it is unsealed.

        A leader proposes one instruction at a time, and the next only after it has executed all
        earlier ones. So nothing follows the seal in the log.
        """
        return self._sealed(identity.title, str(request.get("moved_to", "")))

    def _succeed(self, request: Fields, _identity: PeerIdentity) -> Fields:
        """End the log, because the authority states that another cluster continues it.

        Any peer may bring the statement, since it names this log and the authority has signed it.
        """
        authorities = trust_of(self._authority).facts.authorities
        text = str(request.get("succession", ""))
        succession = parse_succession(text, authorities)
        log = self._member.executor.appender.identity
        if (succession.stream, succession.old) != (log.stream, log.id):
            words = f"the succession is of the log {succession.old} of stream {succession.stream}"
            raise Refused("other-log", f"{words}, and this is {log.id} of {log.stream}")
        if self._successions is not None:
            with suppress(Refused):  # that the log has ended
                self._successions.hear(text)
        return self._sealed(succession.by, succession.moved_to)

    def _sealed(self, by: str, moved_to: str) -> Fields:
        demand_level(self._sequencer.view.notes, SEALING)

        self._change_note(SEALED_NOTE, lambda text, now_ns: sealed(text, by, moved_to, now_ns))
        return self._answer()

    def _unseal(self, _request: Fields, _identity: PeerIdentity) -> Fields:
        """Let the log continue, unless an authority has stated that another cluster continues it.

        Such a statement cannot be withdrawn: every node that knows it would seal the cluster again.
        """
        word = None if self._successions is None else self._successions.ended
        if word is not None:
            raise Refused(
                "ended",
                f"this cluster stays sealed: the authority has said that its log {word.old} ended "
                f"at {word.cut}, and {word.new} continues it at {word.moved_to}; rt standby rejoin "
                "makes a node's log a copy of that, and rt cluster init --from begins a new log "
                "with it",
            )
        self._change_note(SEALED_NOTE, lambda _text, _now_ns: "")
        return self._answer()

    def _answer(self) -> Fields:
        view = self._sequencer.view
        seal = seal_of(view.notes)
        return {
            "sealed": None if seal is None else asdict(seal),
            "index": view.executed, "end": str(view.end), "number": view.number,
            "digest": view.digest.hex(),
        }  # fmt: skip
