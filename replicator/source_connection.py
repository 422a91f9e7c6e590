"""SourceSide: serves logs to the sink at the other end of a connection, a channel each."""

from collections.abc import Callable

from replicator import wire
from replicator.link import Link, refusal_of
from replicator.source_channel import SendBuffer, SourceChannel
from replicator.wire import CONNECTION, Ack, Heartbeat, Message, Standing, encode
from rt.errors import CorruptLog, PeerError, Refused
from rt.log.directory import LogDirectory
from rt.position import Position


class SourceConnection:
    """The channels of one connection that are served; those with something to send in turn."""

    def __init__(
        self,
        link: Link,
        *,
        acked: Callable[[SourceChannel, Ack], None] = lambda _outlet, _ack: None,
        refused: Callable[[SourceChannel, Refused], None] = lambda _outlet, _why: None,
    ) -> None:
        """Begin without a channel.

        Args:
            link: the peer's and our Hello were exchanged.
            acked: is called with each acknowledgement of the sink.
            refused: is called with the outlet of a channel that has ended, and why.
        """
        self._link = link
        self._acked = acked
        self._refused = refused
        self._outlets: dict[int, SourceChannel] = {}
        self._opened = 0  # channels, numbered from 0
        self._ready: dict[int, SourceChannel] = {}  # in the order of their turns
        self._buffer = SendBuffer()
        self._broken: PeerError | None = None  # since another thread sent

    @property
    def busy(self) -> bool:
        """Whether there is something to send now."""
        return bool(self._ready)

    def open(self, log: LogDirectory, end: Callable[[], Position] | None = None) -> SourceChannel:
        """Offer a log, which has to be there, to the sink; arguments as for `SourceChannel`."""
        outlet = SourceChannel(self._opened, log, end)
        self._outlets[outlet.channel] = outlet
        self._opened += 1
        self._link.send(encode(outlet.opening()))
        return outlet

    def mark(self, outlet: SourceChannel) -> None:
        """Take note that a log may have grown."""
        if outlet.channel in self._outlets:
            self._ready[outlet.channel] = outlet

    def turn(self) -> None:
        """Hear what has come, then send from one log, about 1 MiB at most.

        Raises:
            PeerError: the peer broke the protocol, or has gone.
            Refused: the peer refuses the connection.
        """
        if self._broken is not None:
            raise self._broken
        for message in self._link.receive():
            self._take(message)
        if self._ready:
            channel, outlet = next(iter(self._ready.items()))
            del self._ready[channel]
            self._guarded(outlet, lambda: self._pump(outlet))
        self._link.beat()

    def send_now(self, outlet: SourceChannel) -> bool:
        """Send what is new of a log if it is little, nothing waits, and the peer takes it at once.

        Returns:
            False if that is left to `turn`, which also meets what stood against it, and says it.
        """
        if self._ready or outlet.channel not in self._outlets or not self._link.can_send():
            return False
        try:
            return outlet.send_little(self._link.send, self._buffer)
        except PeerError as error:
            self._broken = error
        except (Refused, CorruptLog, OSError):
            self.mark(outlet)
        return False

    def _pump(self, outlet: SourceChannel) -> None:
        if outlet.pump(self._link.send, self._buffer):
            self._ready[outlet.channel] = outlet

    def _take(self, message: Message) -> None:
        if isinstance(message, Heartbeat):
            return
        if not isinstance(message, Ack | Standing | wire.Refusal):
            raise PeerError(f"a sink does not send {type(message).__name__}")
        if isinstance(message, wire.Refusal) and message.channel == CONNECTION:
            raise refusal_of(message)
        outlet = self._outlets.get(message.channel)
        if outlet is None:
            if message.channel >= self._opened:
                raise PeerError(f"it speaks of channel {message.channel}, which was not opened")
        elif isinstance(message, Ack):
            self._acked(outlet, message)
        elif isinstance(message, Standing):
            self._guarded(outlet, lambda: outlet.stand(message))
            self.mark(outlet)
        else:
            self._end(outlet, refusal_of(message))

    def _guarded(self, outlet: SourceChannel, work: Callable[[], None]) -> None:
        """Do what may end a channel, and only that channel."""
        try:
            work()
        except Refused as error:
            self._refuse(outlet, error)
        except CorruptLog as error:
            self._refuse(outlet, Refused("corrupt", str(error)))
        except OSError as error:
            self._refuse(outlet, Refused("disk", f"{outlet.log.path}: {error}"))

    def _refuse(self, outlet: SourceChannel, why: Refused) -> None:
        self._link.send(encode(wire.Refusal(outlet.channel, why.code, str(why))))
        self._end(outlet, why)

    def _end(self, outlet: SourceChannel, why: Refused) -> None:
        del self._outlets[outlet.channel]
        self._ready.pop(outlet.channel, None)
        outlet.rest()
        self._refused(outlet, why)

    def close(self) -> None:
        """Release the files."""
        for outlet in self._outlets.values():
            outlet.rest()
