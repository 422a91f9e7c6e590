"""Pins: which files cursors and groups hold, while their owners are allowed to."""

import logging
from collections.abc import Callable, Mapping
from typing import Final

from archiver.lease import LEASE_S_MAX, Lease
from rt.names import PeerName
from rt.net.authority.certificates import certificate_files
from rt.net.authority.grants import Grants, grants_path
from rt.net.authority.identity import PULLING, CertificateRole, PeerIdentity
from rt.node.notes.reading_group import GROUP_NOTE, ReadingGroup, groups_of_notes
from rt.node.notes.registered_cursor import CURSOR_NOTE, RegisteredCursor, cursors_of_notes
from rt.node.settings.node import NodeSettings

_log: Final = logging.getLogger("rt.archiver")
_GRACE_S: Final = 600.0  # a mistake in the grants file must not cost a reader its files
_NS: Final = 1_000_000_000
_RENEWED_NS: Final = 24 * 3600 * _NS  # a note this old is stored again if its reader is alive

MayLease = Callable[[CertificateRole, PeerName], bool]


def may_lease_by(grants: Grants, stream: str) -> MayLease:
    """Return a function that tells whether the current grants let a peer hold files."""

    def may_lease(role: CertificateRole, name: PeerName) -> bool:
        return grants.granted(PeerIdentity(name, role)).may_lease(stream)

    return may_lease


def may_lease_on(settings: NodeSettings) -> MayLease:
    """Return a function that tells whether a node's grants let a peer hold files."""
    files = certificate_files(settings.certs, settings.name)
    return may_lease_by(Grants(grants_path(files.ca)), settings.stream)


def is_due(pin_bytes: int, stored_ns: int, now_ns: int) -> bool:
    """Whether a pin was stored over a day ago, and must be stored again if its reader is alive."""
    return bool(pin_bytes) and now_ns - stored_ns > _RENEWED_NS


class Pins:
    """Pins: tracks whether the owners of pins may still hold files.

    A pin lasts for a week after its reader was last heard from, as a lease does. On the leading
    node it ends ten minutes after its owner's grant was revoked. One thread at a time may use this.
    """

    def __init__(self, may_lease: MayLease) -> None:
        """Begin without pins; `may_lease` returns whether a peer may hold files now."""
        self._may_lease = may_lease
        self._ungranted_s: dict[str, float] = {}  # by note, when the grant was missed first
        self.over: frozenset[str] = frozenset()  # notes whose pins no longer hold files

    def check(self, notes: Mapping[str, str], now_s: float) -> None:
        """Check the grants; call this several times a minute."""
        since_s = {
            name: self._ungranted_s.get(name, now_s)
            for name, each in _pinning(notes).items()
            if not self._is_granted(each)
        }
        self._ungranted_s = since_s
        over = frozenset(name for name, at_s in since_s.items() if now_s - at_s >= _GRACE_S)
        for name in sorted(over - self.over):
            _log.warning("%s pins files no more: its owner is not granted leases any more", name)
        self.over = over

    def _is_granted(self, each: RegisteredCursor | ReadingGroup) -> bool:
        roles = [CertificateRole(each.role)] if each.role else list(PULLING)
        return any(self._may_lease(role, PeerName(each.owner)) for role in roles)


def pins_of(notes: Mapping[str, str], over: frozenset[str] = frozenset()) -> list[Lease]:
    """Return the pins of cursors and groups as leases, without the notes named in `over`."""
    return [
        Lease(
            f"{name.partition(' ')[0]}.{each.name}", each.position,
            each.stored_ns + LEASE_S_MAX * _NS, each.pin_bytes,
        )
        for name, each in _pinning(notes).items()
        if name not in over
    ]  # fmt: skip


def _pinning(notes: Mapping[str, str]) -> dict[str, RegisteredCursor | ReadingGroup]:
    found: dict[str, RegisteredCursor | ReadingGroup] = {}
    found |= {CURSOR_NOTE + each.name: each for each in cursors_of_notes(notes)}
    found |= {GROUP_NOTE + each.name: each for each in groups_of_notes(notes)}
    return {name: each for name, each in found.items() if each.pin_bytes}
