"""SinkSide: takes logs from the source at the other end of a connection, a channel each."""

import logging
import time
from collections.abc import Callable
from threading import get_ident
from typing import Final

from replicator import wire
from replicator.host import Bell, Inbox
from replicator.link import Link, refusal_of
from replicator.sink_channel import SinkChannel
from replicator.wire import (
    CONNECTION,
    ArchivedNotice,
    CaughtUpNotice,
    Data,
    Heartbeat,
    Message,
    Open,
    RolledNotice,
    encode,
)
from rt.errors import CorruptLog, ManifestError, Misuse, PeerError, Refused
from rt.format.manifest import LogIdentity
from rt.log.watch import Wake

_log: Final = logging.getLogger(__name__)
# A node serves 1,000 sessions; one connection may bring all of them, and as many again that ended.
CHANNELS_MAX: Final = 4096

_IDLE_S: Final = 60.0  # the link wakes up by itself where it must
_PAUSE_LEAST_S: Final = 0.001  # what is due may have to wait for a peer that takes nothing

Claim = Callable[[LogIdentity, Bell], Inbox]


class ChannelBell:
    """Tells the connection which of its channels has news; any thread rings it."""

    __slots__ = ("_can_wait", "_channel", "_news", "_thread", "_wake")

    def __init__(
        self, channel: int, news: set[int], wake: Wake, can_wait: Callable[[int], bool]
    ) -> None:
        self._channel = channel
        self._news = news
        self._thread = get_ident()
        self._wake = wake
        self._can_wait = can_wait

    def set(self) -> None:
        """Make the connection look at this channel."""
        if self._can_wait(self._channel):
            return
        if self._channel not in self._news:  # else it has not looked since, and will
            self._news.add(self._channel)
            if get_ident() != self._thread:  # which looks before it waits
                self._wake.set()


