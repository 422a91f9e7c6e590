"""NodeSettings: how a node is configured."""

from dataclasses import dataclass, field
from typing import Final

from rt.config.kinds import Bytes, Seconds
from rt.errors import Misuse
from rt.limits import KIB, MIB
from rt.names import parse_node, parse_stream, shown
from rt.node.engine import Engine
from rt.node.limits import NodeLimits
from rt.position import FILE_BYTES_MAX
from sequencer.raft.consensus import MEMBERS_ALLOWED
from sequencer.raft.core import Settings

PORT: Final = 7420
_HEARTBEAT_TICKS: Final = 5


@dataclass(frozen=True, slots=True)
class NodeSettings(NodeLimits):
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
    consensus: Engine = field(
        default=Engine.RAFT, metadata={"help": "Engine that agrees: raft, or raftos (extra step)."}
    )
    file_bytes: Bytes = field(
        default=FILE_BYTES_MAX, metadata={"help": "A merged file rolls before it passes this."}
    )
    heartbeat_s: Seconds = field(
        default=0.1, metadata={"help": "Between two signs of life of a leader."}
    )
    election_s: Seconds = field(
        default=0.5, metadata={"help": "Silence after which a node stands; drawn up to twice that."}
    )
    missing_s: Seconds = field(
        default=2.0,
        metadata={
            "help": "Wait for a publisher's bytes; half of it before asking a node for them."
        },
    )
    snapshot_s: Seconds = field(
        default=5.0, metadata={"help": "How often the sequencer's state is saved."}
    )
    file_age_s: Seconds = field(
        default=86_400.0,
        metadata={
            "help": "A merged file rolls after this, or after the policy's time; 0 is never."
        },
    )
    fold_s: Seconds = field(
        default=0.0,
        metadata={"help": "Remove an empty archived file after this; 0 keeps it for ever."},
    )
    reserve: Bytes = field(
        default=256 * MIB, metadata={"help": "Refuse new data while less of the disk is free."}
    )

    def __post_init__(self) -> None:
        _ = self.server  # which checks the limits
        parse_stream(self.stream)
        parse_node(self.name)
        parse_address(self.listen, "listen")
        if self.consensus not in list(Engine):
            raise Misuse(f"consensus is {shown(self.consensus)}; use {' or '.join(Engine)}")
        if not 64 * KIB <= self.file_bytes <= FILE_BYTES_MAX:
            raise Misuse(f"file_bytes is {self.file_bytes}; use {64 * KIB} to {FILE_BYTES_MAX}")
        if (
            not 0.005 <= self.heartbeat_s <= 60
            or not 2 * self.heartbeat_s <= self.election_s <= 600
        ):
            raise Misuse(
                f"heartbeat_s is {self.heartbeat_s:g} and election_s {self.election_s:g}; use at "
                "least 5ms, and at least twice the heartbeat for the election"
            )
        if not 0.1 <= self.snapshot_s <= 3600:
            raise Misuse(f"snapshot_s is {self.snapshot_s}; use 0.1 to 3600")
        if self.file_age_s and self.file_age_s < 1:
            raise Misuse(f"file_age_s is {self.file_age_s:g}; use 1 or more, or 0 for never")
        if self.members and not self.cluster_id:
            raise Misuse("members are given without a cluster_id; rt cluster init writes both")
        if len(self.member_names) not in MEMBERS_ALLOWED:
            raise Misuse(f"{len(self.members)} members; a stream is served by 1, 3, 5 or 7 nodes")
        if self.members and self.name not in self.addresses:
            raise Misuse(f"name {self.name!r} is not among the members: {', '.join(self.members)}")

    @property
    def addresses(self) -> dict[str, tuple[str, int]]:
        """Where each member listens."""
        named = (each.partition("=") for each in self.members)
        return {parse_node(name): parse_address(address, "members") for name, _, address in named}

    @property
    def address(self) -> tuple[str, int]:
        """Where to listen."""
        return parse_address(self.listen)

    @property
    def tick_s(self) -> float:
        """Unit of the consensus timers."""
        return self.heartbeat_s / _HEARTBEAT_TICKS

    @property
    def timers(self) -> Settings:
        """The consensus timers in ticks."""
        election = round(self.election_s / self.tick_s)
        return Settings(heartbeat_ticks=_HEARTBEAT_TICKS, election_ticks=election)

    @property
    def member_names(self) -> list[str]:
        """The names of all nodes, this one's alone where no members are given."""
        return sorted(self.addresses) or [self.name]


def parse_address(text: str, setting: str = "") -> tuple[str, int]:
    """Read `host:port`; `Misuse`, which names the setting, if it is none.

    >>> parse_address("[::1]:7420")
    ('::1', 7420)
    """
    host, _, port = text.rpartition(":")
    is_port = port.isascii() and port.isdecimal()
    if not (is_port and _is_host(host.strip("[]"))) or int(port) > 65535:
        words = f"not an address: {shown(text)}; use host:port, such as localhost:{PORT}"
        raise Misuse(f"{setting} is {words}" if setting else words)
    return host.strip("[]"), int(port)


def _is_host(host: str) -> bool:
    """Whether it can be looked up at all: a name of labels, none of them empty or too long."""
    try:
        return bool(host.encode("idna"))
    except UnicodeError:
        return False
