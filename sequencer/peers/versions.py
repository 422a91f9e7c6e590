"""Versions: the versions of the nodes' protocol, and how a node introduces itself."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from rt.errors import PeerError
from rt.format.checksum import crc32
from rt.version import SOFTWARE

# Newest first; a connection speaks the newest that both sides list. Version 2: slices carry a
# digest, which a node of version 1 cannot read. Version 3: nodes greet each other, and one that is
# not answered takes no part. Version 4: the members may change. Version 6: a list of members has
# the term of its entry. Version 7: reports say how many sessions their other parts hold. Version 8:
# a node that dials introduces itself. Version 9: instructions may carry the bytes that they merge.
# Version 10: frames may have a column of headers. Version 11: the log can be sealed. Version 12: a
# policy may limit messages. What a node may write is decided by the cluster's level
# (`sequencer.ledger.format_level`), not by this.
PEER_VERSIONS: Final = (12, 11, 10, 9, 8, 7)
INTRODUCED: Final = 8  # since this version
SOFTWARE_BYTES_MAX: Final = 64
_NAME: Final = "rt-peer"


def alpn_of(cluster: str, version: int = PEER_VERSIONS[0]) -> str:
    """The ALPN name of a version of the protocol between the nodes of one cluster.

    It distinguishes these connections from replicators' on the same port. It includes the cluster,
    because nodes of two clusters may share an authority and have the same names: otherwise a wrong
    address could lead to a node of the other cluster without notice.
    """
    return f"{_NAME}/{version}/{crc32(cluster.encode()):08x}"


def alpns_of(cluster: str, versions: Sequence[int] = PEER_VERSIONS) -> tuple[str, ...]:
    """The ALPN names of all these versions; the server takes the first that both sides offer."""
    return tuple(alpn_of(cluster, version) for version in versions)


def version_of(alpn: str | None) -> int | None:
    """Return the version in a name made by `alpn_of`; None for any other name.

    >>> version_of(alpn_of("flights", 7)), version_of("rt-status/1"), version_of(None)
    (7, None, None)
    """
    name, _, rest = (alpn or "").partition("/")
    number = rest.partition("/")[0]
    return int(number) if name == _NAME and number.isdecimal() else None


@dataclass(frozen=True, slots=True)
class PeerVersion:
    """PeerVersion: another node's version while it is connected.

    Attributes:
        protocol: the version of the nodes' protocol that both speak.
        software: the software it reports, such as `rt 0.2.0`; "" if it is too old to report it.
    """

    protocol: int
    software: str = ""

    @property
    def differs(self) -> str:
        """A sentence naming both nodes' software if it differs; "" if it is the same or unknown."""
        if self.protocol < PEER_VERSIONS[0]:
            runs = self.software or "an older version of rt"
        elif self.software in ("", SOFTWARE):
            return ""
        else:
            runs = self.software
        return f"it runs {runs}, this node {SOFTWARE}; they speak version {self.protocol}"


def decode_software(data: bytes) -> str:
    """Return how a node introduces itself; `PeerError` unless it is a short, printable text."""
    if len(data) <= SOFTWARE_BYTES_MAX and data.isascii():
        text = data.decode()
        if text.isprintable():
            return text
    raise PeerError(f"an introduction is not a printable text of {SOFTWARE_BYTES_MAX} bytes")
