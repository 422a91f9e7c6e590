"""Client: one program's connection to a stream, with its publishers and subscribers."""

import logging
import os
import threading
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack, closing
from typing import Any, Final, Self

from replicator.pull import PullClient
from rt.client.cursor import LocalCursor
from rt.client.flight import FlightLimit
from rt.client.publisher import ClientPublisher
from rt.client.registered import Registered, RegisteredReader
from rt.client.settings import ConnectionSettings
from rt.client.subscription import Acknowledgement, Subscription
from rt.config.settings import load
from rt.errors import Misuse, Stopped, WriterFailed
from rt.events import Event
from rt.log.archived import is_not_copied
from rt.log.confirmations import Level
from rt.log.directory import LogDirectory
from rt.log.start import Start, checked_start, resolve
from rt.log.writer import WriterSettings
from rt.names import stream_directory
from rt.net.admin import AdminClient
from rt.net.identity import CertificateRole
from rt.net.tls import Contexts
from rt.position import START, Position
from rt.publisher import Batching
from rt.subscriber import MERGED_NAME, OnGap, Subscriber

_log: Final = logging.getLogger("rt.client")
_READERS: Final = (CertificateRole.SUBSCRIBER, CertificateRole.NODE)


class Client:
    """Publishes to a stream and reads it, shipping and copying from inside this process.

    Nothing is dialled before the first publisher or subscriber is asked for. The merged log is
    copied once for all subscribers of this client, into `root/<stream>/out`; where another process
    (`rt pull`, another client) keeps that copy already, it is read as it is.

    Threads:
        Any thread may call any method. `_lock` guards `_pull`, `_open` and `_is_closed`; what is
        handed out has its own rules.
    """

    def __init__(self, publishing: ConnectionSettings, reading: ConnectionSettings) -> None:
        """Use `connect` instead.

        Args:
            publishing: settings for publishers.
            reading: settings for subscribers; of the same stream and directory.
        """
        self._publishing = publishing
        self._reading = reading
        self._lock = threading.Lock()
        self._pull: PullClient | None = None
        self._open: list[ClientPublisher | Subscriber | Subscription] = []
        self._is_closed = False

    @property
    def stream(self) -> str:
        """Name of the stream."""
        return self._publishing.stream

    def publisher(
        self,
        session: str,
        *,
        confirm: str | Level = Level.MERGED,
        group: str = "",
        writer: WriterSettings | None = None,
        batching: Batching | None = None,
        flight: FlightLimit | None = None,
    ) -> ClientPublisher:
        """Open a session for publishing and ship it from this process.

        Args:
            session: its name; one live publisher at a time.
            confirm: what `publish_future` waits for unless told otherwise: `written`, `synced`,
                `received`, `replicated` or `merged`.
            group: as of `rt.Publisher`.
            writer: durability, sizes, compression.
            batching: how messages become frames.
            flight: how much may be published and not merged yet; no limit unless given.

        Raises:
            Misuse: a name or level is wrong, the session has a live publisher, or the certificate
                is not a publisher's.
            Stopped: the client is closed.
        """
        contexts = self._publishing.contexts(CertificateRole.PUBLISHER)
        with self._lock:
            self._demand_open()
            publisher = ClientPublisher(
                self._publishing, contexts, session, ask=self._ask,
                confirm=confirm, group=group, writer=writer, batching=batching,
                flight=flight,
            )  # fmt: skip
            self._open.append(publisher)
        return publisher

    def subscriber(
        self,
        *,
        cursor: str | Registered | None = None,
        ack: Acknowledgement = "auto",
        start: Start | str = "earliest",
        follow: bool = True,
        sessions: Collection[str] | None = None,
        key_prefix: bytes = b"",
        where: str | Collection[str] | None = None,
        share: str = "",
        on_gap: OnGap = "raise",
        on_poison: OnGap = "raise",
        on_event: Callable[[Event], None] | None = None,
        timeout_s: float = 30.0,
    ) -> Subscriber | Subscription:
        """Read the merged stream.

        Args:
            cursor: a name to remember the place by on this machine, or `rt.Registered` to have the
                nodes remember it; without one, begin at `start` each time.
            ack: with a cursor, `auto` or `explicit`; see `rt.client.subscription.Subscription`.
            start: as of `rt.Subscriber`, or as text: `earliest`, `latest`, `last:100`, a position
                or a time. A cursor that exists goes on where it is. A new copy begins at the file
                that holds the start of its first reader; a later reader that starts before it
                meets a gap.
            follow: whether to wait for more at the end. Without it the copy is first brought up
                to date, so the end is the stream's and not that of an older copy; where another
                process keeps the copy, a warning says that it ends where that copy does.
            sessions: names or globs of the sessions wanted.
            key_prefix: only messages whose key begins with this.
            where: conditions on session, key and fields of a JSON payload, as of `rt.Subscriber`.
            share: `2/4` for the second of four equal shares of all keys; a cursor keeps to one.
            on_gap: `raise`, `notify` or `skip`.
            on_poison: the same, for a frame whose messages cannot be decoded.
            on_event: is called with each event.
            timeout_s: how long bringing the copy up to date may take, which is waited for without
                `follow`, and where `start` is counted from the end or is a time.

        Returns:
            A `Subscription` if a cursor is named, otherwise a `Subscriber`.

        Raises:
            Misuse: an argument is wrong, a local cursor has a reader or another share, or the
                certificate is not a subscriber's.
            TimeoutError: the copy is not up to date, or a registered cursor is still held.
            Refused: a registered cursor is held by another reader, or is not granted.
            WriterFailed: the copy has ended, because its disk failed. Reading raises it too, once
                everything that was copied has been read.
            Stopped: the client is closed.
        """
        begin, root = checked_start(start), self._reading.root
        with ExitStack() as undo:
            held = None if cursor is None else self._take(cursor, share)
            if held is not None:
                undo.callback(held.close)
                begin = begin if held.is_new else held.state.position
            begin = self._copy_from(begin, timeout_s, follow=follow)
            reader = Subscriber(
                root, stream=self.stream, start=begin, follow=follow, sessions=sessions,
                key_prefix=key_prefix, where=where, share=share, on_gap=on_gap,
                on_poison=on_poison, on_event=on_event,
            )  # fmt: skip
            undo.callback(reader.close)
            reader.idle = self._demand_copy
            handed_out = reader if held is None else Subscription(reader, held, ack)
            undo.pop_all()
        with self._lock:
            self._open.append(handed_out)
        return handed_out

    def wait_caught_up(self, timeout_s: float = 30.0) -> None:
        """Wait until the local copy has everything that the node it comes from has.

        Raises:
            TimeoutError: it has not; the message says why.
            Misuse: nothing is copied by this client.
        """
        if self._pull is None:
            raise Misuse("nothing is copied by this client; ask for a subscriber first")
        self._demand_copy()
        if not self._pull.wait_caught_up(timeout_s):
            self._demand_copy()
            reason = self._pull.status().error or "it is still copying"
            raise TimeoutError(f"the copy is not up to date after {timeout_s:g} s: {reason}")

    def close(self, timeout_s: float = 10.0) -> None:
        """Close everything that was opened, within this time as far as shipping goes. Idempotent.

        What the nodes lack then stays in the sessions' logs and is shipped by the next client or
        `rt push`; a warning says so.
        """
        with self._lock:
            self._is_closed = True
            left, self._open = self._open, []
            pull, self._pull = self._pull, None
        deadline = time.monotonic() + timeout_s
        for each in left:
            if isinstance(each, ClientPublisher):
                each.close(max(0.0, deadline - time.monotonic()))
            else:
                each.close()
        if pull is not None:
            pull.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def __repr__(self) -> str:
        nodes = ", ".join(self._publishing.nodes)
        return f"<Client of stream {self.stream!r} at {nodes}{', closed' * self._is_closed}>"

    def _take(self, cursor: str | Registered, share: str) -> LocalCursor | RegisteredReader:
        """Take a cursor; errors as for `subscriber`."""
        if isinstance(cursor, str):
            return LocalCursor(self._reading.root, self.stream, cursor, share=share)
        return RegisteredReader(self._leader().ask, cursor, share)

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """Make a request of the nodes, as a subscriber."""
        return self._leader().ask(request)

    def _leader(self) -> AdminClient:
        return AdminClient(self._reading.addresses(), self._contexts())

    def _contexts(self) -> Contexts:
        return self._reading.contexts(*_READERS)

    def _copy_from(self, begin: Start, timeout_s: float, *, follow: bool) -> Start:
        """Have a copy in which a reader can begin there; return where it is to begin."""
        with self._lock:
            self._demand_open()
            self._demand_copy()
            self._begin_copy(begin)
        is_known = isinstance(begin, Position) or begin == "earliest"
        if self._pull is not None and not (follow and is_known):
            self.wait_caught_up(timeout_s)  # the copy then has what the start is counted from
        elif not follow:
            _log.warning(
                "another process keeps the copy of stream %s in %s: this reader ends where that "
                "copy ends now, which may be before the end of the stream",
                self.stream, self._reading.root,
            )  # fmt: skip
        directory = os.path.join(stream_directory(self._reading.root, self.stream), MERGED_NAME)
        with closing(LogDirectory(directory)) as log:
            log.refresh()
            return _place(log, begin)

    def _demand_copy(self) -> None:
        """Raise if the copy that this client fills has ended: nothing would ever follow."""
        pull = self._pull
        if pull is not None and not pull.running:
            raise WriterFailed(pull.status().error)

    def _demand_open(self) -> None:
        if self._is_closed:
            raise Stopped(f"the client of stream {self.stream!r} is closed")

    def _begin_copy(self, begin: Start) -> None:
        """Copy the merged log, unless another process does so here already; under the lock.

        Args:
            begin: where a new copy begins, at the file that holds this place.
        """
        if self._pull is not None:
            return
        settings = self._reading
        contexts = self._contexts()
        try:
            pull = PullClient(
                settings.root, settings.stream, settings.addresses(), contexts, start=begin
            )
        except Misuse:
            _log.info("reading the copy in %s, which another process keeps", settings.root)
            return  # its lock is taken; names and nodes were checked with the settings
        pull.start()
        self._pull = pull


