"""Lease: a reader's claim on files of the merged log, limited in time and size."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any, Final, NamedTuple

from rt.errors import Misuse
from rt.names import is_cursor, parse_peer
from rt.position import Position

LEASE_S_MAX: Final = 7 * 24 * 3600  # a job that takes longer than a week renews its lease
LEASES_MAX: Final = 64  # maximum for one stream
_NS: Final = 1_000_000_000
# What Python may raise for the fields of hostile JSON.
UNREADABLE: Final = (
    ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError,
)  # fmt: skip
_PINS: Final = ("cursor", "group")  # a holder of these kinds is named `cursor.NAME`, `group.NAME`


class RolledFile(NamedTuple):
    """A rolled file that has not been archived."""

    start: Position
    bytes: int
    rolled_ns: int
    messages: int


@dataclass(frozen=True, slots=True)
class Lease:
    """Lease: a reader's claim that protects files from every rule except `disk`.

    It protects the file that contains `start` and all later files. If those exceed `bytes_max`, it
    protects only the newest ones that fit.

    Attributes:
        holder: the reader's name; `cursor.` or `group.` precedes that of a cursor or group.
        start: the position from which the reader needs the files.
        until_ns: when the lease ends.
        bytes_max: the most bytes that the protected files may have.
    """

    holder: str
    start: Position
    until_ns: int
    bytes_max: int

    def __post_init__(self) -> None:
        kind, _, name = self.holder.partition(".")
        if kind not in _PINS or not is_cursor(name):
            parse_peer(self.holder)
        if type(self.until_ns) is not int or not 0 <= self.until_ns < 1 << 63:
            raise Misuse("a lease has to end")
        if type(self.bytes_max) is not int or not 0 < self.bytes_max < 1 << 62:
            raise Misuse("a lease holds a bounded number of bytes, at least 1")

    def first_held(self, files: Sequence[RolledFile], now_ns: int) -> int:
        """Return the index of the first file that the lease protects; `len(files)` if none.

        If the files from `start` on exceed `bytes_max`, it protects only the newest that fit.
        """
        if now_ns >= self.until_ns:
            return len(files)
        first = next(
            (place for place, file in enumerate(files) if file.start >= self.start.file), len(files)
        )
        total = sum(file.bytes for file in files[first:])
        while first < len(files) and total > self.bytes_max:
            total -= files[first].bytes
            first += 1
        return first

    def text(self) -> str:
        """Return the lease as JSON; equal leases give equal text."""
        return json.dumps(asdict(self), separators=(",", ":"))


@lru_cache(256)  # a node parses all of its stream's leases several times a second
def parse_lease(text: str) -> Lease:
    """Return the lease that `Lease.text` returned as `text`; `Misuse` if it is malformed."""
    try:
        fields = json.loads(text)
        return Lease(**{**fields, "start": whole_position(fields["start"])})
    except UNREADABLE as error:
        raise Misuse(f"not a lease: {error}") from None


def whole_position(value: object) -> Position:
    """Return a position given as a JSON number; `Misuse` if `value` is anything else.

    >>> whole_position(64)
    Position('0.0.64')
    """
    if type(value) is not int or not 0 <= value < 1 << 63:
        raise Misuse("not a position")
    return Position(value)


def new_lease(fields: Any, now_ns: int) -> Lease:
    """Return the lease that a reader requests.

    Args:
        fields: the request: `holder`, `start` (a position), `seconds` (how long the lease lasts)
            and `bytes` (the most that it protects).
        now_ns: the current time, at which the lease begins.

    Raises:
        Misuse: the request is malformed, or asks for more time or bytes than a lease may have.
    """
    try:
        holder, start = str(fields["holder"]), Position.parse(str(fields["start"]))
        seconds, bytes_max = float(fields["seconds"]), int(fields["bytes"])
    except (ValueError, KeyError, TypeError, OverflowError) as error:
        raise Misuse(f"a lease names holder, start, seconds and bytes: {error}") from None
    if not 0 < seconds <= LEASE_S_MAX:
        limits = f"a lease lasts for more than 0 s and at most {LEASE_S_MAX}, not {seconds:g}"
        raise Misuse(f"{limits}; renew it before it ends")
    return Lease(holder, start, now_ns + int(seconds * _NS), bytes_max)
