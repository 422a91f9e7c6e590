"""ColumnsCheck: finds frames whose messages cannot be decoded, before a node takes them."""

import threading
import time
from collections.abc import Callable, Sequence
from typing import Final

from rt.errors import FrameError
from rt.format.columns import check_columns
from rt.format.frame import HEADER_BYTES, Codec, FrameKind, Header
from rt.limits import MIB

# Decompressing takes about 1 ns a byte, so this is 3 % of one processor; an uncompressed frame is
# always checked, at 10 ns a message: 4 % of a node's time for messages of 100 bytes, by
# `python -m benchmarks.columns`.
DECOMPRESSED_BYTES_S: Final = 32 * MIB
_BURST_BYTES: Final = 2 * DECOMPRESSED_BYTES_S  # two of the largest frames
# Plain numbers: a member of an enumeration takes 0.1 us to look up.
_MESSAGES, _PLAIN = int(FrameKind.MESSAGES), int(Codec.NONE)


class ColumnsCheck:
    """Checks the frames that publishers push; one for all connections of a node.

    A compressed frame that comes when the budget is spent is taken unchecked: its readers find out,
    and pass over it by policy.

    Threads: any; `_lock` guards `_left` and `_filled_s`.
    """

    def __init__(
        self,
        bytes_s: int = DECOMPRESSED_BYTES_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Decompress at most `bytes_s` bytes a second."""
        self._bytes_s = bytes_s
        self._clock = clock
        self._lock = threading.Lock()
        self._left = float(_BURST_BYTES)
        self._filled_s = clock()

    def poisoned(self, data: memoryview, headers: Sequence[Header]) -> tuple[int, str] | None:
        """Return the first frame that cannot be decoded: its offset in `data`, and what is wrong.

        Args:
            data: whole frames, whose CRCs were checked.
            headers: of all of them.
        """
        offset = 0
        for header in headers:
            if header.kind == _MESSAGES and self._has_budget(header):
                begin = offset + HEADER_BYTES
                try:
                    check_columns(header, data[begin : begin + header.length])
                except FrameError as error:
                    return offset, str(error)
            offset += header.size
        return None

    def _has_budget(self, header: Header) -> bool:
        if header.codec == _PLAIN:
            return True
        with self._lock:
            now_s = self._clock()
            self._left += self._bytes_s * (now_s - self._filled_s)
            self._left, self._filled_s = min(float(_BURST_BYTES), self._left), now_s
            if self._left < header.raw_length:
                return False
            self._left -= header.raw_length
            return True
