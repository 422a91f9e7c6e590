"""PushConnection: ships sessions to one node."""

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import lru_cache, partial
from typing import Final, Protocol

from replicator.push.channel_errors import ChannelErrors
from replicator.push.pace import SessionSweep
from replicator.source.channel import SourceChannel
from replicator.source.connection import SourceConnection
from replicator.source.gather_window import GatherWindow
from replicator.wire.codec import HEADERS_VERSION
from replicator.wire.dialer import Destination, Dialer
from replicator.wire.link import HEARTBEAT_S, Link
from replicator.wire.messages import CHANNELS_MAX, Ack
from rt.errors import SEALED, CorruptLog, Refused, spoken
from rt.log.files.archived import last_archived
from rt.log.files.directory import LogDirectory
from rt.log.notify.headers_note import CANNOT_READ
from rt.log.notify.in_process_notify import WrittenFrame
from rt.net.addresses import Address, address_text
from rt.position import START, Position
from rt.traffic import Traffic

_NO_CHANNEL: Final = (
    "a connection carries {:,} sessions at most; let another program ship some of them"
)


class ShippedSessions(Protocol):
    """Which sessions a connection ships, and where their acknowledgements go.

    Any thread may call any method.
    """

    look_s: float | None  # how often to check all sessions; None if `check_soon` is called instead

    def is_wanted(self) -> bool:
        """Whether a connection is needed at all; if not, it is closed."""

    def names(self) -> Sequence[str]:
        """Return the sessions to ship now."""

    def open(self, session: str) -> tuple[LogDirectory, Callable[[], Position] | None] | None:
        """Open a session's log for sending.

        Returns:
            A pair: the log, and a function that returns the end of what may be sent now. Instead of
            the function, None if all of the log may be sent. Instead of the pair, None if the log
            is gone or must not be shipped.
        """

    def answered(self, node: str, holder: str) -> None:
        """Record that the node at an address has a certificate with the name `holder`."""

    def acked(self, session: str, node: str, ack: Ack, log: str) -> bool:
        """Record an acknowledgement of the log with the id `log`; return whether it is news."""

    def save(self, session: str, *, whole: bool) -> None:
        """Save what was acknowledged; `OSError` if that fails.

        Args:
            session: the session's name.
            whole: whether to also save confirmations that no caller waits for.
        """

    def rest(self, session: str) -> None:
        """Close the files of an idle session."""

    def begun(self, serial: int) -> None:
        """Record that a connection began; by then, `serial` logs were known to have ended."""

    def refused(self, session: str, why: Refused) -> float:
        """Record a refusal; return after how many seconds to offer the session again."""


