"""ConnectionSettings: where a stream is, and which certificate to show."""

import os
from dataclasses import dataclass, field
from typing import Any, Final

from rt.errors import Misuse
from rt.names import parse_peer, parse_stream, stream_directory
from rt.net.addresses import PORT, parse_address
from rt.net.admin import ask_any
from rt.net.authority.certificates import certificate_files, check_own
from rt.net.authority.identity import CertificateRole
from rt.net.authority.successions import SUFFIX, Successions
from rt.net.authority.trust import trust_of
from rt.net.known_nodes import KnownNodes
from rt.net.tls import Contexts, client_context

_NODES_NAME: Final = ".nodes"  # no session has a name like this


@dataclass(frozen=True, slots=True)
class ConnectionSettings:
    """What a client needs to reach the nodes of a stream."""

    root: str = field(default="rt-data", metadata={"help": "Directory that holds the stream."})
    stream: str = field(default="stream", metadata={"help": "Name of the stream."})
    nodes: tuple[str, ...] = field(
        default=(f"localhost:{PORT}",), metadata={"help": "Address of a node; repeat for each."}
    )
    certs: str = field(
        default="certs", metadata={"help": "Directory of ca.pem, NAME.pem and NAME.key."}
    )
    identity: str = field(
        default="client", metadata={"help": "NAME of the certificate to present."}
    )

    def __post_init__(self) -> None:
        parse_stream(self.stream)
        parse_peer(self.identity)
        if not self.nodes:
            raise Misuse("nodes is empty; name at least one, such as localhost:7420")
        for node in self.nodes:
            parse_address(node, "nodes")

    def addresses(self) -> list[tuple[str, int]]:
        """Return host and port of each node; a node that is named twice is returned once."""
        return list(dict.fromkeys(parse_address(node) for node in self.nodes))

    def known_nodes(self, config: str = "") -> KnownNodes:
        """Return the nodes to use, from the settings and from a file that clients keep.

        Args:
            config: path of the configuration; the clients' file is in the same directory. If "",
                that file is next to the stream's data.
        """
        beside = os.path.join(stream_directory(self.root, self.stream), _NODES_NAME)
        path = f"{config}.{self.stream}{_NODES_NAME}" if config else beside
        ca = certificate_files(self.certs, self.identity).ca
        successions = Successions(
            self.stream, lambda: trust_of(ca).facts.authorities,
            f"{path.removesuffix(_NODES_NAME)}{SUFFIX}",
        )  # fmt: skip
        return KnownNodes(self.addresses(), path, successions=successions)

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """Ask the nodes in turn until one answers; errors as for `rt.net.admin.ask_any`."""
        return ask_any(self.addresses(), self.contexts(), request)

    def ask_latest(self, request: dict[str, Any]) -> dict[str, Any]:
        """Ask the leader, which knows all that any node has confirmed; errors as for `ask`."""
        return self.ask({**request, "latest": True})

    def contexts(self, *roles: CertificateRole, successions: Successions | None = None) -> Contexts:
        """Return TLS contexts that follow the certificate when it is renewed.

        Args:
            roles: the certificate must have one of these; any role will do if none is given.
            successions: statements of which log continues another, which each connection sends and
                receives; None to exchange no statements.

        Raises:
            Misuse: the certificate has another role, has expired, or cannot be read.
        """
        files = certificate_files(self.certs, self.identity)
        contexts = Contexts(files, client_context, self.stream)
        contexts.successions = successions
        check_own(files, roles or tuple(CertificateRole))
        return contexts
