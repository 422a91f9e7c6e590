"""Beat: what a process tells another of the streams that rest there, as it goes onto the wire.

Little endian. Number of streams u32, and for each: digest of its cluster's name 8 bytes, term u64,
index u64. A beat lists all of them, so one that is lost, or late, needs no repair.
"""

import struct
from collections.abc import Mapping
from hashlib import blake2b
from typing import Final

from rt.errors import PeerError
from sequencer.raft.consensus import Quiescence

_COUNT: Final = struct.Struct("<I")
_ITEM: Final = struct.Struct("<8sQQ")
STREAMS_MAX: Final = 4096  # far more than a process serves: 98 KB
BEAT_BYTES_MAX: Final = _COUNT.size + STREAMS_MAX * _ITEM.size


def group_of(cluster: str) -> bytes:
    """Return what stands for the nodes of one cluster, and of one stream, in a beat."""
    return blake2b(cluster.encode(), digest_size=8).digest()


def encode_heartbeat(calm: Mapping[bytes, Quiescence]) -> bytes:
    """Lay out a beat: where the node is calm, by `group_of` each cluster.

    >>> decode_beat(encode_beat({group_of("flights"): Calm(3, 14)}))[group_of("flights")]
    Calm(term=3, index=14)
    """
    items = [_ITEM.pack(group, place.term, place.index) for group, place in calm.items()]
    return _COUNT.pack(len(items)) + b"".join(items)


def decode_heartbeat(data: bytes) -> dict[bytes, Quiescence]:
    """Read the bytes of `encode_heartbeat`; `PeerError` if they are something else."""
    if len(data) < _COUNT.size or len(data) != _COUNT.size + _number(data) * _ITEM.size:
        raise PeerError(f"a beat of {len(data)} bytes has another number of streams")
    found = {group: Quiescence(term, index) for group, term, index in _ITEM.iter_unpack(data[4:])}
    if len(found) != _number(data):
        raise PeerError("a beat names a stream twice")
    return found


def _number(data: bytes) -> int:
    [count] = _COUNT.unpack_from(data)
    return int(count)
