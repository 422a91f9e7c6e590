"""Arguments: what the methods of a client take, as types shared with its asyncio twin."""

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
    """What `Client.publisher` takes beside the session."""

    confirm: str | Level | None
    group: str
    writer: WriterSettings | None
    batching: Batching | None
    flight: FlightLimit | None
    disk_limit: DiskLimit | None
    on_event: OnStall | None


class ChoiceArguments(TypedDict, total=False):
    """Which messages a reader wants."""

    sessions: Collection[str] | None
    key_prefix: bytes
    where: str | Collection[str] | None
    timeout_s: float


class ReaderArguments(ChoiceArguments, total=False):
    """What every kind of reader takes that `Client.subscriber` returns."""

    start: Start | str
    follow: bool
    on_gap: OnGap
    on_poison: OnGap
    on_event: Callable[[Event], None] | None


class SubscriberArguments(ReaderArguments, total=False):
    """What a plain subscriber takes."""

    share: str
    lag_max_s: float | None
    on_lag: OnLag


class CursorArguments(SubscriberArguments, total=False):
    """What a subscription under a cursor takes beside the cursor."""

    ack: Acknowledgement


class MemberArguments(ReaderArguments, total=False):
    """What a member of a group takes beside the group."""

    ack: Acknowledgement


class LastValueArguments(ChoiceArguments, total=False):
    """What `Client.last_value` takes."""

    keys_max: int
    checkpoint_s: float
