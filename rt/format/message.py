"""Message: what a subscriber receives, and Batch: the messages of one frame."""

from array import array
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import compress, repeat
from typing import Any, Final, NamedTuple

from rt.errors import Misuse
from rt.format.columns import Columns, decode_columns
from rt.format.frame import Header, unpack_body
from rt.position import Position

_EPOCH: Final = datetime.fromtimestamp(0, UTC)


class Origin(NamedTuple):
    """A message's origin; the messages of a frame without headers share one object."""

    session: str
    merge_time_ns: int | None  # None when read from the session's own log
    # the message's headers, in a frame where any message has some
    headers: dict[str, bytes] | None = None


class Message(NamedTuple):
    """One message and all its metadata.

    `number` counts the messages of the merged stream from 0; in a session's own log it is the
    sequence number. `key` is empty if the message has none.

    Examples:
        >>> from rt.position import Position
        >>> message = Message(b"AA1 departed", b"AA1", 1357017420000000000, 7, 12, 4096,
        ...                   Origin("jfk", None))
        >>> message.session, message.sequence, str(message.next_position)
        ('jfk', 7, '0.0.4097')
        >>> message.time.isoformat()
        '2013-01-01T05:17:00+00:00'
    """

    payload: bytes
    key: bytes
    time_ns: int  # publish time, ns since the epoch
    sequence: int  # in its session
    number: int
    at: int  # `position` as a plain integer, which is faster to make
    origin: Origin

    @property
    def position(self) -> Position:
        """Position of this message in the log it was read from."""
        return Position(self.at)

    @property
    def next_position(self) -> Position:
        """Where to resume reading after this message."""
        return Position(self.at + 1)

    @property
    def time(self) -> datetime:
        """Publish time in UTC, rounded down to microseconds.

        Raises:
            OverflowError: the time is before year 1 or after 9999; `time_ns` still has it.
        """
        return _EPOCH + timedelta(microseconds=self.time_ns // 1000)

    @property
    def session(self) -> str:
        """The session that published this message."""
        return self.origin.session

    @property
    def merge_time_ns(self) -> int | None:
        """When it was merged, ns since the epoch; None if read from a session's own log."""
        return self.origin.merge_time_ns

    @property
    def headers(self) -> dict[str, bytes]:
        """The message's headers, by name; empty if it has none."""
        return self.origin.headers or {}


@dataclass(slots=True)
class Batch:
    """The messages of one frame, from message `first` on; columns are decoded on demand."""

    header: Header
    body: memoryview  # the body as on disk; its CRC was checked
    position: Position  # the frame's position in the log it was read from
    session: str
    merge_time_ns: int | None
    # index of the first message to deliver; earlier ones are repeats or before the start
    first: int
    number: int  # number of message `first`
    _columns: Columns | None = None

    def __len__(self) -> int:
        return self.header.messages - self.first

    @property
    def next_position(self) -> Position:
        """Where to resume reading after this batch."""
        return Position(self.position + self.header.messages)

    @property
    def columns(self) -> Columns:
        """All messages of the frame, even those before `first`; payloads are not copied.

        Raises:
            FrameError: the columns do not fill the body, or the body is not of the stated size.
        """
        if self._columns is None:
            self._columns = decode_columns(self.header, unpack_body(self.header, self.body))
        return self._columns

    def payloads(self) -> list[bytes]:
        """A copy of each payload."""
        return self.columns.payloads()[self.first :]

    @property
    def places(self) -> Iterator[int]:
        """Return an iterator over the messages' positions."""
        return iter(range(self.position + self.first, self.next_position))

    def messages_among(
        self, wanted: Sequence[bool], places: Iterator[int] | None = None
    ) -> Iterator[Message]:
        """Yield the messages for which `wanted` is true; if there are none, nothing is decoded.

        Args:
            wanted: one value for each message, from `rt.format.where.Where.wanted`.
            places: as for `messages`.
        """
        places = places or self.places
        if not any(wanted):
            deque(places, maxlen=0)
            return iter(())
        return map(_new_message, compress(self._rows(places), wanted))

    def messages(self, places: Iterator[int] | None = None) -> Iterator[Message]:
        """Yield the messages, one by one.

        Args:
            places: an iterator from `places`; it advances with the messages.
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
            self._origins(),
            strict=False,
        )

    def _origins(self) -> Iterable[Origin]:
        session, merge_time_ns, headers = self.session, self.merge_time_ns, self.columns.headers
        if headers is None:
            return repeat(Origin(session, merge_time_ns))
        return [Origin(session, merge_time_ns, each) for each in headers[self.first :]]

    def to_arrow(self) -> Any:
        """Return a `pyarrow.RecordBatch` over the same bytes; the payloads are not copied.

        Columns: payload, key (binary), time_ns, merge_time_ns, sequence, number, position (int64),
        session (dictionary of string), headers (map of string to binary).

        Raises:
            Misuse: pyarrow is not installed.
        """
        try:
            import pyarrow as pa  # noqa: PLC0415 - heavy, and optional
        except ImportError:
            raise Misuse(
                "Arrow batches need pyarrow; install rt-transport with the extra 'arrow'"
            ) from None
        columns, first, count = self.columns, self.first, len(self)
        sequence, at = self.header.sequence + first, self.position + first
        merge_time = pa.scalar(self.merge_time_ns, pa.int64())
        arrays = {
            "payload": _binary(pa, columns.offsets, columns.payload, first),
            "key": _keys(pa, columns.key_offsets, columns.keys, first, count),
            "time_ns": _integers(pa, columns.times, self.header.messages)[first:],
            "merge_time_ns": pa.repeat(merge_time, count),
            "sequence": _consecutive(pa, sequence, count),
            "number": _consecutive(pa, self.number, count),
            "position": _consecutive(pa, at, count),
            "session": pa.DictionaryArray.from_arrays(
                pa.repeat(pa.scalar(0, pa.int32()), count), pa.array([self.session])
            ),
            "headers": headers_to_arrow(columns.headers, first, count),
        }
        return pa.RecordBatch.from_arrays(list(arrays.values()), names=list(arrays))


def headers_to_arrow(headers: list[dict[str, bytes]] | None, first: int, count: int) -> Any:
    """Return headers as an Arrow array of maps; messages without any have an empty map.

    Args:
        headers: the headers of all messages of a frame; None if none has any.
        first: the first message wanted.
        count: how many.
    """
    import pyarrow as pa  # noqa: PLC0415 - heavy, and optional

    kind = pa.map_(pa.string(), pa.binary())
    if headers is None:
        ends = pa.Array.from_buffers(
            pa.int32(), count + 1, [None, pa.py_buffer(bytes(4 * (count + 1)))]
        )
        return pa.MapArray.from_arrays(ends, pa.array([], pa.string()), pa.array([], pa.binary()))
    return pa.array([list(each.items()) for each in headers[first : first + count]], kind)


def _integers(pa: Any, data: Any, count: int) -> Any:
    return pa.Array.from_buffers(pa.int64(), count, [None, pa.py_buffer(data)])


def _consecutive(pa: Any, first: int, count: int) -> Any:
    return _integers(pa, array("q", range(first, first + count)), count)


def _binary(pa: Any, offsets: memoryview, data: memoryview, first: int) -> Any:
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.binary(), len(offsets) - 1, buffers)[first:]


def _keys(pa: Any, offsets: memoryview | None, data: memoryview, first: int, count: int) -> Any:
    if offsets is None:
        return pa.repeat(pa.scalar(b"", pa.binary()), count)
    return _binary(pa, offsets, data, first)


_new_message = partial(tuple.__new__, Message)
