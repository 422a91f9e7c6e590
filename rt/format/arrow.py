"""Arrow: the columns of a batch as Arrow arrays over the same bytes."""

from array import array
from typing import TYPE_CHECKING, Any

import pyarrow as pa

if TYPE_CHECKING:
    from rt.format.message import Batch


def record_batch(batch: "Batch") -> Any:
    """Return a `pyarrow.RecordBatch` of the messages of `batch`."""
    columns, first, count = batch.columns, batch.first, len(batch)
    sequence, at = batch.header.sequence + first, batch.position + first
    merge_time = pa.scalar(batch.merge_time_ns, pa.int64())
    session = pa.DictionaryArray.from_arrays(
        pa.repeat(pa.scalar(0, pa.int32()), count), pa.array([batch.session])
    )
    arrays = {
        "payload": _binary(columns.offsets, columns.payload, first),
        "key": _keys(columns.key_offsets, columns.keys, first, count),
        "time_ns": _integers(columns.times, batch.header.messages)[first:],
        "merge_time_ns": pa.repeat(merge_time, count),
        "sequence": _consecutive(sequence, count),
        "number": _consecutive(batch.number, count),
        "position": _consecutive(at, count),
        "session": session,
    }
    return pa.RecordBatch.from_arrays(list(arrays.values()), names=list(arrays))


def _integers(data: Any, count: int) -> Any:
    return pa.Array.from_buffers(pa.int64(), count, [None, pa.py_buffer(data)])


def _consecutive(first: int, count: int) -> Any:
    return _integers(array("q", range(first, first + count)), count)


def _binary(offsets: memoryview, data: memoryview, first: int) -> Any:
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.binary(), len(offsets) - 1, buffers)[first:]


def _keys(offsets: memoryview | None, data: memoryview, first: int, count: int) -> Any:
    if offsets is None:
        return pa.repeat(pa.scalar(b"", pa.binary()), count)
    return _binary(offsets, data, first)
