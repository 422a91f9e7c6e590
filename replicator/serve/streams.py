"""Streams: the streams a server serves, and which stream a connection is about."""

import json
import ssl
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from replicator.host import Host
from replicator.limits.quotas import Quotas
from replicator.serve.client_record import ServerRecord
from rt.errors import Misuse, Refused
from rt.names import shown
from rt.net.authority.identity import NodeObjection, PeerIdentity
from rt.net.exchange import send_all

# Takes over a connection from its thread; calls its argument once the connection has ended.
Kept = Callable[[Callable[[], None]], None]
Handler = Callable[[ssl.SSLSocket, PeerIdentity], Kept | None]
_ANSWER_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class ServedStream:
    """ServedStream: one stream of a server.

    Attributes:
        host: the node that serves the stream.
        record: its clients, and its refusals.
        others: handlers of protocols other than replication, by ALPN name.
        greets: the ALPN names of the protocols that unknown nodes may speak.
        questions: handlers of questions about a stream, by the ALPN name of the question. A peer
            that negotiates `NAME/STREAM` asks about that stream; with `NAME`, it asks about the
            server's only stream.
        is_own: whether publishers whose grants name no stream may push to it.
        door: returns why a node is not admitted; if None, the host's members are admitted.
        outdated: takes a protocol's ALPN name, and returns why a node may not speak the protocol;
            "" if it may.
        says: returns signed statements that a log has ended and another continues it, to send to
            each peer.
        hears: called with such a statement from a peer; raises `Refused` if the statement says that
            the served log has ended.
        quotas: the quotas of its publishers.
    """

    host: Host
    record: ServerRecord
    others: Mapping[str, Handler] = field(default_factory=lambda: MappingProxyType({}))
    greets: Collection[str] = ()
    questions: Mapping[str, Handler] = field(default_factory=lambda: MappingProxyType({}))
    is_own: bool = True
    door: NodeObjection | None = None
    outdated: Callable[[str], str] = lambda _alpn: ""
    says: Callable[[], Sequence[str]] = tuple
    hears: Callable[[str], None] = lambda _text: None
    quotas: Quotas = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "quotas", Quotas(self.host.quota))

    def objection(self, peer: PeerIdentity, alpn: str = "", *, is_live: bool = False) -> str:
        """Return why a node is not admitted, or ""; arguments as for `Streams.objection`."""
        if self.door is not None:
            why = self.door(peer, greets=alpn in self.greets, is_live=is_live)
            return why or self.outdated(alpn)
        is_known = self.host.is_member(peer.name)
        return "" if is_known else f"{peer.name!r} is not a node of this cluster"


@dataclass(frozen=True, slots=True)
class _Routes:
    """Decides which stream handles a connection; never changed, but replaced as a whole."""

    streams: Mapping[str, ServedStream] = field(default_factory=dict)
    failed: Mapping[str, str] = field(default_factory=dict)  # why a stream is no longer served
    by_alpn: Mapping[str, tuple[str, Handler]] = field(default_factory=dict)  # stream and handler


