"""Client: one program's connection to a stream, with its publishers and subscribers."""

import logging
import os
import threading
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any, Final, Self, TypeVar, Unpack, overload
from weakref import WeakSet

from replicator.pull.client import PullClient
from replicator.push.client import PushClient
from rt.client.arguments import CursorArguments, MemberArguments, SubscriberArguments
from rt.client.flight import FlightLimit
from rt.client.groups.claim_reading import Choice, OnTrouble
from rt.client.groups.group import Group
from rt.client.groups.group_subscriber import GroupSubscriber, MemberReading
from rt.client.groups.joining import join
from rt.client.publisher import ClientPublisher
from rt.client.publisher_defaults import PublisherDefaults
from rt.client.readers.checkpoint import Checkpoint, choice_parts, filter_name
from rt.client.readers.cursor import LocalCursor
from rt.client.readers.last_value import LastValue
from rt.client.readers.reader_lag import OnLag, checked_lag
from rt.client.readers.registered import Registered, RegisteredReader
from rt.client.readers.settings import ConnectionSettings
from rt.client.readers.stream_copy import StreamCopy
from rt.client.readers.subscription import Acknowledgement, Subscription
from rt.client.stall_events import OnStall, StallEvents
from rt.client.standby_reach import StandbyReach, keeping
from rt.config.settings import changed, load
from rt.errors import Misuse, Stopped
from rt.events import Event
from rt.format.where import Where
from rt.log.notify.confirmations import Level
from rt.log.read.follower import SessionFilter
from rt.log.read.start import Start, checked_start
from rt.log.write.batcher import Batching
from rt.log.write.checked import as_bytes, checked_count, checked_seconds, demand_kind
from rt.log.write.disk_room import DiskLimit
from rt.log.write.writer import WriterSettings
from rt.net.admin import AdminClient
from rt.net.authority.identity import CertificateRole
from rt.net.known_nodes import KnownNodes
from rt.net.loop.event_loop import EventLoop
from rt.position import Position
from rt.subscriber import OnGap, Subscriber

_log: Final = logging.getLogger("rt.client")
_TABLES: Final = ("push", "pull")
Loads = Callable[[], tuple[ConnectionSettings, ConnectionSettings, PublisherDefaults]]
Readers = Subscriber | Subscription | GroupSubscriber
Kept = ClientPublisher | Subscription | GroupSubscriber | LastValue
_STOP_S: Final = 1.0  # for a look that is under way
Handed = TypeVar("Handed", bound=Readers | LastValue)


