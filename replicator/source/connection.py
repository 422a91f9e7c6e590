"""SourceConnection: serves logs, one per channel, to the sink at the other end of a connection."""

import time
from collections.abc import Callable
from itertools import islice
from typing import Final, TypeVarTuple

from replicator.source.channel import Recent, SourceChannel
from replicator.wire import messages
from replicator.wire.codec import encode
from replicator.wire.frame_buffer import FrameBuffer
from replicator.wire.link import Link, refusal_of
from replicator.wire.messages import (
    CHANNELS_MAX,
    CLOSED,
    CONNECTION,
    Ack,
    Heartbeat,
    Message,
    Standing,
)
from rt.errors import CorruptLog, PeerError, Refused
from rt.limits import KIB
from rt.log.files.directory import LogDirectory
from rt.log.notify.in_process_notify import WrittenFrame
from rt.position import Position
from rt.traffic import Traffic

_OF_A_SINK: Final = (Ack, Standing, messages.Refusal)
# Acknowledgements taken per turn. Connections share the interpreter with the sequencing thread, and
# decoding a thousand takes 2.5 ms.
_TURN_ACKS: Final = 100
# Bytes sent in a turn. They may be of several logs, since a turn costs a poll and a read, as much
# as a small update. At 1 Gbit/s, sending them takes 2 ms, during which no acknowledgement is taken.
_TURN_BYTES: Final = 256 * KIB
_TURN_LOGS: Final = 16
_WORD_MESSAGES: Final = 20  # what checking a signature costs, in messages
_REST_S: Final = 0.9  # idle time after which the memory of a backlog is released
_Args = TypeVarTuple("_Args")


