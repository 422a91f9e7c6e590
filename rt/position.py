"""Position: the 64-bit position of a byte in a log, and the name of its file."""

import re
from functools import lru_cache
from typing import Final, Self

OFFSET_BITS: Final = 30
ROLL_BITS: Final = 14
RUN_BITS: Final = 19  # 20 in the format; the sign bit stays 0, so a position is a positive i64
OFFSET_END: Final = 1 << OFFSET_BITS
ROLL_END: Final = 1 << ROLL_BITS
RUN_END: Final = 1 << RUN_BITS

# A file ends 8 bytes short of 1 GiB, so that its end is still a position in that file.
FILE_BYTES_MAX: Final = OFFSET_END - 8

_FILE_NAME: Final = re.compile(r"log\.(0|[1-9][0-9]{0,5})\.(0|[1-9][0-9]{0,4})")
_TEXT: Final = re.compile(r"([0-9]{1,6})\.([0-9]{1,5})\.([0-9]{1,10})")


class Position(int):
    """A place in one log: run (20 bits), roll (14) and offset (30) in one integer.

    Positions in one log compare as integers. Treat them as opaque: store, compare, print, and start
    from them.

    >>> Position.of(3, 1, 64)
    Position('3.1.64')
    >>> Position.parse("3.1.64") < Position.parse("3.2.0")
    True
    >>> Position.parse(str(int(Position.of(3, 1, 64)))) == Position.parse("3.1.64")
    True
    """

    __slots__ = ()

    @classmethod
    def of(cls, run: int, roll: int, offset: int) -> Self:
        """Build a position from its parts; `ValueError` if one is out of range."""
        if not (0 <= run < RUN_END and 0 <= roll < ROLL_END and 0 <= offset < OFFSET_END):
            raise ValueError(f"no such position: run {run}, roll {roll}, offset {offset}")
        return cls(run << (ROLL_BITS + OFFSET_BITS) | roll << OFFSET_BITS | offset)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse `run.roll.offset` or the integer; `ValueError` says what was expected."""
        if match := _TEXT.fullmatch(text):
            return cls.of(*(int(part) for part in match.groups()))
        if re.fullmatch(r"[0-9]{1,19}", text) and (value := int(text)) < 1 << 63:
            return cls(value)
        raise ValueError(f"not a position: {text[:40]!r}; expected run.roll.offset, such as 0.0.0")

    @property
    def run(self) -> int:
        """The number of the run, which begins when the writer starts: x in `log.x.y`."""
        return self >> (ROLL_BITS + OFFSET_BITS)

    @property
    def roll(self) -> int:
        """The file's number in that run: y in `log.x.y`."""
        return (self >> OFFSET_BITS) & (ROLL_END - 1)

    @property
    def offset(self) -> int:
        """The offset in that file, in bytes."""
        return self & (OFFSET_END - 1)

    @property
    def file(self) -> "Position":
        """The position of the first byte of the same file."""
        return Position(self & ~(OFFSET_END - 1))

    @property
    def file_name(self) -> str:
        """The name of the file, `log.x.y`."""
        # Slices of the integer, since `run` and `roll` are slower: a history may name 100,000
        # files.
        place = self >> OFFSET_BITS
        return f"log.{place >> ROLL_BITS}.{place & (ROLL_END - 1)}"

    def next_file(self) -> "Position":
        """The first byte of the next roll; roll 16383 is followed by roll 0 of the next run."""
        following = (int(self) >> OFFSET_BITS) + 1
        if following >= 1 << (RUN_BITS + ROLL_BITS):
            raise ValueError("the log has used its last run and roll")
        return Position(following << OFFSET_BITS)

    @property
    def is_last_run(self) -> bool:
        """Whether this is the last possible run, so that the log cannot be continued."""
        return self.run == RUN_END - 1

    def next_run(self) -> "Position":
        """The first byte of the next run."""
        return Position.of(self.run + 1, 0, 0)

    def __str__(self) -> str:
        return f"{self.run}.{self.roll}.{self.offset}"

    def __repr__(self) -> str:
        return f"Position('{self}')"


START: Final = Position(0)


@lru_cache(maxsize=4096)  # cached, since directories are listed often
def file_position(name: str) -> Position | None:
    """Return where the file called `name` starts; None if it is not a log file."""
    match = _FILE_NAME.fullmatch(name)
    if match is None:
        return None
    run, roll = int(match[1]), int(match[2])
    if run >= RUN_END or roll >= ROLL_END:
        return None
    return Position(run << (ROLL_BITS + OFFSET_BITS) | roll << OFFSET_BITS)
