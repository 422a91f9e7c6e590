"""Mirror: serves a copy of a merged log to others, as a node serves its own."""

import json
import logging
import ssl
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final, Self

from replicator.host import Bell, Inbox
from replicator.limits.quotas import NO_QUOTA, Quota
from replicator.pull.end_asks import HOPS_MAX
from replicator.pull.end_question import covers
from replicator.pull.end_wait import EndWait
from replicator.serve.client_record import ServerRecord
from replicator.serve.feeds import LogFeed, LogFeeds
from replicator.serve.server import Server
from replicator.serve.streams import ServedStream, Streams
from rt.errors import CorruptLog, Refused, RtError, spoken
from rt.format.manifest import LogIdentity
from rt.log.files.damaged_files import DamagedFiles
from rt.log.files.identity import read_log_identity
from rt.names import PeerName
from rt.net.admin import ADMIN_ALPN, END
from rt.net.authority.identity import PeerIdentity
from rt.net.authority.successions import Successions
from rt.net.contexts import offering
from rt.net.exchange import Fields, decode_request, receive_line, send_all
from rt.net.loop.event_loop import EventLoop
from rt.net.tls import Contexts, server_context
from rt.position import Position

_log: Final = logging.getLogger(__name__)
_REQUEST_BYTES_MAX: Final = 4 << 10
_REQUEST_S: Final = 10.0  # to receive a request, and to send the answer
_UPSTREAM_S: Final = 10.0  # for a node's answer; the reader waits a little longer


class MirrorFeed:
    """MirrorFeed: the mirror's copy as one pulling connection sees it."""

    def __init__(self, feed: LogFeed, began_s: float, proven: Callable[[float], bool]) -> None:
        self.directory, self.damaged = feed.directory, feed.damaged
        self.end, self.recent, self.release = feed.end, feed.recent, feed.release
        self._began_s = began_s
        self._proven = proven

    def is_whole(self) -> bool:
        """Whether the copy is proven to have all that was merged when this connection began."""
        return self._proven(self._began_s)


def _objection(peer: PeerIdentity, *, greets: bool, is_live: bool) -> str:  # noqa: ARG001 - see `NodeObjection`
    """Return why a node is not admitted; "" if the node only asks a question (`greets`).

    A node whose standby is this mirror asks, before the node starts, if its log is still served.
    """
    return "" if greets else f"{peer.name!r} is not a node of this cluster"


