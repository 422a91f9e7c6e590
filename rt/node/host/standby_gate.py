"""StandbyGate: checks that no standby has replaced the cluster while its nodes were down."""

from collections.abc import Callable, Collection
from functools import partial
from typing import Final

from rt.errors import RtError, spoken
from rt.log.files.identity import read_log_identity
from rt.names import merged_directory, stream_directory
from rt.net.addresses import Address, parse_address
from rt.net.admin import END, ask
from rt.net.authority.certificates import certificate_files
from rt.net.authority.identity import CertificateRole
from rt.net.authority.successions import Successions
from rt.net.exchange import Fields
from rt.net.tls import Contexts, client_context
from rt.node.admin.node_successions import node_successions
from rt.node.settings.node import NodeSettings
from rt.text import printable

_ANSWER_S: Final = 5.0

Asking = Callable[[Address, Fields, Collection[CertificateRole]], Fields]


class StandbyGate:
    """StandbyGate: asks the other nodes and the standby whether a node may start.

    The node may start if another node has a confirmed leader. The node may also start if a mirror
    at the standby site still serves the node's log, since a promoted mirror no longer serves it.
    Finally, the node may start if it knows, or learns from an answer, that its log has ended; then
    it serves no client, and seals its cluster. A node without a log may always start. In a process
    with several streams, each stream asks about its own log only.
    """

    def __init__(
        self,
        settings: NodeSettings,
        asking: Asking | None = None,
        known: Callable[[str], Successions] | None = None,
    ) -> None:
        """Prepare.

        Args:
            settings: the node's settings.
            asking: sends a request to the node or mirror at an address, and returns the answer. The
                peer's certificate must have one of the given roles. None to ask over TLS.
            known: takes the id of this node's log; returns the signed statements about ended logs
                that this node has. None to read these from the node's directory.

        Raises:
            Misuse: an address is malformed.
        """
        self._settings = settings
        self._mirrors = [parse_address(each, "standby") for each in settings.agreement.standby]
        self._contexts = None if asking is not None else _contexts(settings)
        self._asking = asking or self._ask
        self._known = known or partial(_known, settings)
        self.why = "the standby was not asked yet"

    def may_start(self) -> bool:
        """Ask once; return whether the node may start. If it may not, `why` has the reason."""
        settings = self._settings
        try:
            identity = read_log_identity(merged_directory(settings.root, settings.stream))
        except (RtError, OSError):
            return True  # when the node starts, it reports what is wrong
        if identity is None:  # without a log, there is nothing that a standby could have replaced
            return True
        known = self._known(identity.id)
        if self._contexts is not None:
            self._contexts.successions = known
        return (
            known.ended is not None
            or self._has_leader()
            or any(self._serves(each, identity.id) for each in self._mirrors)
            or self._has_ended(known)
        )

    def _has_ended(self, known: Successions) -> bool:
        """Store the statements received durably; return whether they end the log."""
        known.keep()
        return known.ended is not None

    def _ask(self, address: Address, request: Fields, roles: Collection[CertificateRole]) -> Fields:
        contexts = self._contexts or _contexts(self._settings)
        return ask(address, contexts, request, roles=roles, answer_s=_ANSWER_S)

    def _has_leader(self) -> bool:
        """Whether another node has a confirmed leader, and thus the cluster was not down."""
        request: Fields = {"do": END, "latest": True}
        for name, address in self._settings.addresses.items():
            if name != self._settings.name:
                try:
                    self._asking(address, request, (CertificateRole.NODE,))
                except (RtError, OSError):
                    continue
                return True
        return False

    def _serves(self, mirror: Address, log: str) -> bool:
        """Whether a mirror still serves a log."""
        where = f"{mirror[0]}:{mirror[1]}"
        try:
            found = str(self._asking(mirror, {"do": END}, (CertificateRole.MIRROR,)).get("log", ""))
        except (RtError, OSError) as error:
            self.why = f"the standby at {where} does not answer: {printable(spoken(error))}"
            return False
        if not found:
            self.why = f"the standby at {where} does not say which log it has; update it"
        elif found != log:
            self.why = f"the standby at {where} has another log, {printable(found)}, by now"
        return found == log


def _contexts(settings: NodeSettings) -> Contexts:
    files = certificate_files(settings.certs, settings.name)
    return Contexts(files, client_context, settings.stream)


def _known(settings: NodeSettings, log: str) -> Successions:
    """Return the statements of ended logs that a node has, as a running node loads them."""
    ca = certificate_files(settings.certs, settings.name).ca
    return node_successions(
        ca, settings.stream, log, stream_directory(settings.root, settings.stream)
    )
