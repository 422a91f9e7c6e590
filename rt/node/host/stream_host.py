"""StreamHost: the streams of one node's process, a `Node` for each, behind one port."""

import logging
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from rt.about import speaking
from rt.errors import Misuse, RtError, spoken
from rt.node.agree.leadership import OnRole
from rt.node.host.node import Node
from rt.node.host.port import NodePort
from rt.node.settings.node import NodeSettings
from rt.position import Position
from rt.text import counted

_log: Final = logging.getLogger("rt.node")
_AT_ONCE: Final = 16  # streams that start or stop in parallel, since each waits for its disk


class StreamHost:
    """StreamHost: starts a `Node` per stream, and stops one that fails while the others continue.

    Streams share the listener, the certificates, the grants and the limits on peers. Each stream
    has its own directory, journal, consensus and threads, so damage to one does not affect another.

    Threads: the owner's thread calls every method and alone uses the fields, except that any thread
        may call `stuck` and read `settings`, `nodes` and `failures`, which are replaced whole.
        Several threads make and start streams in parallel; these threads share only `_port`, which
        is open by then.
    """

    def __init__(self, settings: NodeSettings, *, on_role: OnRole | None = None) -> None:
        """Recover what is on disk; `start` begins to serve. Arguments as for `Node`.

        Raises:
            Misuse, CorruptLog, Refused, OSError: as for `Node`, if there is a single stream, or if
                none of several can be served.
        """
        self.settings = settings
        self.failures: Mapping[str, Exception] = {}  # by stream
        self.nodes: Mapping[str, Node] = {}
        self._on_role = on_role
        self._port: NodePort | None = None  # opened after a directory is locked
        left, made = list(settings.each_stream), list[Node | Exception]()
        while left and self._port is None:
            made.append(self._made(left.pop(0)))
        with ThreadPoolExecutor(_AT_ONCE, "start") as pool:
            made += pool.map(self._made, left)
        for each, node in zip(settings.each_stream, made, strict=True):
            self._keep(each.stream, node)
        if not self.nodes:
            self._close_port()
            raise next(iter(self.failures.values()))

    @property
    def address(self) -> tuple[str, int]:
        """The address that the process listens on."""
        return self._open_port().server.address

    @property
    def own(self) -> Node:
        """The node of the first served stream."""
        return next(iter(self.nodes.values()))

    def start(self) -> None:
        """Begin to serve."""
        nodes = self.nodes
        with ThreadPoolExecutor(_AT_ONCE, "start") as pool:
            outcomes = list(pool.map(_started, nodes.values()))
        for (name, node), failure in zip(nodes.items(), outcomes, strict=True):
            self._see(name, node, failure)
        if not self.nodes:
            raise next(iter(self.failures.values()))
        self._open_port().start()

    def turn(self) -> bool:
        """Stop the streams that have failed; return whether any are left."""
        for name, node in list(self.nodes.items()):
            if node.wait(0):
                self._remove(name, node)  # so that the stream acknowledges nothing more
                self._fail(name, node.failure or Misuse("it has stopped"))
        return bool(self.nodes)

    def stuck(self) -> str:
        """Return the name of a loop that has not run for 30 s, and its stream; "" if none is."""
        for name, node in self.nodes.items():
            if loop := node.stuck():
                return loop if len(self.nodes) == 1 else f"{loop} of stream {name}"
        return ""

    def stop(self) -> dict[str, Position]:
        """Stop all streams; return the end of each stream's merged log."""
        nodes, self.nodes = self.nodes, {}
        with ThreadPoolExecutor(_AT_ONCE, "stop") as pool:
            list(pool.map(Node.stop, nodes.values()))
        self._close_port()
        failed = {name: node.failure for name, node in nodes.items() if node.failure is not None}
        self.failures = {**self.failures, **failed}
        return {name: node.merged_end for name, node in nodes.items()}

    def reload(self, settings: NodeSettings) -> list[str]:
        """Apply changed settings as `Node.reload` does, and start and stop streams.

        Returns:
            The names of changed settings that need a restart.

        Raises:
            Misuse: a limit is out of range.
        """
        own = self.settings.stream
        if settings.stream != own:  # the settings describe another node
            return ["stream"]
        wanted = {each.stream: each for each in settings.each_stream}
        left: set[str] = set()
        for name, node in list(self.nodes.items()):
            if name in wanted:
                left.update(node.reload(wanted[name]))
            else:
                self._remove(name, node)
                words = "stream %s is served no more; its files stay in %s"
                _log.info(words, name, node.directory.path)
        self.failures = {name: why for name, why in self.failures.items() if name in wanted}
        for name in wanted.keys() - self.nodes.keys():
            self._begin(wanted[name])
        self.settings = settings
        return sorted(left)

    def _open_port(self) -> NodePort:
        """Return the port, opening it when the first stream asks for it."""
        if self._port is None:
            self._port = NodePort(self.settings)
        return self._port

    def _close_port(self) -> None:
        if self._port is not None:
            self._port.stop()
            self._port.loop.stop()

    def _made(self, settings: NodeSettings) -> Node | Exception:
        """Make and return a stream's node, or return the error; called by threads in parallel."""
        try:
            about = f"stream {settings.stream}: " if self.settings.streams else ""
            with speaking(about):
                return Node(
                    settings, on_role=self._on_role, port=self._open_port, about=about,
                )  # fmt: skip
        except (RtError, OSError) as error:
            return error

    def _keep(self, name: str, made: Node | Exception) -> None:
        if isinstance(made, Exception):
            self._fail(name, made)
        else:
            self.nodes = {**self.nodes, name: made}

    def _begin(self, settings: NodeSettings) -> None:
        kept = {name: why for name, why in self.failures.items() if name != settings.stream}
        self.failures = kept
        self._keep(settings.stream, self._made(settings))
        if node := self.nodes.get(settings.stream):
            self._see(settings.stream, node, _started(node))
        if settings.stream in self.nodes:
            _log.info("stream %s is served from now on", settings.stream)

    def _see(self, name: str, node: Node, failure: Exception | None) -> None:
        """If a stream could not be started, remove it and record why; the others continue."""
        if failure is not None:
            self._remove(name, node)
            self._fail(name, failure)

    def _remove(self, name: str, node: Node) -> None:
        self.nodes = {each: kept for each, kept in self.nodes.items() if each != name}
        node.stop()

    def _fail(self, name: str, error: Exception) -> None:
        self.failures = {**self.failures, name: error}
        if self._port is not None:
            streams, why = self._port.streams, spoken(error)
            self._port.loop.call(lambda: streams.drop(name, why))
        if self.settings.streams:
            count = len(self.nodes)
            rest = f"{counted(count, 'other stream')} {'is' if count == 1 else 'are'}"
            _log.critical("stream %s is not served: %s; %s", name, spoken(error), rest)


def _started(node: Node) -> Exception | None:
    """Start a node; return the error if that fails, otherwise None."""
    try:
        node.start()
    except (RtError, OSError) as error:
        return error
    return None
