"""NodePort: the address at which a node serves all its streams, with one listener."""

from replicator.serve.server import Server
from replicator.serve.streams import Streams
from replicator.sink.columns_check import ColumnsCheck
from replicator.sink.late_check import late_checks
from rt.log.write.recent_frames import FrameMemory
from rt.net.authority.certificates import certificate_files
from rt.net.loop.event_loop import EventLoop
from rt.net.tls import Contexts, client_context, offering, server_context
from rt.node.agree.idle_heartbeat import IDLE_HEARTBEAT_ALPN, ProcessHeartbeat
from rt.node.settings.node import NodeSettings


class NodePort:
    """NodePort: a listener, with the certificates, grants and limits that all streams share.

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
        own = Contexts(files, lambda *paths: offering(client_context(*paths), IDLE_HEARTBEAT_ALPN))
        timing = settings.agreement  # idle heartbeats are as frequent as a busy stream's
        self.idle_heartbeat = ProcessHeartbeat(
            self.loop, own.current, beat_s=timing.heartbeat_s, lost_s=timing.election_s
        )
        self.streams.shared = {IDLE_HEARTBEAT_ALPN: self.idle_heartbeat.serve}
        contexts = Contexts(
            files, lambda *paths: offering(server_context(*paths), *self.streams.protocols)
        )
        self.streams.changed = contexts.renew
        columns = ColumnsCheck()
        self.late = columns.late
        self._late_checks = late_checks(self.late, self.loop)
        try:
            self.server = Server(
                settings.address, contexts, self.streams, settings.limits.server(), columns,
                loop=self.loop,
            )  # fmt: skip
        except BaseException:
            self.loop.stop()
            raise
        held = self.server.memory.of("frames")
        self.frames = FrameMemory(held.take, held.give_back)

    def start(self) -> None:
        """Start accepting connections."""
        self.server.start()
        self.idle_heartbeat.start()

    def stop(self) -> None:
        """End all connections."""
        self.idle_heartbeat.stop()
        self.server.stop()
        self._late_checks.stop()
