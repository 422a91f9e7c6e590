"""SinkConnection: receives logs from the source at the other end of a connection."""

import logging
import time
from collections.abc import Callable
from functools import partial
from typing import Final

from replicator.host import Bell, Inbox
from replicator.sink.ack_schedule import AckSchedule, ChannelBell
from replicator.sink.channel import SinkChannel
from replicator.sink.columns_check import ColumnsCheck
from replicator.wire import messages
from replicator.wire.codec import HEADERS_VERSION, encode, encode_ack
from replicator.wire.link import Link, refusal_of
from replicator.wire.messages import (
    CHANNELS_MAX,
    CLOSED,
    CONNECTION,
    PASSING,
    ArchivedNotice,
    CaughtUpNotice,
    Data,
    Heartbeat,
    Message,
    Open,
    RolledNotice,
)
from rt.errors import CorruptLog, ManifestError, Misuse, PeerError, Refused
from rt.format.manifest import LogIdentity
from rt.net.loop.turns import LoopTurns

_log: Final = logging.getLogger(__name__)
# What files and sessions cost a node, in messages of 20 us. For each file of a log, the node makes
# two files, writes two lines and syncs twice. An honest publisher sends few files without a frame,
# since it leaves one only if it is killed. Opening a known session takes 0.4 ms; opening a new one
# takes 3 ms, since its directory and manifest are made and synced.
_FILE_MESSAGES: Final = 100  # at least; see `_FILE_MESSAGES_S`
_EMPTY_FILE_MESSAGES: Final = 2000
_OPEN_MESSAGES: Final = 20
_BEGIN_MESSAGES: Final = 130
# Added for a heartbeat, so that it counts as five messages. A node may send five times as many
# messages as a publisher, but a flood of a node's heartbeats must cost no more than a publisher's.
_HEARTBEAT_MESSAGES: Final = 4

# Ending a file is also charged for the time that it took, at so many messages a second. So a name
# that may send 10,000 messages a second can use a tenth of the disk's time, which everyone's
# messages need. A stalled disk is not the peer's fault, so no file is charged for more than
# `_FILE_LONGEST_S`.
_FILE_MESSAGES_S: Final = 100_000
_FILE_LONGEST_S: Final = 0.1

# Nodes that have just started agree within 10 s that messages may have headers. Until
# then, a new connection asks every 0.1 s whether they may; afterwards, with each heartbeat.
_AGREED_S, _ASK_S = 10.0, 0.1

_IDLE_S: Final = 60.0  # the link's own deadlines are shorter
_NO_ROOM_S: Final = 0.02  # between two checks whether a peer that was not reading has made room


Claim = Callable[[LogIdentity, Bell], Inbox]