class Mirror:
    """Mirror: the host of a server that only lets subscribers pull (`replicator.host.Host`).

    The server's certificate has the role `mirror`: publishers refuse such a server, and it cannot
    push, vote or operate anywhere. When a mirror is asked where the stream ends, it asks its own
    nodes. A mirror reports a puller's copy as complete only after the mirror's copy has reached the
    end that the nodes returned.

    Threads: connections call the host's methods; the thread that fills the copy calls `grown`.
        `_feeds` has rules of its own; `suspect`, `ask_end` and `successions` are set before
        `start`. The loop replaces `_proof`, which any thread may read, and `_asked`: no question
        begins while another is being answered, so that all requests that arrive meanwhile share the
        next one. The other fields never change.

    Attributes:
        loop: the event loop of the server; the client that fills the copy may use it, too.
    """

    is_first = False  # nothing is merged here

    def __init__(
        self, address: tuple[str, int], contexts: Contexts, stream: str, directory: str
    ) -> None:
        """Listen on an address; `start` begins to serve the copy.

        Args:
            address: host and port to listen on; for port 0 the system chooses a port, which the
                property `address` returns.
            contexts: contexts made by `rt.net.tls.server_context`, with a mirror's certificate.
            stream: the name of the stream.
            directory: the directory of the copy, which a `PullClient` fills.

        Raises:
            OSError: the address is not available.
        """
        self.stream = stream
        self.suspect: Callable[[CorruptLog], None] = lambda _damage: None  # starts the repair
        self.ask_end: Callable[[int], EndWait] | None = None  # `PullClient.ask_end`
        self.successions: Successions | None = None  # those of the client that fills the copy
        self._feeds = LogFeeds(directory)
        self._proof: EndWait | None = None  # the last question whether the copy is complete
        self._asked: EndWait | None = None  # the last question where the stream ends
        record = ServerRecord(logging.getLogger("replicator.server"))
        questions = (ADMIN_ALPN, f"{ADMIN_ALPN}/{stream}")
        served = ServedStream(
            self, record, greets=questions, questions={ADMIN_ALPN: self._serve_question},
            door=_objection, says=self._say, hears=self._hear,
        )  # fmt: skip
        streams = Streams(served)
        offered = Contexts(
            contexts.files, lambda *paths: offering(server_context(*paths), *streams.protocols)
        )
        self.loop = EventLoop()
        try:
            self._server = Server(address, offered, streams, loop=self.loop)
        except BaseException:
            self.loop.stop()
            raise

    @property
    def address(self) -> tuple[str, int]:
        """The host and port on which the mirror listens."""
        return self._server.address

    def start(self) -> None:
        """Begin to serve."""
        self._server.start()

    def stop(self) -> None:
        """End all connections, and the loop."""
        self._server.stop()
        self.loop.stop()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self.stop()

    def grown(self, end: Position) -> None:
        """Serve up to this position, and notify all connections."""
        self._feeds.grown(end)

    def restart(self) -> None:
        """End all connections, because the copy now belongs to another log and is shorter."""
        self.loop.call(self._forget_proof)
        self._server.end(self.stream)

    def is_member(self, name: str) -> bool:  # noqa: ARG002 - the host's
        """Return False: a mirror knows no cluster, so it serves no nodes."""
        return False

    def quota(self, publisher: PeerName) -> Quota:  # noqa: ARG002 - the host's
        """Return no limit: nothing is pushed here."""
        return NO_QUOTA

    def claim(self, identity: LogIdentity, peer: str, wake: Bell, *, relays: bool) -> Inbox:  # noqa: ARG002 - the host's
        """Refuse: nothing is pushed to a copy."""
        raise Refused("role", "this is a mirror, which takes no sessions; push to a node")

    def handle_appends(self) -> None:
        """Do nothing: nothing is pushed here."""

    def why_no_headers(self) -> str:
        """Return "", for no objection: nothing is pushed to a mirror."""
        return ""

    def feed(self, wake: Bell, *, relays: bool) -> MirrorFeed:
        """Return a feed of the copy for a pulling connection (`replicator.host.Host`)."""
        feed = self._feeds.open(wake, relays=relays)
        return MirrorFeed(feed, time.monotonic(), self._is_proven)

    def damaged(self, error: CorruptLog, growing: bool) -> None:
        """Log the damage; a rolled file is fetched from the nodes again."""
        _log.error("%s; nothing after it is served from here; run `rt verify`", error)
        if not growing:
            self.suspect(error)

    @property
    def barred(self) -> DamagedFiles:
        """The files that are not served; the copy's scrubber adds to them."""
        return self._feeds.damaged

    def _say(self) -> Sequence[str]:
        return () if self.successions is None else self.successions.texts

    def _hear(self, text: str) -> None:
        if self.successions is not None:
            self.successions.hear(text)

    # Where the stream ends

    def _is_proven(self, since_s: float) -> bool:
        """Whether the copy is known to have all that was merged before `since_s`.

        If that is not known yet, begin to ask the nodes for the end, so that a later call can tell.
        """
        proof = self._proof
        if proof is not None and covers(proof.asked_s, since_s) and proof.is_reached:
            return True
        if proof is None or proof.is_over:
            self.loop.post(self._prove)
        return False

    def _prove(self) -> None:
        if self.ask_end is not None and (self._proof is None or self._proof.is_over):
            with suppress(RtError):  # nothing fills the copy any more
                self._proof = self.ask_end(HOPS_MAX)

    def _forget_proof(self) -> None:
        self._proof = None

    def _serve_question(self, sock: ssl.SSLSocket, peer: PeerIdentity) -> None:
        """Answer one request that asks where the stream ends; refuse any other request."""
        with sock:
            line = receive_line(sock, _REQUEST_BYTES_MAX, time.monotonic() + _REQUEST_S)
            request, words = decode_request(line) or {}, self.successions
            if words is not None:
                words.hear_in(request)
            answer = self._answer(request, peer)
            if words is not None:
                answer = words.carried(answer)
            send_all(sock, json.dumps(answer).encode(), time.monotonic() + _REQUEST_S)

    def _answer(self, request: Fields, peer: PeerIdentity) -> Fields:
        try:
            if not peer.may_look(self.stream):
                raise Refused("role", f"{peer.title} may not ask this")
            if request.get("do") != END:
                return {"error": f"a mirror answers {END} only; ask a node", "code": "misuse"}
            if request.get("latest") is not True:
                identity = read_log_identity(self._feeds.directory)
                return {"end": str(self._feeds.end), "log": identity.id if identity else ""}
            return {"end": str(self._latest(request.get("hops")))}
        except Refused as error:
            return {"error": str(error), "code": error.code}
        except (RtError, OSError) as error:
            return {"error": spoken(error), "code": "undecided"}

    def _latest(self, hops: object) -> Position:
        """Return where the stream ends, as the mirror's nodes report now.

        Raises:
            Refused: the nodes do not answer, or too many mirrors copy from each other.
        """
        left = hops - 1 if isinstance(hops, int) and 0 < hops <= HOPS_MAX else 0
        if not left:
            raise Refused("hops", f"more than {HOPS_MAX} mirrors copy one from another")
        arrived_s, is_late, shared = time.monotonic(), False, list[EndWait]()
        while not is_late and self.loop.call(lambda: shared.append(self._share(left, arrived_s))):
            end = shared[-1].wait_answered(_UPSTREAM_S)
            shared[-1].close()
            if covers(shared[-1].asked_s, arrived_s):
                if end is not None:
                    return end
                why = shared[-1].why_not()
                raise Refused("undecided", f"this mirror cannot say where the stream ends: {why}")
            is_late = time.monotonic() > arrived_s + _UPSTREAM_S
        raise Refused("undecided", "this mirror waits for its nodes to say it; ask again")

    def _share(self, hops: int, arrived_s: float) -> EndWait:
        """Return the question under way, or one that covers `arrived_s`; the loop calls it."""
        asked = self._asked
        if asked is None or (asked.is_over and not covers(asked.asked_s, arrived_s)):
            if self.ask_end is None:
                raise Refused("undecided", "this mirror has no nodes to ask yet; ask again")
            asked = self._asked = self.ask_end(hops)
        return asked
