"""Digests: recent digests of the merged log, kept for comparison with the leader's."""

import struct
from collections import OrderedDict
from typing import Final

from rt.errors import PeerError
from rt.position import Position
from sequencer.ledger.ledger import Ledger

_BODY: Final = struct.Struct("<QQ16s")  # index, end of the merged log, digest
_KEPT: Final = 4096  # instructions; a member that lags further is compared after catching up


class Digests:
    """Digests: the end and digest of the merged log after each recent instruction."""

    def __init__(self) -> None:
        self._by_index: OrderedDict[int, tuple[Position, bytes]] = OrderedDict()

    def remember(self, ledger: Ledger) -> None:
        """Record the state after an instruction."""
        self._by_index[ledger.index] = (ledger.end, ledger.digest)
        if len(self._by_index) > _KEPT:
            self._by_index.popitem(last=False)

    def conflict(self, body: bytes) -> Position | None:
        """Compare another node's digest with this node's at the same instruction.

        Returns:
            The position at or before which the two merged logs differ; None if they agree, or if
            this node no longer remembers that instruction.

        Raises:
            PeerError: the bytes are not a digest.
        """
        if len(body) != _BODY.size:
            raise PeerError(f"a digest of {len(body)} bytes")
        index, end, digest = _BODY.unpack(body)
        ours = self._by_index.get(index)
        if ours is None or ours == (end, digest):
            return None
        return Position(min(ours[0], end))


def encode_digest(ledger: Ledger) -> bytes:
    """Encode the last instruction, and the merged log's end and digest after it."""
    return _BODY.pack(ledger.index, ledger.end, ledger.digest)