def connect(
    config: str | os.PathLike[str] | None = None,
    *,
    root: str | os.PathLike[str] | None = None,
    stream: str | None = None,
    nodes: Sequence[str] | None = None,
    certs: str | os.PathLike[str] | None = None,
    identity: str | None = None,
) -> Client:
    """Return a client of a stream.

    Each setting comes from its argument, else from `RT_...` in the environment, else from the file:
    tables `[push]` for publishers and `[pull]` for subscribers, as `rt cluster init` writes them.

    Args:
        config: a TOML file such as `clients.toml`; `RT_CONFIG` names one otherwise.
        root: directory for sessions and for the copy of the merged log.
        stream: name of the stream.
        nodes: `host:port` of each node.
        certs: directory of the certificates.
        identity: name of the certificate to show, for publishing and for reading.

    Raises:
        Misuse: a setting is missing or wrong; the message names it and where it came from.
        OSError: the file cannot be read.

    Example:
        >>> import rt
        >>> with rt.connect(nodes=["localhost:7420"], stream="flights") as client:
        ...     client
        <Client of stream 'flights' at localhost:7420>
    """
    path = config or os.environ.get("RT_CONFIG") or None
    options: dict[str, object] = {
        "root": None if root is None else os.fspath(root),
        "stream": stream,
        "nodes": None if nodes is None else tuple(nodes),
        "certs": None if certs is None else os.fspath(certs),
        "identity": identity,
    }
    publishing, reading = (
        load(ConnectionSettings, path, table if path else None, options=options)
        for table in ("push", "pull")
    )
    return Client(publishing, reading)


def _place(log: LogDirectory, begin: Start) -> Start:
    """Return a start in a copy: a position, as far as the copy is there to tell.

    A copy that was begun after the stream's first file has not its earliest messages: a reader
    that wants them starts before it, and meets the gap.
    """
    if begin != "earliest":
        return resolve(log, begin) if log.is_there else begin
    order, archived = log.manifest.order, log.manifest.archived
    begins_later = order and order[0] in archived and is_not_copied(archived[order[0]])
    return START if begins_later else begin