class Client:
    """Publishes to a stream and reads it, shipping and copying from inside this process.

    The client dials no node until the first publisher or subscriber is asked for. The merged log is
    copied once for all subscribers of this client, into `root/<stream>/out`; if another process
    (`rt pull`, another client) already writes that copy, this client only reads it.

    One event loop serves all publishers, over one connection to each node, and all readers, over
    one connection. The loop begins with the first publisher or reader.

    Threads: Any thread may call any method. `_lock` guards `_publishing`, `_open`, `_plain`,
        `_push`, `_reach`, `_pushed_to`, `_defaults`, `_loop` and `_is_closed`, and what `_copy`
        says; publishers and readers state their own rules.
    """

    def __init__(
        self,
        publishing: ConnectionSettings,
        reading: ConnectionSettings,
        pulls: Callable[..., PullClient] = PullClient,
        config: str = "",
        *,
        defaults: PublisherDefaults | None = None,
        loads: Loads | None = None,
    ) -> None:
        """Made by `connect`; programs call that function.

        Args:
            publishing: settings for publishers.
            reading: settings for subscribers, with the same stream and directory.
            pulls: as for `StreamCopy`.
            config: path of the configuration, or "".
            defaults: the level that publishers wait for by default, and how long merged files are
                kept; None for the built-in defaults.
            loads: reads all settings again, for `reload`; None if they cannot be read again.
        """
        self._publishing, self._config, self._loads = publishing, config, loads
        self._defaults = defaults or PublisherDefaults()
        self._pushed_to: KnownNodes | None = None  # from the first publisher on
        self._lock = threading.Lock()
        self._copy = StreamCopy(
            reading, self._begun, self._lock, pulls, known=reading.known_nodes(config)
        )
        self._loop: EventLoop | None = None
        self._push: tuple[PushClient, StallEvents] | None = None  # from the first publisher on
        self._reach: StandbyReach | None = None  # with it, if files are kept for a standby
        # A program may open one for each request that it serves: closed ones are not kept.
        self._open: list[Kept] = []
        self._plain: WeakSet[Subscriber] = WeakSet()
        self._is_closed = False

    @property
    def stream(self) -> str:
        """Name of the stream."""
        return self._publishing.stream

    def publisher(
        self,
        session: str,
        *,
        confirm: str | Level | None = None,
        group: str = "",
        writer: WriterSettings | None = None,
        batching: Batching | None = None,
        flight: FlightLimit | None = None,
        disk_limit: DiskLimit | None = None,
        on_event: OnStall | None = None,
    ) -> ClientPublisher:
        """Open a session for publishing and ship it from this process.

        Args:
            session: the session's name; a session has one live publisher at a time.
            confirm: the level that `publish_future` waits for by default: `written`, `synced`,
                `received`, `replicated` or `merged`; if not given, `merged` or what the
                configuration's table `[publisher]` says.
            group: as for `rt.Publisher`.
            writer: durability, sizes, compression.
            batching: how messages become frames.
            flight: how much may be published and not merged yet; None for no limit.
            disk_limit: how much the session's files may hold here; None for no limit.
            on_event: called with an `rt.Stalled` when no node has accepted waiting bytes for ten
                seconds, and with an `rt.Flowing` when that is over. It runs in a thread of the
                client and must return quickly.

        Raises:
            Misuse: a name or level is wrong, the session has a live publisher, or the certificate
                is not a publisher's.
            Stopped: the client is closed.
        """
        if on_event is not None and not callable(on_event):
            raise Misuse(f"on_event is a function, not {type(on_event).__name__}")
        with self._lock:
            self._demand_open()
            push, stalls = self._pusher()
            defaults = self._defaults
            publisher = ClientPublisher(
                self._publishing, push, session, ask=self._ask, loop=self._loop_begun(),
                confirm=defaults.confirm if confirm is None else confirm,
                timeout_s=defaults.confirm_timeout_s, group=group, writer=writer,
                batching=batching, flight=flight, disk_limit=disk_limit,
                closed=lambda name: stalls.forget(name, on_event),
            )  # fmt: skip
            if on_event is not None:
                stalls.hear(session, on_event)
            self._keep(publisher)
        return publisher

    @overload
    def subscriber(
        self, *, cursor: str | Registered, **arguments: Unpack[CursorArguments]
    ) -> Subscription: ...
    @overload
    def subscriber(
        self, *, group: str | Group, **arguments: Unpack[MemberArguments]
    ) -> GroupSubscriber: ...
    @overload
    def subscriber(self, **arguments: Unpack[SubscriberArguments]) -> Subscriber: ...
    def subscriber(
        self,
        *,
        cursor: str | Registered | None = None,
        group: str | Group | None = None,
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
        lag_max_s: float | None = None,
        on_lag: OnLag = "raise",
        timeout_s: float = 30.0,
    ) -> Readers:
        """Read the merged stream.

        Args:
            cursor: a name under which this machine stores the position, or an `rt.Registered` to
                have the nodes store it. A cursor stored on this machine is a local cursor.
            group: a name, or an `rt.Group`: programs of one group divide the stream.
            ack: what acknowledges messages: `auto`, the next request; `explicit`, only `ack`.
            start: as for `rt.Subscriber`; an existing cursor or group continues at its position. If
                this machine has no copy of the stream yet, one begins with the log file that holds
                this start. A later reader with an earlier start meets a gap.
            follow: whether to wait for more at the end. If not, the nodes are asked where the
                stream ends now, and the reader ends after the last message before that end.
            sessions: names or globs of the sessions wanted; None for all.
            key_prefix: only messages whose key begins with this.
            where: conditions on session, key and JSON fields, as for `rt.Subscriber`.
            share: `2/4` for the second of four equal shares of all keys; fixed for a cursor.
            on_gap: `raise`, `notify` or `skip`.
            on_poison: `raise`, `notify` or `skip`, for a frame that cannot be decoded.
            on_event: is called with each event.
            lag_max_s: how many seconds a following reader may lag the end of the stream; at least
                1. A longer lag is always reported, and a lag below half of this limit never is.
            on_lag: if the lag is too long, `raise` a `LagError`, or `notify` through `on_event`.
            timeout_s: the longest wait until the copy has everything merged before this call. A
                following reader that starts at a position or at `earliest` does not wait for that.

        Returns:
            A `Subscription` for a cursor, a `GroupSubscriber` for a group, else a `Subscriber`.

        Raises:
            Misuse: an argument or the certificate is wrong, or a local cursor is in use.
            TimeoutError: the copy is not up to date in time, or a cursor is held after `wait_s`.
            Refused: a registered cursor is held and its `wait_s` is 0, or a grant is missing.
            WriterFailed: the copy has ended, as its disk failed. Reading raises it, too.
            LagError: when reading, if the reader lags by more than `lag_max_s`.
            Stopped: the client is closed.
        """
        checked_lag(lag_max_s, on_lag, follow=follow, is_member=group is not None)
        begin, trouble = checked_start(start, sessions), OnTrouble(on_gap, on_poison, on_event)
        _demand_reader(cursor, group, ack, timeout_s)
        if group is not None:
            if cursor is not None or share:
                raise Misuse("a group divides the stream, and remembers its place; give it alone")
            choice = Choice.of(sessions, key_prefix, where)
            return self._join(group, begin, MemberReading(ack, follow, timeout_s, choice, trouble))
        watch = partial(self._copy.watch_lag, lag_max_s, on_lag, on_event)
        held = None if cursor is None else self._take(cursor, share)
        reader = self._reader(
            begin, timeout_s, held, ack, watch, follow=follow, sessions=sessions,
            key_prefix=key_prefix, where=where, share=share, **trouble._asdict(),
        )  # fmt: skip
        return self._opened(reader)

    def last_value(
        self,
        *,
        key_prefix: bytes = b"",
        sessions: Collection[str] | None = None,
        where: str | Collection[str] | None = None,
        keys_max: int = 1_000_000,
        checkpoint_s: float = 60.0,
        timeout_s: float = 30.0,
    ) -> LastValue:
        """Return the last message of each key, as a mapping that follows the stream.

        The mapping begins empty and fills: `LastValue.wait_caught_up` waits until it holds
        everything. A copy that begins later than the stream, as after `start="latest"`, lacks keys.
        Then every lookup raises `Misuse`, unless stored values cover what the copy lacks.

        Args:
            key_prefix: only keys that begin with this.
            sessions: names or globs of the sessions wanted.
            where: conditions, as for `subscriber`.
            keys_max: the most keys that are kept in memory; more are an error.
            checkpoint_s: how often the values are stored next to the copy, if they have changed.
            timeout_s: how long to wait for the copy to begin, the first time.

        Raises:
            RtError: as for `subscriber`.
        """
        checked_count(keys_max, "keys_max", 1)
        checkpoint_s = checked_seconds(checkpoint_s, "checkpoint_s")
        timeout_s = checked_seconds(timeout_s, "timeout_s")
        key_prefix = as_bytes(key_prefix, "key_prefix")
        Choice.of(sessions, key_prefix, where)
        choice = choice_parts(sessions, key_prefix, where)
        self._copy.begin("earliest", timeout_s, follow=True)
        checkpoint = Checkpoint(
            self._copy.settings.root, self.stream, filter_name(*choice),
            self._copy.log_id(timeout_s),
        )  # fmt: skip

        def reader(place: Position, meet: Callable[[Event], None]) -> Subscriber:
            return self._copy.reader(
                place or self._copy.earliest(), sessions=sessions, key_prefix=key_prefix,
                where=where, on_gap="notify", on_event=meet,
            )  # fmt: skip

        return self._opened(
            LastValue(
                reader,
                checkpoint,
                checkpoint.load(),
                self._copy.wait_end,
                keys_max=keys_max,
                checkpoint_s=checkpoint_s,
            )
        )

    def wait_caught_up(self, timeout_s: float = 30.0) -> None:
        """Wait until the local copy has all messages that were merged before this call.

        Raises:
            TimeoutError: the copy lacks some of them after `timeout_s`, or no node says where the
                stream ends; the message says why.
            Misuse: nothing is copied by this client.
        """
        self._copy.wait_caught_up(checked_seconds(timeout_s, "timeout_s"))

    def reload(self) -> list[str]:
        """Read the configuration again, as `rt push` and `rt pull` do on SIGHUP.

        Open publishers and readers use its `nodes` from now on, and publishers opened later use its
        table `[publisher]`. Certificates need no reload, since every new connection uses the
        current files; `reload` only checks them.

        Returns:
            The changed settings that this client cannot apply, such as `["pull.identity"]`; only a
            new client uses them. A warning names them too.

        Raises:
            Misuse: a setting cannot be used, and nothing was changed; or this client was not made
                by `connect`.
            OSError: the file cannot be read, and nothing was changed.
            Stopped: the client is closed.
        """
        if self._loads is None:
            raise Misuse("only a client of rt.connect can read its configuration again")
        *now, defaults = self._loads()
        with self._lock:
            self._demand_open()
            if self._push is not None:
                self._publishing.contexts(CertificateRole.PUBLISHER)
            if self._copy.has_begun:
                self._copy.contexts()
            before = (self._publishing, self._copy.settings)
            self._publishing = replace(self._publishing, nodes=now[0].nodes)
            kept, self._defaults = self._defaults.keep, defaults
            if self._push is not None and self._pushed_to is not None:
                self._pushed_to.configure(self._publishing.addresses())
                self._push[0].follow()
        self._copy.configure(now[1].nodes)  # it takes the lock
        left = [
            f"{table}.{name}"
            for table, old, new in zip(_TABLES, before, now, strict=True)
            for name in changed(old, new) if name != "nodes"
        ]  # fmt: skip
        if self._push is not None and defaults.keep != kept:
            left.append("publisher.keep")
        if left:
            _log.warning("changed and not in use until another client is made: %s", ", ".join(left))
        return left

    def close(self, timeout_s: float = 10.0) -> None:
        """Close all publishers and readers; ship messages for at most `timeout_s`. Idempotent.

        Messages that the nodes still lack stay in the sessions' logs, and the next client or `rt
        push` ships them; a warning says so.
        """
        with self._lock:
            self._is_closed = True
            left, self._open = [*self._open, *self._plain], []
            push, self._push = self._push, None
            reach, self._reach = self._reach, None
            loop, self._loop = self._loop, None
        deadline = time.monotonic() + timeout_s
        with ExitStack() as undo:  # an error in one close leaves no other open
            undo.callback(self._stop, loop)
            if reach is not None:
                undo.callback(reach.stop)
            if push is not None:
                undo.callback(push[0].stop)
                undo.callback(push[1].stop, _STOP_S)
            for each in reversed(left):
                if isinstance(each, ClientPublisher):
                    undo.callback(_close_by, each, deadline)
                else:
                    undo.callback(each.close)

    def _stop(self, loop: EventLoop | None) -> None:
        """Stop the copy, then the event loop; if a disk hangs, leave both to a thread."""
        if not self._copy.stop():
            threading.Thread(target=self._stop, args=(loop,), name="close", daemon=True).start()
        elif loop is not None:
            loop.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def __repr__(self) -> str:
        nodes = ", ".join(self._publishing.nodes)
        return f"<Client of stream {self.stream!r} at {nodes}{', closed' * self._is_closed}>"

    def _begun(self) -> EventLoop:
        """Return the event loop, starting it if need be; `Stopped` if the client was closed."""
        with self._lock:
            self._demand_open()
            return self._loop_begun()

    def _loop_begun(self) -> EventLoop:
        """Return the event loop, starting it if need be; call with the lock held."""
        if self._loop is None:
            self._loop = EventLoop()
        return self._loop

    def _pusher(self) -> tuple[PushClient, StallEvents]:
        """Return the pusher of all publishers' sessions, and the watcher of its stalls."""
        if self._push is None:
            where = self._publishing
            contexts = where.contexts(CertificateRole.PUBLISHER)
            known = self._pushed_to = where.known_nodes(self._config)
            known.successions = self._copy.known.successions  # both learn of a promotion
            keep_s, reach = keeping(self._defaults.keep, where, known)
            push = PushClient(
                where.root, where.stream, where.addresses(), contexts, None,
                loop=self._loop_begun(), known=known, keep_s=keep_s,
                standby=None if reach is None else lambda: reach.position,
            )  # fmt: skip
            push.start()
            if reach is not None:
                reach.start()
            self._reach = reach
            stalls = StallEvents(push)
            stalls.start()
            self._push = push, stalls
        return self._push

    def _take(self, cursor: str | Registered, share: str) -> LocalCursor | RegisteredReader:
        """Take a cursor for this client and return it; errors as for `subscriber`."""
        if isinstance(cursor, str):
            return LocalCursor(self._copy.settings.root, self.stream, cursor, share=share)
        return RegisteredReader(self._leader(keep=True), cursor, share, self._begun())

    def _reader(
        self,
        begin: Start,
        timeout_s: float,
        held: LocalCursor | RegisteredReader | None,
        ack: Acknowledgement,
        watch: Callable[[Subscriber], None],
        *,
        follow: bool,
        **options: Any,
    ) -> Subscriber | Subscription:
        """Return a reader of the copy, which uses the cursor `held`, if there is one.

        `watch` is called with the reader before it is returned.
        """
        with ExitStack() as undo:
            if held is not None:
                undo.callback(held.close)
                begin = begin if held.is_new else held.state.position
            choice = SessionFilter(options["sessions"], Where.parse(options["where"]))
            begin, end = self._copy.begin(begin, timeout_s, follow=follow, wants=choice.chooses)
            reader = self._copy.reader(begin, end, follow=follow, **options)
            undo.callback(reader.close)
            watch(reader)
            handed_out = reader if held is None else Subscription(reader, held, ack)
            undo.pop_all()
        return handed_out

    def _join(self, group: str | Group, begin: Start, wanted: MemberReading) -> GroupSubscriber:
        """Become a member of a group; errors as for `subscriber`."""
        if isinstance(group, Group) and group.dead_letters:
            self._publishing.contexts(CertificateRole.PUBLISHER)  # raises unless it can publish
        nodes = self._leader(keep=True), self._bury
        return self._opened(join(group, begin, wanted, self._copy, nodes))

    def _bury(self, session: str, key: bytes, payload: bytes) -> None:
        """Publish a dead letter; the session is opened with the first one."""
        with self._lock:
            known = [each for each in self._open if isinstance(each, ClientPublisher)]
        found = next((each for each in known if each.name == session and not each.is_closed), None)
        (found or self.publisher(session)).publish(payload, key, confirm=Level.MERGED)

    def _opened(self, reader: Handed) -> Handed:
        """Record a reader, so that `close` closes it; `Stopped` if the client is closed."""
        with self._lock:
            if not self._is_closed:
                if isinstance(reader, Subscriber):
                    self._plain.add(reader)
                else:
                    self._keep(reader)
                return reader
        reader.close()
        raise Stopped(_closed_words(self.stream))

    def _keep(self, opened: Kept) -> None:
        """Record what `close` must close; forget what is closed. Call with the lock held."""
        self._open = [*(each for each in self._open if not each.is_closed), opened]

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """Make a request of the nodes, as a subscriber."""
        return self._leader().ask(request)

    def _leader(self, *, keep: bool = False) -> AdminClient:
        copy = self._copy
        return AdminClient(
            copy.known.addresses, copy.contexts(), keep=keep, known=lambda: copy.known.addresses
        )

    def _demand_open(self) -> None:
        if self._is_closed:
            raise Stopped(_closed_words(self.stream))


