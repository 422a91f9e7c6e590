"""Encodes idle heartbeats, which list a process's quiescent streams: those with nothing to do.

Little endian. Number of streams u32; then for each stream: digest of its cluster's name 8 bytes,
term u64, index u64. Each heartbeat lists all quiescent streams, so the next heartbeat makes up for
a lost or late one.
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
    """Return the digest that identifies a cluster (one stream's nodes) in a heartbeat."""
    return blake2b(cluster.encode(), digest_size=8).digest()


def encode_heartbeat(quiescent: Mapping[bytes, Quiescence]) -> bytes:
    """Encode the idle position of each quiescent stream, keyed by `group_of` its cluster.

    >>> quiescent = {group_of("flights"): Quiescence(3, 14)}
    >>> decode_heartbeat(encode_heartbeat(quiescent)) == quiescent
    True
    """
    items = [_ITEM.pack(group, place.term, place.index) for group, place in quiescent.items()]
    return _COUNT.pack(len(items)) + b"".join(items)


def decode_heartbeat(data: bytes) -> dict[bytes, Quiescence]:
    """Decode what `encode_heartbeat` returned; `PeerError` if the bytes are malformed."""
    if len(data) < _COUNT.size or len(data) != _COUNT.size + _number(data) * _ITEM.size:
        raise PeerError(
            f"an idle heartbeat of {len(data)} bytes does not fit its number of streams"
        )
    found = {group: Quiescence(term, index) for group, term, index in _ITEM.iter_unpack(data[4:])}
    if len(found) != _number(data):
        raise PeerError("an idle heartbeat names a stream twice")
    return found


def _number(data: bytes) -> int:
    [count] = _COUNT.unpack_from(data)
    return int(count)
