"""NodeSettings: how a node is configured."""

from dataclasses import dataclass, field
from typing import Final

from rt.errors import Misuse
from rt.kinds import Bytes, Seconds
from rt.limits import KIB
from rt.names import parse_node, parse_stream, shown
from rt.position import FILE_BYTES_MAX

PORT: Final = 7420


@dataclass(frozen=True, slots=True)
class NodeSettings:
    """Everything a node is told; each field is a key of the file, a variable and an option."""

    root: str = field(default="rt-node", metadata={"help": "Directory that holds the stream."})
    stream: str = field(default="stream", metadata={"help": "Name of the stream."})
    name: str = field(default="n1", metadata={"help": "Name of this node."})
    listen: str = field(
        default=f"127.0.0.1:{PORT}", metadata={"help": "Address to serve at; port 0 takes any."}
    )
    certs: str = field(
        default="certs", metadata={"help": "Directory of ca.pem, NAME.pem and NAME.key."}
    )
    members: tuple[str, ...] = field(
        default=(), metadata={"help": "All nodes as name=host:port; none for a node of its own."}
    )
    cluster_id: str = field(
        default="", metadata={"help": "Id that all nodes of a cluster share; from cluster init."}
    )
    file_bytes: Bytes = field(
        default=FILE_BYTES_MAX, metadata={"help": "A merged file rolls before it passes this."}
    )
    tick_s: Seconds = field(
        default=0.02, metadata={"help": "Unit of the consensus timers; 5 make a heartbeat."}
    )
    snapshot_s: Seconds = field(
        default=5.0, metadata={"help": "How often the sequencer's state is saved."}
    )

    def __post_init__(self) -> None:
        parse_stream(self.stream)
        parse_node(self.name)
        parse_address(self.listen)
        if not 64 * KIB <= self.file_bytes <= FILE_BYTES_MAX:
            raise Misuse(f"file_bytes is {self.file_bytes}; use {64 * KIB} to {FILE_BYTES_MAX}")
        if not 0.001 <= self.tick_s <= 1:
            raise Misuse(f"tick_s is {self.tick_s}; use 0.001 to 1")
        if not 0.1 <= self.snapshot_s <= 3600:
            raise Misuse(f"snapshot_s is {self.snapshot_s}; use 0.1 to 3600")
        if self.members and self.name not in self.member_names:
            raise Misuse(f"name {self.name!r} is not among the members: {', '.join(self.members)}")

    @property
    def address(self) -> tuple[str, int]:
        """Where to listen."""
        return parse_address(self.listen)

    @property
    def member_names(self) -> list[str]:
        """The names of all nodes, this one's alone where no members are given."""
        return sorted(parse_node(each.partition("=")[0]) for each in self.members) or [self.name]


def parse_address(text: str) -> tuple[str, int]:
    """Read `host:port`; `Misuse` if it is none.

    >>> parse_address("[::1]:7420")
    ('::1', 7420)
    """
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise Misuse(f"not an address: {shown(text)}; use host:port, such as localhost:{PORT}")
    return host.strip("[]"), int(port)
