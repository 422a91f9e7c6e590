"""StreamCopy: the copy of the merged log that all readers of one client share."""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import Any, Final, NamedTuple

from replicator.pull.client import PullClient
from replicator.pull.end_asks import EndAsks
from replicator.pull.end_wait import EndWait
from rt.amounts import duration_text
from rt.client.readers.reader_lag import OnLag, ReaderLag
from rt.client.readers.rejoin import rejoin_running
from rt.client.readers.settings import ConnectionSettings
from rt.errors import Misuse, Stopped, WriterFailed
from rt.events import Event
from rt.log.files.archived import is_not_copied, place_after
from rt.log.files.directory import LogDirectory
from rt.log.read.start import AtSequence, Last, Start, resolve
from rt.names import merged_directory
from rt.net.authority.identity import CertificateRole
from rt.net.known_nodes import KnownNodes
from rt.net.loop.event_loop import EventLoop
from rt.net.tls import Contexts
from rt.position import START, Position
from rt.subscriber import Subscriber

_log: Final = logging.getLogger("rt.client")
_READERS: Final = (CertificateRole.SUBSCRIBER, CertificateRole.NODE)
_POLL_S: Final = 0.01
_ALIVE_S: Final = 0.1  # a reader that waits for the copy notices its end within this time


class ReadingSpan(NamedTuple):
    """The part of a copy that a reader has to read.

    Attributes:
        start: where the reader begins.
        end: the position before which the reader must not end; None if the reader follows the
            stream.
    """

    start: Start
    end: Position | None


