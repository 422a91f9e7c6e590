"""NodeSettings: how a node is configured."""

from dataclasses import dataclass, field, replace
from typing import Final

from rt.errors import Misuse
from rt.names import parse_node, parse_stream
from rt.net.addresses import PORT, parse_address
from rt.node.settings.agreement import AgreementSettings
from rt.node.settings.http import HttpSettings
from rt.node.settings.limits import NodeLimits
from rt.node.settings.storage import StorageSettings
from rt.node.settings.stream_entry import StreamEntry
from rt.position import FILE_BYTES_MAX
from sequencer.raft.consensus import VOTERS_MAX

STREAMS_MAX: Final = 256  # per process; each takes some seven threads


@dataclass(frozen=True, slots=True)
class NodeSettings:
    """A node's settings; each field is a key of its file, an environment variable and an option."""

    root: str = field(default="rt-node", metadata={"help": "Directory that holds the stream."})
    stream: str = field(default="stream", metadata={"help": "Name of the stream."})
    name: str = field(default="n1", metadata={"help": "Name of this node."})
    listen: str = field(
        default=f"127.0.0.1:{PORT}",
        metadata={"help": "Address to listen on; port 0 picks a free port."},
    )
    certs: str = field(
        default="certs", metadata={"help": "Directory of ca.pem, NAME.pem and NAME.key."}
    )
    members: tuple[str, ...] = field(
        default=(),
        metadata={
            "help": "The founding nodes as name=host:port, or all nodes if this one is added to a "
            "cluster; leave out for a single node. Later the nodes' log lists the members."
        },
    )
    cluster_id: str = field(
        default="",
        metadata={"help": "Id shared by all nodes of a cluster; rt cluster init writes it."},
    )
    streams: tuple[str, ...] = field(
        default=(),
        metadata={
            "help": "Further streams to serve at the same address, as NAME or NAME=ROOT for "
            "another directory, each with ;SETTING=VALUE for what is its own, such as "
            "ships=/data2/rt;reserve=20Gi. rt stream create makes them."
        },
    )
    agreement: AgreementSettings = field(default_factory=AgreementSettings)
    storage: StorageSettings = field(default_factory=StorageSettings)
    limits: NodeLimits = field(default_factory=NodeLimits)
    web: HttpSettings = field(default_factory=HttpSettings)

    def __post_init__(self) -> None:
        parse_stream(self.stream)
        parse_node(self.name)
        parse_address(self.listen, "listen")
        if self.members and not self.cluster_id:
            raise Misuse("members are given without a cluster_id; rt cluster init writes both")
        if len(self.member_names) > VOTERS_MAX + 1:
            raise Misuse(f"{len(self.members)} members; a stream is served by at most {VOTERS_MAX}")
        if self.members and self.name not in self.addresses:
            raise Misuse(f"name {self.name!r} is not among the members: {', '.join(self.members)}")

        self._check_streams()
        if self.is_alone and any(each.storage.lose_confirmed_on_power_cut
                                 for each in self.each_stream):  # fmt: skip
            raise Misuse(
                "lose_confirmed_on_power_cut needs other nodes: one that lost power learns from "
                "them what it had acknowledged"
            )

    def _check_streams(self) -> None:
        entries = [StreamEntry.parse(each) for each in self.streams]
        names = [self.stream, *(each.name for each in entries)]
        for name in names:
            if names.count(name) > 1:
                raise Misuse(f"streams names {name!r}, which is served already; name each once")
        if len(names) > STREAMS_MAX:
            raise Misuse(f"{len(names)} streams; a node serves at most {STREAMS_MAX}")
        for each in entries:
            each.storage(self.storage)

    @property
    def each_stream(self) -> list["NodeSettings"]:
        """The settings of each stream, the node's own first."""
        own = self if not self.streams else replace(self, streams=())
        return [own, *(self._of(StreamEntry.parse(each)) for each in self.streams)]

    def _of(self, entry: StreamEntry) -> "NodeSettings":
        return replace(
            self, stream=entry.name, root=entry.root or self.root, streams=(),
            cluster_id=f"{self.cluster_id}/{entry.name}" if self.cluster_id else "",
            storage=entry.storage(self.storage),
        )  # fmt: skip

    @property
    def addresses(self) -> dict[str, tuple[str, int]]:
        """The address of each member."""
        named = (each.partition("=") for each in self.members)
        return {parse_node(name): parse_address(address, "members") for name, _, address in named}

    @property
    def places(self) -> dict[str, str]:
        """The address of each member, as written in the settings."""
        named = (each.partition("=") for each in self.members)
        return {name: address for name, _, address in named}

    @property
    def address(self) -> tuple[str, int]:
        """The address to listen on."""
        return parse_address(self.listen)

    @property
    def member_names(self) -> list[str]:
        """The sorted names of all nodes of the cluster; only this node's if it runs alone."""
        return sorted(self.addresses) or [self.name]

    @property
    def founding_name(self) -> str:
        """The cluster's id, with other properties that all its nodes must share permanently.

        Nodes that roll the merged log at different sizes would write different logs, so they must
        not accept each other as members, and the size must never change.
        """
        name = self.cluster_id or self.stream
        file_bytes = self.storage.file_bytes
        return name if file_bytes == FILE_BYTES_MAX else f"{name} (file_bytes {file_bytes})"

    @property
    def is_alone(self) -> bool:
        """Whether this node is the whole cluster."""
        return len(self.member_names) == 1

    @property
    def merges_own_copies(self) -> bool:
        """Whether everything in the merged log was merged from this node's own copies.

        That holds for the only node of a cluster, unless the cluster was founded from a log: the
        messages of that log were merged from another cluster's copies.
        """
        return self.is_alone and not self.storage.founded_from
