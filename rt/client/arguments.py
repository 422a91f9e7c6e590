"""Arguments: the types of the keyword arguments that `Client` and `AsyncClient` share."""

from collections.abc import Callable, Collection
from typing import TypedDict

from rt.client.flight import FlightLimit
from rt.client.readers.reader_lag import OnLag
from rt.client.readers.subscription import Acknowledgement
from rt.client.stall_events import OnStall
from rt.events import Event
from rt.log.notify.confirmations import Level
from rt.log.read.start import Start
from rt.log.write.batcher import Batching
from rt.log.write.disk_room import DiskLimit
from rt.log.write.writer import WriterSettings
from rt.subscriber import OnGap


class PublisherArguments(TypedDict, total=False):
    """The arguments of `Client.publisher`, except `session`."""

    confirm: str | Level | None
    group: str
    writer: WriterSettings | None
    batching: Batching | None
    flight: FlightLimit | None
    disk_limit: DiskLimit | None
    on_event: OnStall | None


class ChoiceArguments(TypedDict, total=False):
    """The arguments that select which messages a reader gets."""

    sessions: Collection[str] | None
    key_prefix: bytes
    where: str | Collection[str] | None
    timeout_s: float


class ReaderArguments(ChoiceArguments, total=False):
    """The arguments shared by all kinds of readers that `Client.subscriber` returns."""

    start: Start | str
    follow: bool
    on_gap: OnGap
    on_poison: OnGap
    on_event: Callable[[Event], None] | None


class SubscriberArguments(ReaderArguments, total=False):
    """The arguments of a reader without a cursor or group."""

    share: str
    lag_max_s: float | None
    on_lag: OnLag


class CursorArguments(SubscriberArguments, total=False):
    """The arguments of a reader with a cursor, except `cursor`."""

    ack: Acknowledgement


class MemberArguments(ReaderArguments, total=False):
    """The arguments of a member of a group, except `group`."""

    ack: Acknowledgement


class LastValueArguments(ChoiceArguments, total=False):
    """The arguments of `Client.last_value`."""

    keys_max: int
    checkpoint_s: float