class StreamCopy:
    """Fills `root/<stream>/out` from the nodes, unless another process does so already.

    Threads: any thread may call any method. `_lock`, which is the client's, guards `_pull`,
        `_is_shared` and `_is_closed`; `settings` is replaced as a whole.
    """

    def __init__(
        self,
        settings: ConnectionSettings,
        loop: Callable[[], EventLoop],
        lock: threading.Lock,
        pulls: Callable[..., PullClient] = PullClient,
        known: KnownNodes | None = None,
    ) -> None:
        """Prepare; nothing is dialled before the first reader.

        Args:
            settings: the stream, its nodes, and the directory of the copy.
            loop: returns the client's event loop; called without the lock.
            lock: the client's lock.
            pulls: makes the puller that fills the copy; a test may pass one with a failing disk.
            known: the nodes, kept up to date with the members; None for nodes recorded next to the
                copy.
        """
        self.settings = settings
        self.known = known or settings.known_nodes()
        self.loop = loop
        self._pulls = pulls
        self._lock = lock
        self._pull: PullClient | None = None
        self._is_shared = False  # whether another process fills it
        self._is_closed = False

    @property
    def directory(self) -> str:
        """Return the copy's directory."""
        return merged_directory(self.settings.root, self.settings.stream)

    @property
    def has_begun(self) -> bool:
        """Whether the copy has begun, because a reader was asked for."""
        return self._pull is not None or self._is_shared

    def configure(self, nodes: Sequence[str]) -> None:
        """Use the nodes of a reloaded configuration from now on; any thread may call it."""
        with self._lock:
            self.settings = replace(self.settings, nodes=tuple(nodes))
            self.known.configure(self.settings.addresses())
            if self._pull is not None:
                self._pull.follow()

    def contexts(self) -> Contexts:
        """Return the TLS contexts of readers; errors as for `ConnectionSettings.contexts`."""
        return self.settings.contexts(*_READERS, successions=self.known.successions)

    def begin(
        self,
        begin: Start,
        timeout_s: float,
        *,
        follow: bool,
        wants: Callable[[str], bool] | None = None,
    ) -> ReadingSpan:
        """Provide a copy in which a reader can begin; return the part of the copy to read.

        Args:
            begin: where the reader wants to begin. A new copy begins with the file that holds this
                position.
            timeout_s: the longest wait until the copy has everything merged before this call. A
                following reader that starts at a position or at `earliest` does not wait for that.
            follow: whether the reader waits for more at the end.
            wants: for a start counted from the end, returns whether a session's messages count;
                None counts all. If only some sessions count, or the start is a sequence number, a
                new copy begins with the whole stream, since the message may be anywhere in it.

        Raises:
            TimeoutError: after `timeout_s`, the copy still lacks messages merged before this call.
            WriterFailed: the copy has ended.
            Misuse: the certificate is not a subscriber's.
            Stopped: the client is closed.
        """
        loop = self.loop()
        with self._lock:
            if self._is_closed:
                raise self._stopped()
            self.demand_alive()
            is_of_some = isinstance(begin, Last) and wants is not None
            is_anywhere = isinstance(begin, AtSequence) or is_of_some
            self._begin("earliest" if is_anywhere else begin, loop)
        is_known = isinstance(begin, Position) or begin == "earliest"
        end = None if follow and is_known else self.wait_end(timeout_s)
        with closing(LogDirectory(self.directory)) as log:
            log.refresh()
            return ReadingSpan(_place(log, begin, wants), None if follow else end)

    def earliest(self) -> Start:
        """Return where a reader of everything begins; a copy that begins later has a gap there."""
        with closing(LogDirectory(self.directory)) as log:
            log.refresh()
            return _place(log, "earliest")

    def reader(self, start: Start, end: Position | None = None, **options: Any) -> Subscriber:
        """Return a reader; it raises `WriterFailed` at the end of a copy that is no longer filled.

        Args:
            start: where it begins.
            end: the position before which the reader must not end, if it does not follow.
            options: the options of `rt.Subscriber`.
        """
        settings = self.settings
        reader = Subscriber(settings.root, stream=settings.stream, start=start, **options)
        reader.idle = self.demand_alive if end is None else partial(self._demand_read, reader, end)
        return reader

    def watch_lag(
        self,
        lag_max_s: float | None,
        on_lag: OnLag,
        on_event: Callable[[Event], None] | None,
        reader: Subscriber,
    ) -> None:
        """Have a following reader report its lag, unless `lag_max_s` is None; see `ReaderLag`."""
        if lag_max_s is None:
            return
        watch = ReaderLag(
            lag_max_s, on_lag, on_event or (lambda _event: None), self.ask_end,
            lambda: self._reason(self._pull),
        )  # fmt: skip
        idle = reader.idle

        def read_all() -> None:
            watch.read_all(reader.position)
            idle()

        reader.on_close.append(watch.close)
        reader.look, reader.idle = lambda: watch.check(reader.position), read_all

    def wait_caught_up(self, timeout_s: float) -> None:
        """Wait until the copy has all messages that were merged before this call.

        Raises:
            Misuse: nothing is copied here, since no reader was asked for. Other errors as for
                `wait_end`.
        """
        if self._pull is None and not self._is_shared and not self._is_closed:
            raise Misuse("nothing is copied by this client; ask for a subscriber first")
        self.wait_end(timeout_s)

    def wait_end(self, timeout_s: float) -> Position:
        """Ask the nodes where the stream ends, and wait until the copy has reached that position.

        Returns:
            The end of the stream, which includes everything that was confirmed as merged before the
            call.

        Raises:
            TimeoutError: the copy has not reached the end, or no node says where the stream ends;
                the message says which, and why.
            WriterFailed: the copy has ended.
            Stopped: the client is closed.
        """
        with closing(self.ask_end()) as asked:
            deadline_s = time.monotonic() + timeout_s
            while True:
                is_there = asked.wait(max(0.0, min(_ALIVE_S, deadline_s - time.monotonic())))
                if is_there and asked.end is not None:
                    return asked.end
                if self._is_closed:
                    raise self._stopped()
                self.demand_alive()
                if asked.is_over or time.monotonic() >= deadline_s:
                    late = f"the copy is not up to date after {duration_text(timeout_s)}"
                    raise TimeoutError(f"{late}: {asked.why_not()}; {self._reason(self._pull)}")

    def ask_end(self) -> EndWait:
        """Begin to ask where the stream ends; return the wait for the copy to reach that end.

        Errors as for `wait_end`.
        """
        pull = self._pull
        if self._is_closed:
            raise self._stopped()
        self.demand_alive()
        if pull is not None:
            return pull.ask_end()
        asks = EndAsks(self.contexts())
        return EndWait(
            self.known.addresses,
            asks.latest,
            self._copied_to,
            self.loop(),
            reads_disk=True,
        )

    def _copied_to(self) -> Position:
        """Return the end of the copy on this disk, which another process fills."""
        with closing(LogDirectory(self.directory)) as log:
            log.refresh()
            last = max([*log.manifest.order[-1:], *log.files()[-1:]], default=START)
            if not log.has_file(last) or log.manifest.rolled_end(last) is not None:
                return place_after(
                    log.manifest, Position(last + (log.manifest.rolled_end(last) or 0))
                )
            with closing(log.open_file(last)) as file:
                return Position(last + file.size())

    def _demand_read(self, reader: Subscriber, end: Position) -> None:
        """Raise `WriterFailed` if a reader is about to end before `end`."""
        self.demand_alive()
        place = reader.position
        if place < end:
            with closing(LogDirectory(self.directory)) as log:
                log.refresh()
                place = place_after(log.manifest, place)
        if place < end:
            words = f"{self.directory} was copied up to {end}, and can be read up to {place} only"
            raise WriterFailed(f"{words}; run `rt verify`")

    def log_id(self, timeout_s: float) -> str:
        """Return the id of the merged log, once the copy has begun.

        Raises:
            TimeoutError: The copy has not begun in time.
            WriterFailed: The copy has ended.
        """
        end_s = time.monotonic() + timeout_s
        with closing(LogDirectory(self.directory)) as log:
            while not log.refresh() and not log.is_there:
                self.demand_alive()
                if time.monotonic() > end_s:
                    words = (
                        f"no copy has begun in {self.directory} after {duration_text(timeout_s)}"
                    )
                    raise TimeoutError(f"{words}: {self._reason(self._pull)}")
                time.sleep(_POLL_S)
            return log.manifest.identity.id if log.manifest.identity else ""

    def _reason(self, pull: PullClient | None) -> str:
        """Return what the copy waits for; known only if this client's own puller fills the copy."""
        if pull is None:
            return "another process keeps it"
        status = pull.status()
        at = f"it is copied from {status.node}" if status.node else "no node is connected"
        return "; ".join(filter(None, [at, status.lag, status.error]))

    def _stopped(self) -> Stopped:
        return Stopped(f"the client of stream {self.settings.stream!r} is closed")

    def demand_alive(self) -> None:
        """Raise `WriterFailed` if the copy has ended, since nothing more will come."""
        pull = self._pull
        if pull is not None and not pull.running and not self._is_closed:
            raise WriterFailed(pull.status().error)

    def stop(self) -> bool:
        """Stop copying; close the readers first.

        Returns:
            Whether copying has ended. If not, a disk hangs: call this again.
        """
        with self._lock:
            self._is_closed = True
            pull = self._pull
        if pull is not None and not pull.stop():
            return False
        self._pull = None
        return True

    def _begin(self, begin: Start, loop: EventLoop) -> None:
        """Begin to copy, unless another process already does; call it with the lock held."""
        if self._pull is not None:
            return
        settings, contexts = self.settings, self.contexts()
        try:
            pull = self._pulls(
                settings.root, settings.stream, settings.addresses(), contexts, start=begin,
                loop=loop, known=self.known,
            )  # fmt: skip
        except Misuse:
            _log.info("reading the copy in %s, which another process keeps", settings.root)
            self._is_shared = True
            return  # another process has its lock; names and nodes were checked with the settings
        pull.on_succession(partial(rejoin_running, settings.root, settings.stream))
        pull.start()
        self._pull = pull


def _place(log: LogDirectory, begin: Start, wants: Callable[[str], bool] | None = None) -> Start:
    """Resolve a start to a position, as far as the copy allows; otherwise return it unchanged.

    A copy that was begun after the stream's first file lacks the earliest messages. A reader that
    wants them starts before the copy's beginning, and meets the gap.
    """
    if begin != "earliest":
        return resolve(log, begin, wants) if log.is_there else begin
    order, archived = log.manifest.order, log.manifest.archived
    begins_later = order and order[0] in archived and is_not_copied(archived[order[0]])
    return START if begins_later else begin