class Streams:
    """Streams: the streams of a server, which may come and go while it serves.

    Threads: one thread at a time calls `add` and `drop`; in a running process, the loop does. Any
        thread may call the rest, which only reads `_routes`. `_routes` is replaced as a whole.
        `changed` and `shared` are set before the first stream is added.
    """

    def __init__(self, *served: ServedStream) -> None:
        """Serve these streams; `add` adds others."""
        self.changed: Callable[[], None] = lambda: None  # called when `protocols` may have changed
        self.shared: Mapping[str, Handler] = {}  # by ALPN, handlers for all streams, for any node
        self._routes = _Routes()
        self._has_several = False  # once true, questions must name their stream
        for each in served:
            self.add(each)

    def add(self, served: ServedStream) -> None:
        """Serve a stream from now on.

        Raises:
            Misuse: the stream is already served, or an ALPN name in its `others` already belongs to
                another stream.
        """
        name = served.host.stream
        now = self._routes
        if name in now.streams:
            raise Misuse(f"stream {name!r} is served already")
        if taken := served.others.keys() & now.by_alpn.keys():
            other, _ = now.by_alpn[min(taken)]
            raise Misuse(f"stream {name!r} cannot be told from {other!r}; name it otherwise")
        failed = {each: why for each, why in now.failed.items() if each != name}
        self._replace({**now.streams, name: served}, failed)

    def drop(self, name: str, why: str = "") -> None:
        """Stop serving a stream; operators that ask for it later receive the reason `why`."""
        now = self._routes
        streams = {each: served for each, served in now.streams.items() if each != name}
        self._replace(streams, {**now.failed, name: why} if why else now.failed)

    @property
    def every(self) -> Collection[ServedStream]:
        """All streams that are served."""
        return self._routes.streams.values()

    @property
    def protocols(self) -> tuple[str, ...]:
        """The ALPN names of all protocols besides replication, in order of preference."""
        return tuple(self._routes.by_alpn)

    def named(self, name: str, peer: PeerIdentity | None = None) -> ServedStream:
        """Return a stream by its name; `Refused` if it is not served.

        Only operators learn why a stream is not served.

        Args:
            name: the name that the peer sent.
            peer: the peer that asks.
        """
        routes = self._routes
        found = routes.streams.get(name)
        if found is not None:
            return found
        if why := routes.failed.get(name):
            raise Refused("stopping", _not_served(name, why, peer))
        if len(routes.streams) == 1:
            [only] = routes.streams
            raise Refused("stream", f"this node serves the stream {only!r} and no other")
        raise Refused("stream", f"this node serves no stream {shown(name)}")

    def speaking(self, alpn: str | None) -> tuple[str, Handler] | None:
        """Return the stream and the handler of a protocol; None if the protocol is unknown.

        The stream is "" for a protocol that serves all streams.
        """
        return self._routes.by_alpn.get(alpn or "")

    def objection(
        self, peer: PeerIdentity, alpn: str, stream: str = "", *, is_live: bool = False
    ) -> str:
        """Return why a node may not speak a protocol; "" if it may.

        Args:
            peer: the node.
            alpn: the ALPN name of the protocol; "" for the replication protocol.
            stream: the stream, if known; if "", the one that the protocol belongs to, or any
                stream.
            is_live: whether the node is connected already.
        """
        routes = self._routes
        named = stream or routes.by_alpn.get(alpn, ("", None))[0]
        about = [routes.streams[named]] if named in routes.streams else routes.streams.values()
        why = "no stream is served here now"
        for each in about:
            if not (why := each.objection(peer, alpn, is_live=is_live)):
                break  # a process may serve hundreds of streams
        return why

    def _replace(self, streams: Mapping[str, ServedStream], failed: Mapping[str, str]) -> None:
        """Route connections to these streams from now on, and call `changed`."""
        self._has_several = self._has_several or len(streams) + len(failed) > 1
        routes: dict[str, tuple[str, Handler]] = {}
        unnamed: dict[str, tuple[str, Handler]] = {}  # last: a peer may offer both
        for name, served in streams.items():
            routes |= {alpn: (name, handler) for alpn, handler in served.others.items()}
            for question, handler in served.questions.items():
                routes[f"{question}/{name}"] = name, handler
                unnamed[question] = ("", self._refuse) if self._has_several else (name, handler)
        shared = {alpn: ("", handler) for alpn, handler in self.shared.items()}
        self._routes = _Routes(streams, failed, routes | shared | unnamed)
        self.changed()

    def _refuse(self, sock: ssl.SSLSocket, peer: PeerIdentity) -> None:
        """Refuse a question that names a stream that is not served, or names none of several."""
        routes = self._routes
        words = "this node serves several streams, and not the one that is asked for"
        for name, why in routes.failed.items():
            words += f"; {_not_served(name, why, peer)}"
        with sock:
            code = "stopping" if routes.failed else "stream"  # the peer may mean one of these
            answer = {"error": words, "code": code}
            send_all(sock, json.dumps(answer).encode(), time.monotonic() + _ANSWER_S)


def _not_served(name: str, why: str, peer: PeerIdentity | None) -> str:
    """Return the error text for a stream that failed; only operators get the reason.

    The reason may name files of this machine.
    """
    if peer is not None and peer.may_operate:
        return f"stream {name!r} is not served now: {why}"
    return f"stream {name!r} is not served now; the node's log says why"
