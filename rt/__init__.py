"""A log-shipping reliable transport: publish to a local log, merge by Raft, read everywhere.

These are the names that programs use. Each is imported when it is first used; rt's own modules do
not import from here.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from rt.arrow import read_arrow
    from rt.client.client import Client, connect
    from rt.client.flight import FlightLimit
    from rt.client.groups.group import DeadLetter, Delivery, Group
    from rt.client.groups.group_subscriber import GroupSubscriber
    from rt.client.publisher import ClientPublisher
    from rt.client.readers.registered import Registered
    from rt.client.readers.subscription import Subscription
    from rt.errors import (
        ClaimLost,
        CorruptLog,
        Fenced,
        FlushTimeout,
        GapError,
        LagError,
        LimitReached,
        MessagesDropped,
        Misuse,
        PeerError,
        PoisonError,
        Refused,
        ReplacedLog,
        RtError,
        SessionFull,
        Stopped,
        SupersededError,
        WriterFailed,
    )
    from rt.events import (
        BeyondEnd,
        CaughtUp,
        Current,
        Dropped,
        Flowing,
        Gap,
        Lagging,
        NewRun,
        NoMatch,
        Poisoned,
        RangeLost,
        SessionChange,
        SessionEvent,
        Stalled,
        Superseded,
    )
    from rt.format.message import Batch, Message
    from rt.log.notify.confirmations import Confirmations, Confirmed, Level
    from rt.log.read.start import AtSequence, AtTime, Last
    from rt.log.write.batcher import Batching
    from rt.log.write.disk_room import DiskLimit
    from rt.log.write.writer import Fsync, WriterSettings
    from rt.position import Position
    from rt.publisher import Publisher
    from rt.subscriber import Subscriber
    from rt.version import __version__

__all__ = [
    "AtSequence",
    "AtTime",
    "Batch",
    "Batching",
    "BeyondEnd",
    "CaughtUp",
    "ClaimLost",
    "Client",
    "ClientPublisher",
    "Confirmations",
    "Confirmed",
    "CorruptLog",
    "Current",
    "DeadLetter",
    "Delivery",
    "DiskLimit",
    "Dropped",
    "Fenced",
    "FlightLimit",
    "Flowing",
    "FlushTimeout",
    "Fsync",
    "Gap",
    "GapError",
    "Group",
    "GroupSubscriber",
    "LagError",
    "Lagging",
    "Last",
    "Level",
    "LimitReached",
    "Message",
    "MessagesDropped",
    "Misuse",
    "NewRun",
    "NoMatch",
    "PeerError",
    "PoisonError",
    "Poisoned",
    "Position",
    "Publisher",
    "RangeLost",
    "Refused",
    "Registered",
    "ReplacedLog",
    "RtError",
    "SessionChange",
    "SessionEvent",
    "SessionFull",
    "Stalled",
    "Stopped",
    "Subscriber",
    "Subscription",
    "Superseded",
    "SupersededError",
    "WriterFailed",
    "WriterSettings",
    "__version__",
    "connect",
    "read_arrow",
]
# The module of each name, imported on first use so that a command need not load them all.
_MODULES: Final = {
    "AtSequence": "rt.log.read.start",
    "AtTime": "rt.log.read.start",
    "Batch": "rt.format.message",
    "Batching": "rt.log.write.batcher",
    "BeyondEnd": "rt.events",
    "CaughtUp": "rt.events",
    "ClaimLost": "rt.errors",
    "Client": "rt.client.client",
    "ClientPublisher": "rt.client.publisher",
    "Confirmations": "rt.log.notify.confirmations",
    "Confirmed": "rt.log.notify.confirmations",
    "CorruptLog": "rt.errors",
    "Current": "rt.events",
    "DeadLetter": "rt.client.groups.group",
    "Delivery": "rt.client.groups.group",
    "DiskLimit": "rt.log.write.disk_room",
    "Dropped": "rt.events",
    "Fenced": "rt.errors",
    "FlightLimit": "rt.client.flight",
    "Flowing": "rt.events",
    "FlushTimeout": "rt.errors",
    "Fsync": "rt.log.write.writer",
    "Gap": "rt.events",
    "GapError": "rt.errors",
    "Group": "rt.client.groups.group",
    "GroupSubscriber": "rt.client.groups.group_subscriber",
    "LagError": "rt.errors",
    "Lagging": "rt.events",
    "Last": "rt.log.read.start",
    "Level": "rt.log.notify.confirmations",
    "LimitReached": "rt.errors",
    "Message": "rt.format.message",
    "MessagesDropped": "rt.errors",
    "Misuse": "rt.errors",
    "NewRun": "rt.events",
    "NoMatch": "rt.events",
    "PeerError": "rt.errors",
    "PoisonError": "rt.errors",
    "Poisoned": "rt.events",
    "Position": "rt.position",
    "Publisher": "rt.publisher",
    "RangeLost": "rt.events",
    "Superseded": "rt.events",
    "SupersededError": "rt.errors",
    "Refused": "rt.errors",
    "Registered": "rt.client.readers.registered",
    "ReplacedLog": "rt.errors",
    "RtError": "rt.errors",
    "SessionChange": "rt.events",
    "SessionEvent": "rt.events",
    "SessionFull": "rt.errors",
    "Stalled": "rt.events",
    "Stopped": "rt.errors",
    "Subscriber": "rt.subscriber",
    "Subscription": "rt.client.readers.subscription",
    "WriterFailed": "rt.errors",
    "WriterSettings": "rt.log.write.writer",
    "__version__": "rt.version",
    "connect": "rt.client.client",
    "read_arrow": "rt.arrow",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})
