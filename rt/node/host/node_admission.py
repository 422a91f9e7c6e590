"""NodeAdmission: decides which nodes a stream admits, by their certificates."""

import time
from collections.abc import Callable, Mapping
from contextlib import suppress

from rt.errors import Misuse, Refused
from rt.net.authority.certificates import certificate_files, load_certificate
from rt.net.authority.identity import PeerIdentity, identity_of
from rt.node.agree.sequencer import NodeSequencer
from rt.node.settings.node import NodeSettings
from sequencer.ledger.founded import CERTIFICATES_NOTE
from sequencer.ledger.instruction import Instruction, Note, note_digest
from sequencer.membership import Doors, Membership
from sequencer.peers.dialling import removed_words


class NodeAdmission:
    """NodeAdmission: admits nodes that the log lists and whose certificates name the cluster.

    Any thread may call any method.
    """

    def __init__(
        self,
        settings: NodeSettings,
        membership: Membership,
        sequencer: NodeSequencer,
    ) -> None:
        """Prepare.

        Args:
            settings: this node's settings.
            membership: knows the nodes that the log admits.
            sequencer: has the agreed notes in its view.
        """
        self._settings, self._membership, self._sequencer = settings, membership, sequencer
        # By name of a connected node that was admitted: the node's identity, and the doors and
        # notes by which it was admitted.
        self._admitted: dict[str, tuple[PeerIdentity, Doors, Mapping[str, str]]] = {}

    def is_member(self, name: str) -> bool:
        """Whether the log lists this name as a node of the cluster; True for this node itself."""
        return name == self._settings.name or name in self._membership.doors.members

    def votes(self, name: str) -> bool:
        """Whether the log lists this name as a voting node; True for this node itself."""
        return name == self._settings.name or name in self._membership.doors.voters

    def objection(self, peer: PeerIdentity, *, greets: bool = False, is_live: bool = False) -> str:
        """Return why a node is not admitted; "" if it is.

        Args:
            peer: the node.
            greets: whether the node wants to speak the protocol between nodes, which may be allowed
                even to a node that is not listed yet.
            is_live: whether the node is connected already. A removed node may keep its connection
                for a while, to learn of its removal.
        """
        doors, notes, name = self._membership.doors, self._sequencer.view.notes, peer.name
        if not (greets and is_live):
            return self._objection(peer, doors, greets=greets, is_live=is_live)
        known = self._admitted.get(name)
        if known is not None and known[0] is peer and known[1] is doors and known[2] is notes:
            return ""  # the usual case, for each message
        why = self._objection(peer, doors, greets=True, is_live=True)
        if not why:
            self._admitted[name] = peer, doors, notes
        return why

    def _objection(self, peer: PeerIdentity, doors: Doors, *, greets: bool, is_live: bool) -> str:
        name = peer.name
        is_known = self.is_member(name) or (greets and name in doors.peers)
        if is_known or (greets and is_live and name in doors.leaving):
            return self.binding(peer)
        if name in doors.departed:
            return removed_words(name)
        if greets and doors.admits(name) and self._may_introduce_itself(peer):
            return self.binding(peer)
        return f"{name!r} is not a node of this cluster"

    def binding(self, peer: PeerIdentity) -> str:
        """Return why a node's certificate is not valid in this cluster; "" if it is."""
        if not self._settings.cluster_id:
            return ""  # a single node, founded without an id
        if peer.clusters:
            is_ours = self._is_named_by(peer)
            return "" if is_ours else f"its certificate is of another cluster's node {peer.name}"
        if CERTIFICATES_NOTE in self._sequencer.view.notes:
            again = f"rt certs renew {peer.name} --cluster {self.cluster}"
            return f"its certificate names no cluster, as all others here do; use {again}"
        return ""

    def bind(
        self, holders: Mapping[str, PeerIdentity], order: Callable[[Instruction], None]
    ) -> None:
        """Once all members' certificates name the cluster, propose to admit only such ones.

        Args:
            holders: the identity in the certificate of each member's last connection, by name.
            order: proposes an instruction; raises `Refused` unless this node leads.
        """
        if not self._settings.cluster_id or CERTIFICATES_NOTE in self._sequencer.view.notes:
            return
        members = self._membership.doors.members - {self._settings.name}
        try:
            own = own_identity(self._settings)
        except (Misuse, OSError):
            return  # the certificate is being replaced; the next attempt finds it complete
        found = [own, *(holders[each] for each in members if each in holders)]
        if len(found) == len(members) + 1 > 1 and all(map(self._is_named_by, found)):
            note = Note(time.time_ns(), CERTIFICATES_NOTE, self.cluster, note_digest(""))
            with suppress(Refused):
                order(note)

    @property
    def cluster(self) -> str:
        """The id that certificates must name; all streams of the nodes share it."""
        return self._settings.cluster_id.removesuffix(f"/{self._settings.stream}")

    def _is_named_by(self, peer: PeerIdentity) -> bool:
        return not {self.cluster, self._settings.cluster_id}.isdisjoint(peer.clusters)

    def _may_introduce_itself(self, peer: PeerIdentity) -> bool:
        """Whether a node that no member vouches for seems to belong to this cluster."""
        return self._is_named_by(peer) or peer.name in self._settings.member_names


def own_identity(settings: NodeSettings) -> PeerIdentity:
    """Return the identity in this node's own certificate; `Misuse` if it cannot be read."""
    return identity_of(load_certificate(certificate_files(settings.certs, settings.name).cert))


def demand_own(settings: NodeSettings) -> None:
    """Raise `Misuse` if this node's certificate names only other clusters: no node would admit it.

    A certificate that names no cluster passes.
    """
    named = own_identity(settings).clusters
    wanted = settings.cluster_id.removesuffix(f"/{settings.stream}")
    if wanted and named and not {wanted, settings.cluster_id} & {*named}:
        path = certificate_files(settings.certs, settings.name).cert
        words = f"it is of cluster {', '.join(named)}, and this node is of {wanted}"
        raise Misuse(f"{path}: {words}; renew it with rt certs renew {settings.name} --cluster ID")
