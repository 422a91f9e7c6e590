"""Message: what a subscriber receives, and the batch of one frame it comes in."""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import compress, repeat
from typing import Any, NamedTuple

from rt.errors import Misuse
from rt.format.columns import Columns, decode_columns
from rt.format.frame import KEYS_COLUMN, Header, unpack_body
from rt.position import Position


class Origin(NamedTuple):
    """What the messages of one frame have in common."""

    session: str
    merge_time_ns: int | None  # None in a session that was read where it was published


class Message(NamedTuple):
    """One message, with all there is to know of it.

    `number` counts the messages of the merged stream from 0; in a session it is the sequence
    number. `key` is empty where the message has none.
    """

    payload: bytes
    key: bytes
    time_ns: int  # publish time, ns since the epoch
    sequence: int  # in its session
    number: int
    at: int  # `position` as a plain integer
    origin: Origin

    @property
    def position(self) -> Position:
        """Where this message is in the log it was read from."""
        return Position(self.at)

    @property
    def next_position(self) -> Position:
        """Where to resume to get what comes after this message."""
        return Position(self.at + 1)

    @property
    def session(self) -> str:
        """The session it was published in."""
        return self.origin.session

    @property
    def merge_time_ns(self) -> int | None:
        """When it was merged, ns since the epoch; None when read from a session."""
        return self.origin.merge_time_ns


@dataclass(slots=True)
class Batch:
    """The messages of one frame, from `first` on, in columns that are decoded when asked for."""

    header: Header
    body: memoryview  # as on disk; its CRC was checked
    position: Position  # of the frame in the log it was read from
    session: str
    merge_time_ns: int | None
    first: int  # messages before it are repeats, or lie before the start
    number: int  # of message `first`
    _columns: Columns | None = None

    def __len__(self) -> int:
        return self.header.messages - self.first

    @property
    def next_position(self) -> Position:
        """Where to resume to get what comes after this batch."""
        return Position(self.position + self.header.messages)

    @property
    def columns(self) -> Columns:
        """All messages of the frame, those before `first` too, without a copy of the payloads.

        Raises:
            FrameError: the columns do not add up, or do not decompress to what they should.
        """
        if self._columns is None:
            self._columns = decode_columns(self.header, unpack_body(self.header, self.body))
        return self._columns

    def payloads(self) -> list[bytes]:
        """The payloads, each as bytes of its own."""
        return self.columns.payloads()[self.first :]

    @property
    def places(self) -> Iterator[int]:
        """The positions of the messages; what is left of it tells how far an iteration came."""
        return iter(range(self.position + self.first, self.next_position))

    def messages_with_key(
        self, prefix: bytes, places: Iterator[int] | None = None
    ) -> Iterator[Message]:
        """The messages whose key begins with `prefix`; where there are none, none is decoded."""
        places, wanted = places or self.places, [False]
        if self.header.columns & KEYS_COLUMN or not prefix:
            keys = self.columns.message_keys()[self.first :]
            wanted = [key.startswith(prefix) for key in keys]
        if not any(wanted):
            deque(places, maxlen=0)
            return iter(())
        return map(_new_message, compress(self._rows(places), wanted))

    def messages(self, places: Iterator[int] | None = None) -> Iterator[Message]:
        """The messages, one by one.

        Args:
            places: what `places` gave; it is drawn on as the messages are.
        """
        return map(_new_message, self._rows(places or self.places))

    def _rows(self, places: Iterator[int]) -> Iterator[tuple[Any, ...]]:
        columns, first = self.columns, self.first
        count = len(self)
        sequence = self.header.sequence + first
        return zip(
            columns.payloads()[first:],
            columns.message_keys()[first:] if columns.key_offsets is not None else repeat(b""),
            columns.times[first:].tolist(),
            range(sequence, sequence + count),
            range(self.number, self.number + count),
            places,
            repeat(Origin(self.session, self.merge_time_ns)),
            strict=False,
        )

    def to_arrow(self) -> Any:
        """Return a `pyarrow.RecordBatch` over the same bytes, payloads not copied.

        Columns: payload, key (binary), time_ns, merge_time_ns, sequence, number, position (int64),
        session (dictionary of string).

        Raises:
            Misuse: pyarrow is not installed.
        """
        try:
            from rt.format.arrow import record_batch  # noqa: PLC0415 - heavy, and optional
        except ImportError:
            raise Misuse("Arrow batches need pyarrow; install rt with the extra 'arrow'") from None
        return record_batch(self)


_new_message = partial(tuple.__new__, Message)
