"""NodePort: the address at which a node serves, with one listener for all its streams."""

from dataclasses import dataclass

from replicator.server import Server
from replicator.streams import ServedStream, Streams
from rt.net.certificates import certificate_files
from rt.net.identity import PeerIdentity
from rt.net.tls import Contexts, offering, server_context
from rt.node.settings import NodeSettings


class NodePort:
    """A listener, and what all streams share: certificates, grants, handshakes and limits.

    Threads: every field is set once, in `__init__`, and any thread may call any method but `start`
        and `stop`, which belong to the owner.
    """

    def __init__(self, settings: NodeSettings) -> None:
        """Listen; nothing is served before `start`.

        Raises:
            OSError: the address is not available.
            Misuse: the certificates or the grants cannot be read.
        """
        files = certificate_files(settings.certs, settings.name)
        self.own_stream = settings.stream
        self.streams = Streams()
        contexts = Contexts(
            files, lambda *paths: offering(server_context(*paths), *self.streams.protocols)
        )
        self.streams.changed = contexts.renew
        self.server = Server(settings.address, contexts, self.streams, settings.limits.server())

    def start(self) -> None:
        """Begin to accept connections."""
        self.server.start()

    def stop(self) -> None:
        """End all connections."""
        self.server.stop()


@dataclass(frozen=True, slots=True)
class StreamPort:
    """One stream's part of a port.

    Attributes:
        port: which.
        served: the stream.
        is_whole: whether the port is this stream's alone, and begins and ends with it.
    """

    port: NodePort
    served: ServedStream
    is_whole: bool

    @property
    def address(self) -> tuple[str, int]:
        """Where it listens; the actual port if port 0 was asked for."""
        return self.port.server.address

    def start(self) -> None:
        """Begin to serve the stream."""
        self.port.streams.add(self.served)
        if self.is_whole:
            self.port.start()

    def stop(self, why: str = "") -> None:
        """End the stream's connections; `why` is what peers that ask for it later are answered."""
        if self.is_whole:
            self.port.stop()
            return
        stream = self.served.host.stream
        self.port.streams.drop(stream, why)
        self.port.server.end(stream)

    def hold_s(self, peer: PeerIdentity) -> float:
        """Count a request on a kept connection; return for how many seconds to hold it."""
        return self.port.server.request(peer)
