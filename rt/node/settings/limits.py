"""NodeLimits: how much of a node's capacity its peers may use."""

from dataclasses import asdict, dataclass, field
from typing import Final

from replicator.limits.admission import ServerLimits
from rt.config.kinds import Bytes, Seconds

_DEFAULT: Final = ServerLimits()


@dataclass(frozen=True, slots=True)
class NodeLimits:
    """NodeLimits: limits on unknown peers and on each certificate name; see docs/SECURITY.md."""

    connections: int = field(
        default=_DEFAULT.connections, metadata={"help": "Connections served at once."}
    )
    identity_connections: int = field(
        default=_DEFAULT.identity_connections,
        metadata={"help": "Connections that one certificate name may have at once."},
    )
    identity_connects_s: int = field(
        default=_DEFAULT.identity_connects_s,
        metadata={"help": "New connections, and so requests, per second of one certificate name."},
    )
    identity_sessions: int = field(
        default=_DEFAULT.identity_sessions,
        metadata={"help": "Different sessions that one certificate name may push within a day."},
    )
    identity_bytes_s: Bytes = field(
        default=_DEFAULT.identity_bytes_s,
        metadata={"help": "Bytes per second that one certificate name may send and receive."},
    )
    identity_messages_s: int = field(
        default=_DEFAULT.identity_messages_s,
        metadata={"help": "Messages per second of one certificate name while it pushes or pulls."},
    )
    identity_memory_bytes: Bytes = field(
        default=_DEFAULT.identity_memory_bytes,
        metadata={"help": "Bytes of messages that one certificate name may have on their way."},
    )
    handshakes: int = field(
        default=_DEFAULT.handshakes, metadata={"help": "TLS handshakes in progress at once."}
    )
    address_handshakes: int = field(
        default=_DEFAULT.address_handshakes,
        metadata={"help": "TLS handshakes in progress from one address."},
    )
    handshake_s: Seconds = field(
        default=_DEFAULT.handshake_s, metadata={"help": "Time limit for a whole TLS handshake."}
    )

    def __post_init__(self) -> None:
        self.server()

    def server(self) -> ServerLimits:
        """Return the limits that the node's server enforces.

        Raises:
            Misuse: a limit is out of range; the message names it.
        """
        return ServerLimits(**asdict(self))
