"""StreamCopy: the copy of the merged log that all readers of one client share."""

import logging
import os
import threading
import time
from contextlib import closing
from typing import Any, Final

from replicator.pull import PullClient
from rt.client.settings import ConnectionSettings
from rt.errors import Misuse, Stopped, WriterFailed
from rt.log.archived import is_not_copied
from rt.log.directory import LogDirectory
from rt.log.start import Start, resolve
from rt.names import MERGED_NAME, stream_directory
from rt.net.identity import CertificateRole
from rt.net.tls import Contexts
from rt.position import START, Position
from rt.subscriber import Subscriber

_log: Final = logging.getLogger("rt.client")
_READERS: Final = (CertificateRole.SUBSCRIBER, CertificateRole.NODE)
_POLL_S: Final = 0.01


class StreamCopy:
    """Fills `root/<stream>/out` from the nodes, unless another process does so already.

    Threads: any may call. `_lock` guards `_pull` and `_is_closed`.
    """

    def __init__(self, settings: ConnectionSettings) -> None:
        """Dial nothing before the first reader.

        Args:
            settings: where the stream is, and where the copy.
        """
        self.settings = settings
        self._lock = threading.Lock()
        self._pull: PullClient | None = None
        self._is_closed = False

    @property
    def directory(self) -> str:
        """Where the copy is."""
        return os.path.join(stream_directory(self.settings.root, self.settings.stream), MERGED_NAME)

    def contexts(self) -> Contexts:
        """Return the TLS contexts of readers; errors as of `ConnectionSettings.contexts`."""
        return self.settings.contexts(*_READERS)

    def begin(self, begin: Start, timeout_s: float, *, follow: bool) -> Start:
        """Have a copy in which a reader can begin; return where it is to begin.

        Args:
            begin: where it wants to. A new copy begins at the file that holds this place.
            timeout_s: how long to wait where the start is counted from the end or is a time, and
                without `follow` for everything that the node has.
            follow: whether the reader waits for more at the end.

        Raises:
            TimeoutError: the copy is not up to date.
            WriterFailed: it has ended.
            Misuse: the certificate is not a subscriber's.
            Stopped: the client is closed.
        """
        with self._lock:
            if self._is_closed:
                raise Stopped(f"the client of stream {self.settings.stream!r} is closed")
            self.demand_alive()
            self._begin(begin)
        is_known = isinstance(begin, Position) or begin == "earliest"
        if self._pull is not None and not (follow and is_known):
            self.wait_caught_up(timeout_s)  # the copy then has what the start is counted from
        elif not follow:
            _log.warning(
                "another process keeps the copy of stream %s in %s: this reader ends where that "
                "copy ends now, which may be before the end of the stream",
                self.settings.stream, self.settings.root,
            )  # fmt: skip
        with closing(LogDirectory(self.directory)) as log:
            log.refresh()
            return _place(log, begin)

    def reader(self, start: Start, **options: Any) -> Subscriber:
        """Return a reader that raises `WriterFailed` once the copy has ended and was read.

        Args:
            start: where it begins.
            options: of `rt.Subscriber`.
        """
        settings = self.settings
        reader = Subscriber(settings.root, stream=settings.stream, start=start, **options)
        reader.idle = self.demand_alive
        return reader

    def wait_caught_up(self, timeout_s: float) -> None:
        """Wait until the copy has everything that the node it comes from has.

        Raises:
            TimeoutError: it has not; the message says why.
            WriterFailed: it has ended.
            Misuse: nothing is copied here.
        """
        if self._is_closed:
            raise Stopped(f"the client of stream {self.settings.stream!r} is closed")
        if self._pull is None:
            raise Misuse("nothing is copied by this client; ask for a subscriber first")
        self.demand_alive()
        if not self._pull.wait_caught_up(timeout_s):
            self.demand_alive()
            raise TimeoutError(
                f"the copy is not up to date after {timeout_s:g} s: {self._reason(self._pull)}"
            )

    def log_id(self, timeout_s: float) -> str:
        """Return the id of the merged log, once the copy has begun.

        Raises:
            TimeoutError: it has not.
            WriterFailed: it has ended.
        """
        end_s = time.monotonic() + timeout_s
        with closing(LogDirectory(self.directory)) as log:
            while not log.refresh() and not log.is_there:
                self.demand_alive()
                if time.monotonic() > end_s:
                    words = f"no copy has begun in {self.directory} after {timeout_s:g} s"
                    raise TimeoutError(f"{words}: {self._reason(self._pull)}")
                time.sleep(_POLL_S)
            return log.manifest.identity.id if log.manifest.identity else ""

    def _reason(self, pull: PullClient | None) -> str:
        """What the copy waits for; a `pull` of our own knows more than that of another process."""
        if pull is None:
            return "another process keeps it"
        return pull.status().error or "it is still copying"

    def demand_alive(self) -> None:
        """Raise `WriterFailed` if the copy has ended: nothing would ever follow."""
        pull = self._pull
        if pull is not None and not pull.running:
            raise WriterFailed(pull.status().error)

    def stop(self) -> None:
        """End; readers were closed before. Idempotent."""
        with self._lock:
            self._is_closed = True
            pull, self._pull = self._pull, None
        if pull is not None:
            pull.stop()

    def _begin(self, begin: Start) -> None:
        """Begin to copy, unless another process does so here already; under the lock."""
        if self._pull is not None:
            return
        settings, contexts = self.settings, self.contexts()
        try:
            pull = PullClient(
                settings.root, settings.stream, settings.addresses(), contexts, start=begin
            )
        except Misuse:
            _log.info("reading the copy in %s, which another process keeps", settings.root)
            return  # its lock is taken; names and nodes were checked with the settings
        pull.start()
        self._pull = pull


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
