"""A machine on which one process serves several streams: a disk, a network name, one life."""

import logging
import posixpath
from collections.abc import Callable, Mapping
from functools import partial
from random import Random
from typing import TYPE_CHECKING, cast

from replicator.host import Host
from replicator.limits.quotas import NO_QUOTA
from replicator.serve.client_record import ServerRecord
from replicator.serve.streams import Handler, ServedStream, Streams
from rt.names import stream_directory
from rt.net.admin import ADMIN_ALPN
from sequencer.peers.versions import alpn_of

from .disk import Directory, SimDisk

if TYPE_CHECKING:
    from .shared_node import SharedNode

CLUSTER = "5" * 32
STREAMS = ("flights", "trains")
_ROOT = "data"
_RECORD = logging.getLogger("replicator.server")


class SharedMachine:
    """What the nodes of several streams share.

    Attributes:
        disk: the file system; each stream has a directory on it.
        streams: what the process serves now, as `rt.node.host.port.NodePort` has it.
        nodes: by stream, the node.
    """

    def __init__(self, chance: Random, *, has_a_disk_each: bool) -> None:
        self.disk = SimDisk(chance, cleans_failed_pages=True)
        self.streams = Streams()
        self.nodes: dict[str, SharedNode] = {}
        self.paused_until_us = 0
        self.rate = 1.0
        self.disk_delay_us = 500
        self._has_a_disk_each = has_a_disk_each
        self._full: dict[str, bool] = {}

    def directory_of(self, stream: str, chance: Random) -> SimDisk:
        """Return a stream's directory as a disk."""
        return StreamDisk(self.disk, stream_directory(_ROOT, stream), chance)

    def is_full(self, stream: str) -> bool:
        """Whether the file system of a stream's directory is full."""
        return self._full.get(self._file_system(stream), False)

    def fill(self, stream: str, full: bool) -> None:
        """Fill that file system, or give it room."""
        self._full[self._file_system(stream)] = full

    def _file_system(self, stream: str) -> str:
        return stream if self._has_a_disk_each else ""

    def serve(self, node: "SharedNode") -> None:
        """Begin to serve a stream."""
        stream = node.world.stream_name
        peers = {alpn_of(f"{CLUSTER}/{stream}"): partial(node.hear_from, node.world)}
        self.nodes[stream] = node
        served = ServedStream(
            cast("Host", _Host(stream)),
            ServerRecord(_RECORD),
            cast("Mapping[str, Handler]", peers),  # of messages, not of connections
            tuple(peers),
            cast("Mapping[str, Handler]", {ADMIN_ALPN: node.administer}),
            is_own=stream == STREAMS[0],
        )
        self.streams.add(served)

    def drop(self, stream: str, why: str) -> None:
        """Serve a stream no more, as `rt.node.host.stream_host.StreamHost` does if it fails."""
        self.streams.drop(stream, why)

    def end(self) -> None:
        """End the process: the next one serves nothing at first."""
        self.streams = Streams()

    def speaking(self, alpn: str) -> Callable[..., None] | None:
        """Return what takes the messages of a protocol; None if no stream here speaks it."""
        found = self.streams.speaking(alpn)
        return None if found is None else cast("Callable[..., None]", found[1])

    def named(self, stream: str) -> "SharedNode":
        """Return the node to which a pusher or puller of a stream is connected; or `Refused`."""
        return self.nodes[self.streams.named(stream).host.stream]


class _Host:
    """The parts of a node that routing needs."""

    def __init__(self, stream: str) -> None:
        self.stream = stream
        self.quota = lambda _publisher: NO_QUOTA


class StreamDisk(SimDisk):
    """A directory of a shared disk: operations fail for one stream, power fails for all."""

    def __init__(self, shared: SimDisk, path: str, chance: Random) -> None:
        shared.make_directory(path)
        self._shared, self._path = shared, path
        self._chance, self.cleans_failed_pages = chance, shared.cleans_failed_pages
        self.fault, self.reads = None, 0

    @property
    def _root(self) -> Directory:
        return self._shared.directory(self._path)

    @_root.setter
    def _root(self, root: Directory) -> None:
        above, name = posixpath.split(self._path)
        directory = self._shared.directory(above)
        directory.names[name] = root
        directory.settle()

    boots = property(lambda self: self._shared.boots)  # how often the machine was started

    def cut_power(self) -> None:
        """Cut the machine's power."""
        self.fault = None
        self._shared.cut_power()