class PushConnection:
    """Keeps a connection to one node, with a channel for each session.

    `offer` sends a small update itself if the socket has room for it; the connection's next turns
    send everything else.

    Threads: only the loop uses a connection, except that any thread may call `all_sent`, `sent`,
    `archived_to`, `error` and `refusal`, and read `traffic`; these read whole entries.
    """

    def __init__(
        self,
        destination: Destination,
        book: ShippedSessions,
        gather: GatherWindow,
        headers: Callable[[str, str], None] = lambda _node, _why_not: None,
        channels_max: int = CHANNELS_MAX,
        *,
        sealed: Callable[[], None] = lambda: None,
    ) -> None:
        """Prepare to ship the sessions of `book`, at most `channels_max` at a time.

        `gather` is notified of what was sent and merged. `headers` is called with the node's name
        and the reason why the node does not accept messages with headers yet, or "". `sealed` is
        called when `is_sealed` has changed.
        """
        self.name = destination.member or address_text(destination.nodes[0])
        self.is_sealed = False  # whether the node refuses everything because its log has ended
        self._sealed = sealed
        self._successions = destination.contexts.successions
        self._book = book
        self._gather = gather
        self._headers = headers
        self._channels_max = channels_max
        self.dialer = Dialer(destination, self)
        self._errors = ChannelErrors(f"node {self.name}" if destination.member else self.name)
        self._channels: dict[str, SourceChannel] = {}  # by session
        self._hints: set[str] = set()  # sessions to check in the next turn
        self._sweep = SessionSweep()  # checks all sessions
        self.traffic = Traffic()  # what was sent
        self._side: SourceConnection | None = None

    def offer(self, session: str, frame: WrittenFrame | None = None) -> None:
        """Announce that this session may have grown, with the new frame if it is known."""
        if self._side is None or self._sent_now(session, frame):
            return  # the update was sent; or the next connection will check all sessions
        if session in self._channels or not self._errors.get(session):
            self._hints.add(session)  # others are retried when all sessions are checked
            self.dialer.set()

    def check_soon(self, *, urgent: bool = True) -> None:
        """Check all sessions soon; `urgent` if some have probably changed, or are new."""
        self._sweep.ask(urgent=urgent)
        if self._side is not None:  # else the next connection will check all sessions
            self.dialer.set()

    def drop(self, session: str) -> None:
        """Stop shipping a session, so that another connection may ship it."""
        channel = self._channels.pop(session, None)
        self._hints.discard(session)
        if channel is not None and self._side is not None:
            self._note_last(session, channel)
            self._side.leave(channel)
            self.dialer.set()
        self._errors.forget(session)

    def all_sent(self, session: str) -> Position | None:
        """Return the end of the session if all of it was sent; None otherwise."""
        channel = self._channels.get(session)
        if channel is None or channel.has_news():
            return None
        # a file without a frame holds nothing that a node could confirm
        return channel.log.manifest.frames_end(channel.position)

    def sent(self, session: str) -> tuple[Position | None, int]:
        """Return the end of what was sent, and how many bytes follow in the same file.

        Return None and 0 if no channel carries the session.
        """
        channel = self._channels.get(session)
        if channel is None:
            return None, 0
        return channel.position, channel.changes.bytes_after(channel.position)

    def archived_to(self, session: str) -> Position:
        """Return the end of a session's last archived file.

        Return `START` if no file is archived, or no channel carries the session.
        """
        channel = self._channels.get(session)
        if channel is None:
            return START
        known = channel.log.manifest
        last = last_archived(known)
        return Position(last + (known.rolled_end(last) or 0)) if last in known.archived else START

    def error(self, session: str) -> str:
        """Return why a session is not shipped, or ""."""
        return self._errors.get(session) or self.dialer.error

    def refusal(self, session: str) -> str:
        """Return the code with which the node refuses a session, or ""."""
        return self._errors.code(session)

    # What the dialer calls (`replicator.wire.dialer.Served`)

    def is_wanted(self) -> bool:
        """Whether to have a connection now.

        Also False if the connection has used up its channel numbers, and a new connection would
        have enough of them for all sessions. The dialer then makes a new connection.
        """
        side = self._side
        is_used_up = side is not None and side.is_used_up
        return self._book.is_wanted() and not (
            is_used_up and len(self._book.names()) < self._channels_max
        )

    def avoids(self, _node: Address) -> bool:
        """Return False: any address of the node will do."""
        return False

    def begin(self, link: Link) -> None:
        """Start on a new connection: check all sessions."""
        self._errors.reconnected()
        self._book.begun(self.dialer.greeting.serial)
        self._book.answered(self.name, self.dialer.holder)
        self._sweep.ask(urgent=True)
        self._side = SourceConnection(
            link, acked=self._take_ack, refused=self._take_refusal, traffic=self.traffic,
            headers=partial(self._headers, self.name), channels_max=self._channels_max,
            heard=self._hear,
        )  # fmt: skip
        if link.version < HEADERS_VERSION:
            runs = link.software or "an older version of rt"
            self._headers(self.name, f"node {self.name} runs {runs}, {CANNOT_READ}")

    def end(self) -> None:
        """Save the confirmations, and release the logs."""
        side, self._side = self._side, None
        channels, self._channels = self._channels, {}
        for session, channel in channels.items():
            self._note_last(session, channel)
        if side is not None:
            side.close()

    def aside(self) -> None:
        """Return None: there is no work for another thread."""

    def turn(self) -> float:
        """Check sessions that have grown, receive and send; return seconds until the next turn."""
        look_s, side = self._book.look_s, self._side
        if side is None:
            return HEARTBEAT_S
        if look_s is not None:
            self._sweep.ask(urgent=True)
        if self._sweep.is_asked:
            self._begin_sweep()
        self._look_at_some(side)
        hinted: list[tuple[str, SourceChannel, Position]] = []
        while self._hints:
            session = self._hints.pop()
            channel = self._channels.get(session)
            if channel is None:
                self._sweep.add(session)
                continue
            side.mark(channel)
            hinted.append((session, channel, channel.position))
        try:
            side.turn()
        except Refused as why:
            self._is_refused(why)
            raise
        for session, channel, before in hinted:
            if channel.position > before:
                self._gather.sent(session, channel.position)
        return 0.0 if side.busy else self._sweep.wait_s(look_s or HEARTBEAT_S)

    def _sent_now(self, session: str, frame: WrittenFrame | None) -> bool:
        channel = self._channels.get(session)
        if self._side is None or channel is None:
            return False
        if not self._side.send_now(channel, frame):
            return False
        self._gather.sent(session, channel.position)
        return True

    def _begin_sweep(self) -> None:
        self._sweep.answer()
        names = self._book.names()
        new = [each for each in names if each not in self._channels and self._errors.is_due(each)]
        self._sweep.begin(new, self._channels)

    def _look_at_some(self, side: SourceConnection) -> None:
        """Check a few sessions for changes that were not announced, and for new sessions."""
        for session in self._sweep.some():
            channel = self._channels.get(session)
            if channel is None:
                if self._errors.is_due(session):  # the session may have been refused meanwhile
                    self._open(side, session)
                continue
            if channel.has_news():
                side.mark(channel)
                if channel.has_begun:
                    self._note_whole(session, channel)
            else:
                self._note(session, whole=True)  # `has_news` has shown that the log is in place
                if channel.changes.has_idled():  # a busy session would soon open its files again
                    channel.rest()
                    self._rest(session)

    def _open(self, side: SourceConnection, session: str) -> None:
        found = self._book.open(session)
        if found is None:
            return
        log, end = found
        try:
            if log.refresh():
                if side.is_used_up:
                    raise Refused("sessions", _NO_CHANNEL.format(self._channels_max))
                self._channels[session] = side.open(log, end)
                return  # the reason of a refusal is kept until the node accepts the session
        except Refused as why:
            self._refuse(session, why)
        except (CorruptLog, OSError) as error:
            self._refuse(session, Refused("corrupt", str(error)))
        log.close()

    def _hear(self, text: str) -> None:
        if self._successions is not None:
            self._successions.hear(text)

    def _is_refused(self, why: Refused | None) -> None:
        is_sealed = why is not None and why.code == SEALED
        if is_sealed != self.is_sealed:
            self.is_sealed = is_sealed
            self._sealed()

    def _take_ack(self, channel: SourceChannel, ack: Ack) -> None:
        session = _name_of(channel.log.path)
        if self.is_sealed:
            self._is_refused(None)
        self._gather.merged(session, ack.merged, self.name)
        if self._book.acked(session, self.name, ack, channel.identity.id):
            self.dialer.progressed()
            if not self._errors.is_clean:
                self._errors.progressed(session)
            self._note(session, whole=False)

    def _note(self, session: str, *, whole: bool) -> None:
        """Save the confirmations for the publisher; a failure is retried at the next check."""
        try:
            self._book.save(session, whole=whole)
        except OSError as error:
            self._errors.record(
                session, f"what the node confirmed cannot be noted: {spoken(error)}"
            )
        else:
            if not self._errors.is_clean:
                self._errors.record(session, "")

    def _note_whole(self, session: str, channel: SourceChannel) -> None:
        """Save all confirmations, unless the session's directory was restored from a backup.

        The confirmations of the old directory do not apply to the restored one.
        """
        if channel.changes.is_in_place():
            self._note(session, whole=True)

    def _note_last(self, session: str, channel: SourceChannel) -> None:
        with suppress(OSError):  # the directory cannot be read; the next channel reports why
            self._note_whole(session, channel)
        self._rest(session)

    def _rest(self, session: str) -> None:
        with suppress(OSError):  # one session's file must not end a connection that all share
            self._book.rest(session)

    def _take_refusal(self, channel: SourceChannel, why: Refused) -> None:
        session = _name_of(channel.log.path)
        known = self._channels.pop(session, None)
        if known is not None:
            self._note_last(session, known)
        self._refuse(session, why)

    def _refuse(self, session: str, why: Refused) -> None:
        if why.code == SEALED:
            self._is_refused(why)
        self._errors.refused(session, why, self._book.refused(session, why))


@lru_cache(4096)
def _name_of(path: str) -> str:
    """Return the name of a session's directory; the manifest in it may have another name."""
    return os.path.basename(path)  # makes some six calls, and each acknowledgement needs it