class SinkConnection:
    """The channels of one connection that are filled; each acknowledged when it has news."""

    def __init__(
        self,
        link: Link,
        wake: Wake,
        claim: Claim,
        *,
        settle: Callable[[], None] = lambda: None,
        caught_up: Callable[[CaughtUpNotice], None] = lambda _message: None,
        refused: Callable[[Refused], None] = lambda _why: None,
        patience_s: float = 0.0,
        is_first: Callable[[], bool] = lambda: True,
    ) -> None:
        """Begin without a channel.

        Args:
            link: the peer's and our Hello were exchanged.
            wake: the one the link waits for.
            claim: gives the inbox of a log, or raises `Refused`.
            settle: is called when all that had come was appended.
            caught_up: is told when the source has nothing more.
            refused: is told why a channel has ended.
            patience_s: how long what is durable may wait to be acknowledged as merged, too. Most
                often it is merged soon, and one acknowledgement instead of two tells of it.
            is_first: whether the source hears of what is merged from here before it does from
                others; if not, all acknowledgements wait as long, and one tells of many merges.
        """
        self._link = link
        self._wake = wake
        self._claim = claim
        self._settle = settle
        self._caught_up = caught_up
        self._refused = refused
        self._patience_s = patience_s
        self._is_first = is_first
        self._inlets: dict[int, SinkChannel] = {}
        self._opened = -1  # the last channel that was
        self._news: set[int] = set()
        self._waiting: dict[int, float] = {}  # channels to acknowledge at a time, if not before
        self._has_written = False  # since `settle` was called
        self._told: dict[str, str] = {}  # logs that were refused last, and the code that was said

    def turn(self) -> None:
        """Take what has come, and acknowledge what has become of it.

        Raises:
            PeerError: the peer broke the protocol, or has gone.
            Refused: the peer refuses the connection.
        """
        for message in self._link.receive():
            self._take(message)
        self._settle_written()
        if (self._news or self._waiting) and self._link.can_send():
            self._acknowledge()
        self._link.beat()

    @property
    def pause_s(self) -> float:
        """How long nothing is to be done, unless something comes."""
        if not self._waiting:
            return _IDLE_S
        return max(_PAUSE_LEAST_S, min(self._waiting.values()) - time.monotonic())

    def close(self) -> None:
        """Let go of all logs; what came right before the end is settled like all before it."""
        try:
            self._settle_written()
        finally:
            while self._inlets:
                _, inlet = self._inlets.popitem()
                inlet.inbox.release()

    def _settle_written(self) -> None:
        if self._has_written:
            self._has_written = False
            self._settle()

    def _take(self, message: Message) -> None:
        if isinstance(message, Heartbeat):
            return
        if isinstance(message, Open):
            self._open(message)
            return
        if isinstance(message, wire.Refusal) and message.channel == CONNECTION:
            raise refusal_of(message)
        if not isinstance(
            message, Data | RolledNotice | ArchivedNotice | CaughtUpNotice | wire.Refusal
        ):
            raise PeerError(f"a source does not send {type(message).__name__}")
        inlet = self._inlets.get(message.channel)
        if inlet is not None:
            self._act(inlet, message)
        elif message.channel > self._opened:
            raise PeerError(f"it speaks of channel {message.channel}, which was not opened")

    def _open(self, message: Open) -> None:
        if not self._opened < message.channel < CHANNELS_MAX:
            raise PeerError(f"it opens channel {message.channel} after {self._opened}")
        channel = self._opened = message.channel
        try:
            bell = ChannelBell(channel, self._news, self._wake, self._can_wait)
            inbox = self._claim(message.identity, bell)
            inlet = self._inlets[channel] = SinkChannel(channel, inbox)
            standing = inlet.standing()
        except (Refused, CorruptLog, ManifestError, Misuse, OSError) as error:
            if (begun := self._inlets.get(channel)) is not None:
                self._end(begun)
            self._refuse(channel, message.identity.name, _refusal(error))
            return
        self._news.add(channel)
        self._link.send(encode(standing))

    def _act(
        self,
        inlet: SinkChannel,
        message: Data | RolledNotice | ArchivedNotice | CaughtUpNotice | wire.Refusal,
    ) -> None:
        self._has_written = True
        try:
            if isinstance(message, Data):
                inlet.take_data(message)
                if self._told:
                    self._told.pop(_name(inlet), None)
            elif isinstance(message, RolledNotice):
                inlet.take_rolled(message)
            elif isinstance(message, ArchivedNotice):
                inlet.take_archived(message)
            elif isinstance(message, CaughtUpNotice):
                self._caught_up(message)
            else:
                raise refusal_of(message)
        except (Refused, ManifestError, Misuse, OSError) as error:
            if isinstance(error, Refused) and error.code == "diverged":
                inlet.inbox.doubted()
            self._end(inlet)
            if isinstance(message, wire.Refusal):
                self._tell(_name(inlet), _refusal(error))
            else:
                self._refuse(inlet.channel, _name(inlet), _refusal(error))

    def _acknowledge(self) -> None:
        now_s = time.monotonic()
        while self._news:
            channel = self._news.pop()
            inlet = self._inlets.get(channel)
            if inlet is not None and self._patience_s and self._is_patient(inlet):
                self._waiting.setdefault(channel, now_s + self._patience_s)
            else:
                self._tell_news(channel)
        for channel in [each for each, at_s in self._waiting.items() if at_s <= now_s]:
            self._tell_news(channel)

    def _is_patient(self, inlet: SinkChannel) -> bool:
        return inlet.is_merging or not self._is_first()

    def _can_wait(self, channel: int) -> bool:
        """Whether news of a channel are told in time without a look at it; any thread may ask."""
        return channel in self._waiting and not self._is_first()

    def _tell_news(self, channel: int) -> None:
        self._waiting.pop(channel, None)
        inlet = self._inlets.get(channel)
        if inlet is None:
            return
        if inlet.inbox.is_wanted:
            self._end(inlet)
            words = "this session is left to another connection"
            self._refuse(channel, _name(inlet), Refused("busy", words))
        elif (ack := inlet.news()) is not None:
            self._link.send(encode(ack))

    def _refuse(self, channel: int, log: str, why: Refused) -> None:
        self._link.send(encode(wire.Refusal(channel, why.code, str(why))))
        self._tell(log, why)

    def _tell(self, log: str, why: Refused) -> None:
        """Say why a log is not taken; once, though it is offered again every half second."""
        if self._told.get(log) != why.code:
            self._told[log] = why.code
            _log.warning("%s: %s: %s", self._link.name, why.code, why)
        self._refused(why)

    def _end(self, inlet: SinkChannel) -> None:
        del self._inlets[inlet.channel]
        inlet.inbox.release()


def _name(inlet: SinkChannel) -> str:
    return inlet.inbox.appender.identity.name


def _refusal(error: Exception) -> Refused:
    if isinstance(error, Refused):
        return error
    if isinstance(error, Misuse):
        return Refused("name", str(error))
    return Refused("disk" if isinstance(error, OSError) else "corrupt", str(error))
