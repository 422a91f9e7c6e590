"""NodePort: the address at which a node serves all its streams, with one listener."""

from dataclasses import dataclass

from replicator.serve.server import Server
from replicator.serve.streams import ServedStream, Streams
from replicator.sink.columns_check import ColumnsCheck
from replicator.sink.late_check import LateChecker
from rt.net.authority.certificates import certificate_files
from rt.net.loop.event_loop import EventLoop
from rt.net.tls import Contexts, offering, server_context
from rt.node.agree.idle_heartbeat import PULSE_ALPN, StreamHeartbeat, process_heartbeat
from rt.node.settings.node import NodeSettings


class NodePort:
    """NodePort: a listener, and what all streams share: certificates, grants, handshakes, limits.

    Threads: every field is set once, in `__init__`, and any thread may call any method except
        `start` and `stop`, which belong to the owner.
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
        self.loop = EventLoop()
        self.pulse = process_heartbeat(self.loop, settings.agreement, files)
        self.streams.shared = {PULSE_ALPN: self.pulse.serve}
        contexts = Contexts(
            files, lambda *paths: offering(server_context(*paths), *self.streams.protocols)
        )
        self.streams.changed = contexts.renew
        columns = ColumnsCheck()
        self.late = LateChecker(columns.late)
        try:
            self.server = Server(
                settings.address, contexts, self.streams, settings.limits.server(), columns,
                loop=self.loop,
            )  # fmt: skip
        except BaseException:
            self.close()
            raise

    def start(self) -> None:
        """Start accepting connections."""
        self.server.start()
        self.late.start()
        self.pulse.start()

    def stop(self) -> None:
        """End all connections."""
        self.pulse.stop()
        self.server.stop()
        self.late.stop()

    def close(self) -> None:
        """End the event loop; the streams have stopped."""
        self.loop.stop()


@dataclass(frozen=True, slots=True)
class StreamPort:
    """StreamPort: one stream's part of a port.

    Attributes:
        port: the port.
        served: the stream.
        pulse: the stream's part of the port's idle heartbeat.
        is_whole: whether the port serves only this stream, and starts and stops with it.
    """

    port: NodePort
    served: ServedStream
    pulse: StreamHeartbeat
    is_whole: bool

    def start(self) -> None:
        """Start serving the stream."""
        self.port.streams.add(self.served)
        if self.is_whole:
            self.port.start()

    def stop(self, why: str = "") -> None:
        """End the stream's connections; peers that ask for it later receive `why`."""
        self.pulse.leave()
        if self.is_whole:
            self.port.stop()
            return
        stream = self.served.host.stream
        self.port.streams.drop(stream, why or "it is stopping")
        self.port.server.end(stream)

    def close(self) -> None:
        """Release what the stream needed until it had stopped."""
        if self.is_whole:
            self.port.close()
