"""A log-shipping reliable transport: publish to a local log, merge by Raft, read everywhere."""

from rt.confirmations import Confirmations, Level
from rt.errors import (
    CorruptLog,
    FlushTimeout,
    GapError,
    Misuse,
    PeerError,
    Refused,
    RtError,
    Stopped,
    WriterFailed,
)
from rt.events import CaughtUp, Gap, NewRun
from rt.message import Batch, Message
from rt.position import Position
from rt.publisher import Batching, Confirmed, Publisher
from rt.start import AtTime, Last
from rt.subscriber import Subscriber
from rt.version import __version__
from rt.writer import Fsync, WriterSettings

__all__ = [
    "AtTime",
    "Batch",
    "Batching",
    "CaughtUp",
    "Confirmations",
    "Confirmed",
    "CorruptLog",
    "FlushTimeout",
    "Fsync",
    "Gap",
    "GapError",
    "Last",
    "Level",
    "Message",
    "Misuse",
    "NewRun",
    "PeerError",
    "Position",
    "Publisher",
    "Refused",
    "RtError",
    "Stopped",
    "Subscriber",
    "WriterFailed",
    "WriterSettings",
    "__version__",
]
