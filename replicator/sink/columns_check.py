"""ColumnsCheck: detects frames whose messages cannot be decoded, before a node accepts them."""

import time
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from replicator.sink.late_check import LateCheck
from rt.errors import FrameError
from rt.format.columns import check_columns
from rt.format.frame import HEADER_BYTES, Codec, FrameKind, Header
from rt.limits import MIB
from rt.position import Position

# Decompressing takes about 1 ns a byte, so this takes 3 % of one processor. Uncompressed frames are
# always checked, which takes 10 ns a message. With messages of 100 bytes, that is 4 % of a node's
# time, as measured by `python -m benchmarks.columns`.
DECOMPRESSED_BYTES_S: Final = 32 * MIB
_BURST_BYTES: Final = 2 * DECOMPRESSED_BYTES_S  # two of the largest frames
# Plain numbers, since looking up an enumeration's member takes 0.1 us.
_MESSAGES, _PLAIN = int(FrameKind.MESSAGES), int(Codec.NONE)


class Verdict(NamedTuple):
    """Verdict: the result of checking frames.

    Attributes:
        poison: offset of the first undecodable frame, and what is wrong; None if all are fine.
        skipped: positions of the frames before it that were not checked, for lack of budget.
    """

    poison: tuple[int, str] | None
    skipped: Sequence[Position]


_SOUND: Final = Verdict(None, ())


class ColumnsCheck:
    """ColumnsCheck: checks the frames that publishers push; all connections of a node share one.

    A compressed frame that comes when the budget is spent is accepted unchecked, and `late` checks
    it when there is budget again. Until then, readers of the log may find that the frame cannot be
    decoded, and treat it according to their policy.

    Threads: any. `_budget` is replaced as a whole. Two threads that charge it at once may lose one
        of the charges, so that a frame more is decompressed; nothing depends on an exact budget.
    """

    def __init__(
        self,
        bytes_s: int = DECOMPRESSED_BYTES_S,
        burst_bytes: int = _BURST_BYTES,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Decompress at most `bytes_s` bytes a second, in bursts of at most `burst_bytes`."""
        self._bytes_s, self._burst_bytes = bytes_s, burst_bytes
        self._clock = clock
        self._budget = float(burst_bytes), clock()  # bytes left, and when it was filled
        self.late = LateCheck(self.charge)

    def check(self, data: memoryview, headers: Sequence[Header]) -> Verdict:
        """Check that frames can be decoded, as far as the budget allows.

        Args:
            data: complete frames, whose CRCs were checked.
            headers: the headers of all these frames.
        """
        offset, skipped = 0, []
        for header in headers:
            if header.kind == _MESSAGES:
                begin = offset + HEADER_BYTES
                if header.codec != _PLAIN and not self.charge(header.raw_length):
                    skipped.append(Position(header.position))
                else:
                    try:
                        check_columns(header, data[begin : begin + header.length])
                    except FrameError as error:
                        return Verdict((offset, str(error)), skipped)
            offset += header.size
        return Verdict(None, skipped) if skipped else _SOUND

    def charge(self, count: int) -> bool:
        """Charge `count` bytes to the budget for decompression; False if fewer are left."""
        now_s, (left, filled_s) = self._clock(), self._budget
        left = min(float(self._burst_bytes), left + self._bytes_s * (now_s - filled_s))
        is_enough = left >= count
        self._budget = left - count * is_enough, now_s
        return is_enough