class SinkConnection:
    """SinkConnection: a connection's incoming channels, each acknowledged as it progresses.

    Threads: any thread may call `acknowledge`, but it acts only in the loop's thread, and only
        while `is_lent` is false. Everything else is called by the loop, or by the one thread to
        which the loop lends the connection. `is_lent` is true during a turn, and while another
        thread does `take_aside` or `close`.

    Attributes:
        aside: work that `turn` has left to `take_aside`, or None; until that is done, no further
            message is handled.
        pause_s: seconds until the next turn is due if nothing arrives.
        is_lent: whether a turn or another thread uses the connection, so `acknowledge` must not.
    """

    def __init__(
        self,
        link: Link,
        schedule: AckSchedule,
        claim: Claim,
        *,
        columns: ColumnsCheck | None = None,
        handle_appends: Callable[[], None] = lambda: None,
        caught_up: Callable[[CaughtUpNotice], None] = lambda _message: None,
        refused: Callable[[Refused], None] = lambda _why: None,
        start: str | None = None,
        headers: Callable[[], str] | None = None,
        heard: Callable[[str], None] = lambda _text: None,
        loop: LoopTurns | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Start without a channel.

        Args:
            link: a link on which both sides have greeted.
            schedule: when to acknowledge; it wakes the link.
            claim: returns the inbox for a log that the source offers, or raises `Refused`.
            columns: checks that messages can be decoded; None if a node has checked the log.
            handle_appends: called when everything that had arrived has been appended.
            caught_up: called when the source has nothing more to send.
            refused: called with the reason when a channel has ended.
            start: where a reader's empty copy is to begin; "" for the oldest file. None for copies
                that are not a reader's.
            headers: returns why messages may not have headers, or ""; None for copies of logs that
                a node has accepted.
            heard: called with a peer's statement that another log continues the stream's log; may
                raise.
            loop: the loop that serves the connection; its thread acknowledges when it rings a bell.
                None to leave all acknowledgements to turns.
            clock: a monotonic clock, in seconds.
        """
        self._clock = clock
        self._loop = loop
        self.is_lent = False
        self._link = link
        self._schedule = schedule
        self._claim = claim
        self._columns = columns
        self._handle_appends = handle_appends
        self._caught_up = caught_up
        self._refused = refused
        self._start = start
        self._headers = headers
        self._heard = heard
        self._headers_told: str | None = None  # the last answer that was sent
        self._begun_s = time.monotonic()
        self.aside: Callable[[], None] | None = None
        self.pause_s = _IDLE_S
        self._channels: dict[int, SinkChannel] = {}
        self._opened = -1  # number of the last opened channel
        self._has_written = False  # whether bytes were appended since the last `handle_appends`
        self._last_codes: dict[str, str] = {}  # last refusal's code by log, to log it once

    def turn(self) -> None:
        """Handle what has arrived, and send due acknowledgements.

        An event loop calls this; work that waits for the disk is left to `take_aside`.

        Raises:
            PeerError: the peer broke the protocol, or has gone.
            Refused: the peer refuses the connection.
        """
        self.is_lent = True
        try:
            self._take_arrived()
            link, schedule = self._link, self._schedule
            if self._headers is not None and self._headers_told != "":
                self._tell_headers(self._headers)
            self._report_appends()
            link.beat()  # first: posted bytes must be sent before there is room for more
            self.pause_s = _ASK_S if self._headers_told and self._asks_soon() else _IDLE_S
            # What is left aside is done first: a peer that has hung up takes no acknowledgement.
            if self.aside is None and schedule.check():
                if link.has_left:
                    self.pause_s = _NO_ROOM_S
                    return
                due = map(self._acknowledgement, schedule.due(self._channels))
                if acks := b"".join(due):
                    link.post(acks)
                self.pause_s = min(self.pause_s, schedule.pause_s)
        finally:
            self.is_lent = False

    def _take_arrived(self) -> None:
        """Handle messages until one is left aside, or no more have arrived."""
        for message in self._link.receive():
            if (
                type(message) is Data
                and (channel := self._channels.get(message.channel)) is not None
            ):
                self._act(channel, message, may_wait=False)
            elif self._is_slow(message):
                self.aside = partial(self._take, message)
            else:
                self._take(message)
            if self.aside is not None:
                break

    def _report_appends(self) -> None:
        if self._has_written:
            self._has_written = False
            self._handle_appends()

    def take_aside(self) -> None:
        """Do the work that `turn` left, on a thread that may wait for the disk.

        Raises:
            PeerError: the peer broke the protocol, or has gone.
        """
        try:
            while (work := self.aside) is not None:
                self.aside = None
                work()
        finally:
            self.is_lent = False

    def acknowledge(self, number: int) -> bool:
        """Acknowledge a channel at once; any thread may call this.

        Returns:
            False if the caller must instead wake the connection, so that a turn acknowledges.
        """
        if self.is_lent or self._loop is None or not self._loop.is_own_thread:
            return False
        channel, link = self._channels.get(number), self._link
        if channel is None or channel.inbox.leave is not None or link.has_left:
            return False
        if not self._schedule.remove_if_due(channel):
            return False
        try:
            if (ack := channel.news()) is not None:
                link.post(encode_ack(ack))
        except PeerError:
            return False  # the next turn meets the same obstacle, and reports it
        return not link.has_left

    def beat(self) -> None:
        """Send a heartbeat if one is due, between two turns that are far apart.

        Raises:
            PeerError: the peer has gone.
        """
        self._link.beat()

    def close(self) -> None:
        """Release all logs; call `handle_appends` first if bytes were appended since then."""
        try:
            self._report_appends()
        finally:
            while self._channels:
                _, channel = self._channels.popitem()
                channel.inbox.release()

    def _tell_headers(self, why_no_headers: Callable[[], str]) -> None:
        why_not = why_no_headers()
        if why_not != self._headers_told:
            self._headers_told = why_not
            if self._link.version >= HEADERS_VERSION:
                self._link.send(encode(messages.HeadersNotice(why_not)))

    def _asks_soon(self) -> bool:
        """Whether the connection is new, so that it often asks whether messages may have headers.

        Nodes that have just started may agree within seconds to allow headers.
        """
        return time.monotonic() < self._begun_s + _AGREED_S

    def _is_slow(self, message: Message) -> bool:
        """Whether handling a message waits for the disk: it opens a copy, or ends a file.

        A message for a channel that has ended is not slow, since it is ignored.
        """
        if isinstance(message, Open):
            return True
        return (
            isinstance(message, RolledNotice | ArchivedNotice) and message.channel in self._channels
        )

    def _take(self, message: Message) -> None:
        if isinstance(message, Heartbeat):
            self._link.charge(_HEARTBEAT_MESSAGES)
            return
        if isinstance(message, Open):
            self._open(message)
            return
        if isinstance(message, messages.SuccessionNotice):
            self._link.charge(_OPEN_MESSAGES)  # a signature is checked
            self._heard(message.text)
            return
        if isinstance(message, messages.Refusal) and message.channel == CONNECTION:
            raise refusal_of(message)
        if not isinstance(
            message, Data | RolledNotice | ArchivedNotice | CaughtUpNotice | messages.Refusal
        ):
            raise PeerError(f"a source does not send {type(message).__name__}")
        channel = self._channels.get(message.channel)
        if channel is not None:
            self._act(channel, message)
        elif message.channel > self._opened:
            raise PeerError(f"it uses channel {message.channel}, which was not opened")

    def _open(self, message: Open) -> None:
        if not self._opened < message.channel < CHANNELS_MAX:
            raise PeerError(f"it opens channel {message.channel} after {self._opened}")
        number = self._opened = message.channel
        self._link.charge(_OPEN_MESSAGES)
        try:
            bell = ChannelBell(number, self._schedule, self.acknowledge)
            inbox = self._claim(message.identity, bell)
            channel = SinkChannel(number, inbox, self._start, self._columns, self._headers)
            self._channels[number] = channel
            standing = channel.standing()
        except (Refused, CorruptLog, ManifestError, Misuse, OSError) as error:
            if (begun := self._channels.get(number)) is not None:
                self._end(begun)
            self._refuse(number, message.identity.name, _refusal(error))
            return
        if not standing.end:
            self._link.charge(_BEGIN_MESSAGES)
        self._schedule.add_news(number)
        self._link.send(encode(standing))

    def _act(
        self,
        channel: SinkChannel,
        message: Data | RolledNotice | ArchivedNotice | CaughtUpNotice | messages.Refusal,
        *,
        may_wait: bool = True,
    ) -> None:
        self._has_written = True
        try:
            if isinstance(message, Data):
                if not channel.take_data(message, may_wait=may_wait):
                    self.aside = partial(self._take, message)
                    return
                self._schedule.expect(channel.channel)
                if self._last_codes:
                    self._last_codes.pop(_name(channel), None)
            elif isinstance(message, RolledNotice):
                self._end_file(channel, message)
            elif isinstance(message, ArchivedNotice):
                channel.take_archived(message)
            elif isinstance(message, CaughtUpNotice):
                self._caught_up(message)
            else:
                raise refusal_of(message)
        except (Refused, ManifestError, Misuse, OSError) as error:
            fail = partial(
                self._fail, channel, error, by_source=isinstance(message, messages.Refusal)
            )
            if _is_divergence(error):
                self.aside = fail  # it reads all of the copy
            else:
                fail()

    def _end_file(self, channel: SinkChannel, message: RolledNotice) -> None:
        """End a file, and charge for the time that it took."""
        least = _FILE_MESSAGES if message.line.end else _EMPTY_FILE_MESSAGES
        began_s = self._clock()
        try:
            channel.take_rolled(message)
        finally:
            took_s = min(self._clock() - began_s, _FILE_LONGEST_S)
            self._link.charge(max(least, int(took_s * _FILE_MESSAGES_S)))

    def _fail(self, channel: SinkChannel, error: Exception, *, by_source: bool) -> None:
        """End a channel, and only that one; tell the source, unless the source ended it."""
        if _is_divergence(error):
            channel.inbox.doubted(str(error))
        self._end(channel)
        if by_source:
            self._report(_name(channel), _refusal(error))
        else:
            self._refuse(channel.channel, _name(channel), _refusal(error))

    def _acknowledgement(self, number: int) -> bytes:
        """Return a channel's due acknowledgement, or b""; end a channel that the host refuses."""
        channel = self._channels.get(number)
        if channel is None:
            return b""
        if (why := channel.inbox.leave) is not None:
            self._end(channel)
            self._refuse(number, _name(channel), why)
        elif (ack := channel.news()) is not None:
            return encode_ack(ack)
        return b""

    def _refuse(self, channel: int, log: str, why: Refused) -> None:
        self._link.send(encode(messages.Refusal(channel, why.code, str(why))))
        self._report(log, why)

    def _report(self, log: str, why: Refused) -> None:
        """Report why a log is refused, but log it once: the source may offer it twice a second."""
        if why.code == CLOSED:
            return
        if self._last_codes.get(log) != why.code:
            self._last_codes[log] = why.code
            level = logging.INFO if why.code in PASSING else logging.WARNING
            _log.log(level, "%s: %s: %s", self._link.name, why.code, why)
        self._refused(why)

    def _end(self, channel: SinkChannel) -> None:
        del self._channels[channel.channel]
        channel.inbox.release()


def _is_divergence(error: Exception) -> bool:
    return isinstance(error, Refused) and error.code == "diverged"


def _name(channel: SinkChannel) -> str:
    return channel.inbox.appender.identity.name


def _refusal(error: Exception) -> Refused:
    if isinstance(error, Refused):
        return error
    if isinstance(error, Misuse):
        return Refused("name", str(error))
    return Refused("disk" if isinstance(error, OSError) else "corrupt", str(error))