def _closed_words(stream: str) -> str:
    return f"the client of stream {stream!r} is closed"


def _demand_reader(cursor: object, group: object, ack: str, timeout_s: float) -> None:
    """Raise `Misuse` unless these arguments of a subscriber are valid, and go together."""
    checked_seconds(timeout_s, "timeout_s")
    demand_kind("cursor", cursor, str, Registered)
    demand_kind("group", group, str, Group)
    if ack not in ("auto", "explicit"):
        raise Misuse(f"ack is {ack!r}; use auto or explicit")
    if ack == "explicit" and cursor is None and group is None:
        raise Misuse("ack is for a cursor or a group; give one of them")


def _close_by(publisher: ClientPublisher, deadline: float) -> None:
    publisher.close(max(0.0, deadline - time.monotonic()))


def connect(
    config: str | os.PathLike[str] | None = None,
    *,
    root: str | os.PathLike[str] | None = None,
    stream: str | None = None,
    nodes: str | Sequence[str] | None = None,
    certs: str | os.PathLike[str] | None = None,
    identity: str | None = None,
    keep: str | None = None,
) -> Client:
    """Return a client of a stream.

    Each setting comes from its argument, else from `RT_...` in the environment, else from the file:
    tables `[push]` for publishers and `[pull]` for subscribers, as `rt cluster init` writes them. A
    table `[publisher]` may have the defaults for what publishers wait for and keep.

    Args:
        config: a TOML file such as `clients.toml`; `RT_CONFIG` names one otherwise.
        root: directory for sessions and for the copy of the merged log.
        stream: name of the stream.
        nodes: `host:port` of each node, or of one.
        certs: directory of the certificates.
        identity: name of the certificate to show, for publishing and for reading.
        keep: how long publishers keep a file after it was merged: a time such as `1h`, or `standby`
            to keep it until a standby has it. A kept file can be sent again, to a cluster that
            continues a standby's copy.

    Raises:
        Misuse: a setting is missing or wrong; the message names it and where it came from. Or no
            setting is given at all, and the working directory has no `certs`.
        OSError: the file cannot be read.

    Examples:
        >>> import rt
        >>> with rt.connect(nodes=["localhost:7420"], stream="flights") as client:
        ...     client
        <Client of stream 'flights' at localhost:7420>
    """
    demand_kind("config", config, str, os.PathLike)
    nodes = [nodes] if isinstance(nodes, str) else nodes
    path = config or os.environ.get("RT_CONFIG") or None
    if not path:
        _demand_any(root=root, nodes=nodes, certs=certs)
    options: dict[str, object] = {
        "root": None if root is None else os.fspath(root),
        "stream": stream,
        "nodes": None if nodes is None else tuple(nodes),
        "certs": None if certs is None else os.fspath(certs),
        "identity": identity,
    }

    def loads() -> tuple[ConnectionSettings, ConnectionSettings, PublisherDefaults]:
        publishing, reading = (
            load(ConnectionSettings, path, table if path else None, options=options)
            for table in _TABLES
        )
        return (
            publishing,
            reading,
            load(PublisherDefaults, path, "publisher" if path else None, options={"keep": keep}),
        )

    publishing, reading, defaults = loads()
    return Client(publishing, reading, config=os.fspath(path or ""), defaults=defaults, loads=loads)


def _demand_any(**given: object) -> None:
    """Raise `Misuse` if nothing says where the nodes, certificates or logs are."""
    if any(given.values()) or any(os.environ.get(f"RT_{name.upper()}") for name in given):
        return
    default = ConnectionSettings().certs
    if not os.path.isdir(default):
        raise Misuse(
            f"rt.connect() was given no configuration, and there is no directory "
            f"{os.path.abspath(default)}; name clients.toml, as rt cluster init writes it, by "
            "rt.connect(config) or RT_CONFIG, or give nodes and certs"
        )
