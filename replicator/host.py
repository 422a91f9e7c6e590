"""Host: the interfaces of a node that its server uses."""

from typing import Protocol

from replicator.limits.quotas import Quota
from rt.errors import CorruptLog, Refused
from rt.format.manifest import Archived, LogIdentity
from rt.log.files.damaged_files import DamagedFiles
from rt.log.notify.confirmations import Confirmations
from rt.log.write.appender import Appender
from rt.log.write.recent_frames import Appended
from rt.names import PeerName
from rt.position import Position
from rt.traffic import Traffic


class Bell(Protocol):
    """A bell that the host rings, from any thread, when a connection must check for news."""

    def set(self) -> None:
        """Have the connection check again soon. Cheap; may be called any number of times."""


class Inbox(Protocol):
    """A log to which one connection at a time appends a source's frames."""

    @property
    def appender(self) -> Appender:
        """The recovered log's appender: the connection's thread appends, any thread may sync."""

    @property
    def traffic(self) -> Traffic:
        """Counts of what was appended; the connection's thread adds to them."""

    def written(self) -> None:
        """Record that bytes were appended; the host will sync them, and then ring the bell."""

    @property
    def confirmations(self) -> Confirmations:
        """The session's progress; `received` is the end that a sync here has made durable."""

    def keeps(self, entry: Archived) -> bool:
        """Return whether this copy keeps the bytes of a file that the source has archived."""

    def needs(self, end: Position) -> bool:
        """Return whether the host still needs bytes of the log's last file before `end`."""

    def doubted(self, why: str) -> None:
        """Check the copy for damage, because the source's bytes differ from it."""

    @property
    def leave(self) -> Refused | None:
        """Why this connection must leave the log; None if the connection may stay.

        The host rings the bell when it sets this.
        """

    def release(self) -> None:
        """Release the log, so that another connection may claim it. Called once."""


class Feed(Protocol):
    """A log that is served to sinks."""

    @property
    def directory(self) -> str:
        """The log's directory."""

    @property
    def damaged(self) -> DamagedFiles:
        """The damaged files, which are not served."""

    def end(self) -> Position:
        """Return the end of what may be served now; no byte after it is sent.

        Raises:
            Refused: nothing will be served again; the connection ends.
        """

    def recent(self, first: Position, end: Position) -> Appended | None:
        """Return frames from `first` on, up to `end` at most, if they are in memory."""

    def is_whole(self) -> bool:
        """Return whether the served log is complete up to its end, as far as this node knows."""

    def release(self) -> None:
        """Record that this sink has gone. Called once."""


class Host(Protocol):
    """A node, as its server uses it. Any thread may call any method."""

    @property
    def stream(self) -> str:
        """The name of the stream that this node serves."""

    def is_member(self, name: str) -> bool:
        """Whether the node of this name belongs to the cluster; other nodes are not served."""

    def quota(self, publisher: PeerName) -> Quota:
        """The publisher's present quota in the stream; asked on every turn of its connections."""

    def claim(self, identity: LogIdentity, peer: str, wake: Bell, *, relays: bool) -> Inbox:
        """Return the inbox of a session for a peer that may push it.

        Args:
            identity: identity of the session's log at the source; its names were checked.
            peer: the name in the certificate.
            wake: the bell to ring when the confirmations have changed.
            relays: whether the peer is a node, relaying what a publisher pushed to it.

        Raises:
            Refused: `busy` (another connection fills the session's copy, so retry soon),
                `other-log` (the copy is of a log of another id), `reserve` (the disk is almost
                full), or another reason why the node does not accept the session now.
        """

    def why_no_headers(self) -> str:
        """Return, as text, why publishers may not write headers yet; "" if they may."""

    @property
    def is_first(self) -> bool:
        """Whether this node merges before the others, so that publishers wait for its reply."""

    def handle_appends(self) -> None:
        """Record that a connection has appended everything that had arrived.

        The host may sync the bytes, and act on the sync, before this returns.
        """

    def feed(self, wake: Bell, *, relays: bool) -> Feed:
        """Return the merged log for a peer that may pull it.

        Args:
            wake: the bell to ring when `end` has changed, or a file was rolled or archived.
            relays: whether the peer is a node, which can use an incomplete log.

        Raises:
            Refused: the node does not serve now.
        """

    def damaged(self, error: CorruptLog, growing: bool) -> None:
        """Record that the merged log was found damaged while it was served.

        Args:
            error: what is wrong, and where.
            growing: whether the damaged file is the active one; all others are rolled.
        """