class SourceConnection:
    """A connection's outgoing channels, which take turns to send when their logs have grown."""

    def __init__(
        self,
        link: Link,
        *,
        acked: Callable[[SourceChannel, Ack], None] | None = None,
        refused: Callable[[SourceChannel, Refused], None] = lambda _channel, _why: None,
        damaged: Callable[[CorruptLog], None] = lambda _error: None,
        traffic: Traffic | None = None,
        headers: Callable[[str], None] = lambda _why_not: None,
        heard: Callable[[str], None] = lambda _text: None,
        channels_max: int = CHANNELS_MAX,
    ) -> None:
        """Start without a channel.

        Args:
            link: a link on which both sides have greeted.
            acked: called with each checked acknowledgement; if None, acknowledgements that a later
                one replaces are skipped.
            refused: called with a channel that has ended, and the reason.
            damaged: called when a served log was found damaged.
            traffic: counts what is sent.
            headers: called with the reason why publishers may not write headers, or "".
            heard: called with a peer's statement that another log continues the stream's log; may
                raise.
            channels_max: how many channels the sink accepts on a connection.
        """
        link.take_no_frames()
        self._link = link
        self._acked = acked
        self._refused = refused
        self._damaged = damaged
        self._headers = headers
        self._heard = heard
        self._channels_max = channels_max
        self._channels: dict[int, SourceChannel] = {}
        self._opened = 0  # number of opened channels; they are numbered from 0
        self._ready: dict[int, SourceChannel] = {}  # in the order of their turns
        self._buffer = FrameBuffer(traffic=traffic, memory=link.memory)
        self._sent_s = 0.0  # when something was last sent in a turn
        self._broken: PeerError | None = None  # since something was sent between two turns

    @property
    def busy(self) -> bool:
        """Whether any channel has something to send now."""
        return bool(self._ready)

    def open(
        self,
        log: LogDirectory,
        end: Callable[[], Position] | None = None,
        *,
        is_whole: Callable[[], bool] = lambda: True,
        recent: Recent = lambda _first, _end: None,
    ) -> SourceChannel:
        """Offer an existing log to the sink; arguments as for `SourceChannel`."""
        channel = SourceChannel(self._opened, log, end, is_whole=is_whole, recent=recent)
        self._channels[channel.channel] = channel
        self._opened += 1
        self._link.send(encode(messages.Open(channel.channel, channel.identity)))
        return channel

    @property
    def is_used_up(self) -> bool:
        """Whether the sink accepts no further channel on this connection."""
        return self._opened >= self._channels_max

    def leave(self, channel: SourceChannel) -> None:
        """End a channel, so that the sink may take its log from another connection."""
        number = channel.channel
        if self._channels.pop(number, None) is None:
            return
        self._ready.pop(number, None)
        channel.rest()
        words = "its publisher has closed the session"
        try:
            self._link.post(encode(messages.Refusal(number, CLOSED, words)))
        except PeerError as error:
            self._broken = error

    def mark(self, channel: SourceChannel) -> None:
        """Record that a log may have grown."""
        if channel.channel in self._channels:
            self._ready[channel.channel] = channel

    def turn(self) -> None:
        """Handle what has arrived, then send about 1 MiB of one log, or less of several.

        Raises:
            PeerError: the peer broke the protocol, or has gone.
            Refused: the peer refuses the connection.
        """
        if self._broken is not None:
            raise self._broken
        for message in self._link.receive(_TURN_ACKS, last_acks=self._acked is None):
            self._take(message)
        left = _TURN_BYTES
        for number, channel in list(islice(self._ready.items(), _TURN_LOGS)):
            if self._link.has_left:
                break  # the peer has not taken what was sent
            del self._ready[number]
            before = channel.position
            self._guarded(channel, self._pump, channel)
            left -= channel.position - before
            if left <= 0:
                break
        if left < _TURN_BYTES:
            self._sent_s = time.monotonic()
        elif self._buffer.is_large and time.monotonic() - self._sent_s >= _REST_S:
            self._buffer.rest()
        self._link.beat()

    def send_now(self, channel: SourceChannel, frame: WrittenFrame | None = None) -> bool:
        """Send a log's new bytes if they are few and the peer accepts them at once.

        It never waits for the peer, so it may be called between two turns.

        Args:
            channel: the log's channel.
            frame: the frame that the log grew by, if its writer in this process passed it.

        Returns:
            Whether all was sent. If not, `turn` sends the rest, or reports what prevents that.
        """
        link = self._link
        if self._ready or channel.channel not in self._channels or link.has_left:
            return False
        try:
            if frame is not None and channel.send_frame(link.post, self._buffer, frame):
                return not link.has_left
            return channel.send_little(link.post, self._buffer) and not link.has_left
        except PeerError as error:
            self._broken = error
        except (Refused, CorruptLog, OSError):
            self.mark(channel)
        return False

    def _pump(self, channel: SourceChannel) -> None:
        if channel.pump(self._link.send, self._buffer):
            self._ready[channel.channel] = channel

    def _take(self, message: Message) -> None:
        if isinstance(message, Heartbeat):
            return
        if not isinstance(message, _OF_A_SINK):
            self._take_notice(message)
            return
        channel = self._channels.get(message.channel)
        if channel is None:
            if isinstance(message, messages.Refusal) and message.channel == CONNECTION:
                raise refusal_of(message)
            if message.channel >= self._opened:
                raise PeerError(f"it uses channel {message.channel}, which was not opened")
        elif isinstance(message, Ack):
            self._guarded(channel, self._take_ack, channel, message)
        elif isinstance(message, Standing):
            self._guarded(channel, channel.begin, message)
            self.mark(channel)
        else:
            why = refusal_of(message)
            if why.code == "corrupt":
                self._verify(channel)
            self._end(channel, why)

    def _take_notice(self, message: Message) -> None:
        """Handle a message that belongs to no channel."""
        if isinstance(message, messages.HeadersNotice):
            self._headers(message.why_not)
        elif isinstance(message, messages.SuccessionNotice):
            self._link.charge(_WORD_MESSAGES)
            self._heard(message.text)
        else:
            raise PeerError(f"a sink does not send {type(message).__name__}")

    def _verify(self, channel: SourceChannel) -> None:
        """Check on disk the frames that the sink calls damaged, since this log may be damaged."""
        try:
            channel.verify()
        except CorruptLog as error:
            self._damaged(error)
        except OSError:
            return  # the file may have been archived; the sink retries, or asks another node

    def _take_ack(self, channel: SourceChannel, ack: Ack) -> None:
        channel.check(ack)
        if self._acked is not None:
            self._acked(channel, ack)
        if channel.cursor_file.is_held_back:
            self.mark(channel)

    def _guarded(
        self, channel: SourceChannel, work: Callable[[*_Args], None], *args: *_Args
    ) -> None:
        """Do work whose failure ends a channel, and only that channel."""
        try:
            work(*args)
        except Refused as error:
            self._refuse(channel, error)
        except CorruptLog as error:
            self._refuse(channel, Refused("corrupt", str(error)))
            self._damaged(error)
        except OSError as error:
            self._refuse(channel, Refused("disk", f"{channel.log.path}: {error}"))

    def _refuse(self, channel: SourceChannel, why: Refused) -> None:
        self._link.send(encode(messages.Refusal(channel.channel, why.code, str(why))))
        self._end(channel, why)

    def _end(self, channel: SourceChannel, why: Refused) -> None:
        del self._channels[channel.channel]
        self._ready.pop(channel.channel, None)
        channel.rest()
        self._refused(channel, why)

    def close(self) -> None:
        """Release the files and the memory."""
        self._buffer.rest()
        for channel in self._channels.values():
            channel.rest()
