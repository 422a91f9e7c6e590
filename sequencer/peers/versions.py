"""Versions: the versions of the nodes' protocol, and how a node introduces itself."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from rt.errors import PeerError
from rt.format.checksum import crc32
from rt.version import SOFTWARE

# Newest first; a connection uses the newest version that both sides list. Version 2: slices carry a
# digest, which a node of version 1 cannot read. Version 3: nodes greet each other, and a node whose
# greetings are not answered takes no part in the consensus. Version 4: the members may change.
# Version 6: a list of members has the term of its entry. Version 7: a report says how many sessions
# its other parts hold. Version 8: a node that dials introduces itself. Version 9: instructions may
# carry the bytes that they merge. Version 10: frames may have a column of headers. Version 11: the
# log can be sealed. Version 12: a policy may limit messages. These versions do not decide what a
# node may write; the cluster's level does (`sequencer.ledger.format_level`).
PEER_VERSIONS: Final = (12, 11, 10, 9, 8, 7)
INTRODUCED: Final = 8  # a node that dials introduces itself since this version
SOFTWARE_BYTES_MAX: Final = 64
_NAME: Final = "rt-peer"


def alpn_of(cluster: str, version: int = PEER_VERSIONS[0]) -> str:
    """Return the ALPN name of a version of the protocol between the nodes of one cluster.

    The name distinguishes these connections from replicators' on the same port. It includes the
    cluster, because nodes of two clusters may share an authority and have the same names. Without
    it, a node with a wrong address could connect to the other cluster unnoticed.
    """
    return f"{_NAME}/{version}/{crc32(cluster.encode()):08x}"


def alpns_of(cluster: str, versions: Sequence[int] = PEER_VERSIONS) -> tuple[str, ...]:
    """Return the ALPN names of these versions; a server takes the first that both sides offer."""
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
    """PeerVersion: the protocol and the software of another node that is connected to this one.

    Attributes:
        protocol: the version of the nodes' protocol that both nodes use.
        software: the software that the other node reports, such as `rt 0.2.0`; "" if the other node
            is too old to report it.
    """

    protocol: int
    software: str = ""

    @property
    def differs(self) -> str:
        """A sentence that says how the other node's version differs; "" if no difference shows."""
        if self.protocol < PEER_VERSIONS[0]:
            runs = self.software or "an older version of rt"
        elif self.software in ("", SOFTWARE):
            return ""
        else:
            runs = self.software
        return f"it runs {runs}, this node {SOFTWARE}; they speak version {self.protocol}"


def decode_software(data: bytes) -> str:
    """Return the text of an introduction; `PeerError` unless it is short and printable."""
    if len(data) <= SOFTWARE_BYTES_MAX and data.isascii():
        text = data.decode()
        if text.isprintable():
            return text
    raise PeerError(f"an introduction is not a printable text of {SOFTWARE_BYTES_MAX} bytes")
