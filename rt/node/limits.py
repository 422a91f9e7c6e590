"""NodeLimits: how much of a node strangers, and the holders of one certificate, may take."""

from dataclasses import dataclass, field
from typing import Final

from replicator.admission import ServerLimits
from rt.config.kinds import Seconds

_DEFAULT: Final = ServerLimits()


@dataclass(frozen=True, slots=True)
class NodeLimits:
    """The part of a node's settings that bounds its peers; docs/SECURITY.md gives the reasons."""

    connections: int = field(
        default=_DEFAULT.connections, metadata={"help": "Connections that are served at once."}
    )
    identity_connections: int = field(
        default=_DEFAULT.identity_connections,
        metadata={"help": "Connections that one certificate name may have at once."},
    )
    identity_connects_s: int = field(
        default=_DEFAULT.identity_connects_s,
        metadata={"help": "Connections, and so requests, a second of one certificate name."},
    )
    identity_sessions: int = field(
        default=_DEFAULT.identity_sessions,
        metadata={"help": "Different sessions that one certificate name may push within a day."},
    )
    handshakes: int = field(
        default=_DEFAULT.handshakes, metadata={"help": "TLS handshakes in progress at once."}
    )
    address_handshakes: int = field(
        default=_DEFAULT.address_handshakes,
        metadata={"help": "TLS handshakes in progress from one address."},
    )
    handshake_s: Seconds = field(
        default=_DEFAULT.handshake_s, metadata={"help": "Time for a whole TLS handshake."}
    )

    @property
    def server(self) -> ServerLimits:
        """What the node's server enforces; `Misuse` names a setting that is out of range."""
        return ServerLimits(
            connections=self.connections,
            identity_connections=self.identity_connections,
            identity_connects_s=self.identity_connects_s,
            identity_sessions=self.identity_sessions,
            handshakes=self.handshakes,
            address_handshakes=self.address_handshakes,
            handshake_s=self.handshake_s,
        )
