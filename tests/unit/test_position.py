"""Position: one integer that names a byte, compares as time does, and survives being written."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rt.position import (
    FILE_BYTES_MAX,
    OFFSET_END,
    ROLL_END,
    RUN_END,
    START,
    Position,
    file_position,
)

POSITIONS = st.integers(0, (1 << 63) - 1).map(Position)

STRAYS = [
    "", "log", "log.", "log.0", "log.0.", "log.0.0.", "log.0.0~", "log.0.0.tmp", "log.0.0.idx",
    "log.00.0", "log.0.00", "log.-1.0", "log.+1.0", "log. 1.0", "log.1.0\n", "log.1.0\0", "LOG.0.0",
    "Log.0.0", "xlog.0.0", "log.0.0 ", " log.0.0", "log.0x1.0", "log.1e3.0", "log.1_0.0", "log.٣.0",
    "log.0.0.0", "log.524288.0", "log.0.16384", "log.9999999.0", "log.0.99999", "log..0", "log.0..",
    "log/0/0", "../log.0.0", "log,0,0", "manifest", "lock", "confirmed", "log.0.0.old",
    "12.blk.tmp",
]  # fmt: skip


@given(POSITIONS)
def test_every_position_survives_its_text_its_integer_and_its_parts(position):
    """A resume position is stored by users as text or number; a change would lose messages."""
    assert Position.parse(str(position)) == position
    assert Position.parse(str(int(position))) == position
    assert Position.of(position.run, position.roll, position.offset) == position


@given(POSITIONS, POSITIONS)
def test_positions_compare_as_their_parts_do(one, other):
    """Every search in a log compares plain integers and relies on this."""
    parts = [(each.run, each.roll, each.offset) for each in (one, other)]
    assert (one < other) == (parts[0] < parts[1])


@pytest.mark.parametrize("edge", [1 << 30, 1 << 44, (1 << 63) - 17])
def test_positions_strictly_increase_across_every_boundary(edge):
    """The carries from offset to roll and from roll to run are where an off-by-one would hide."""
    around = [Position(edge + step) for step in range(-16, 17)]
    assert all(one < other for one, other in pairwise(around))
    assert [Position.of(p.run, p.roll, p.offset) for p in around] == around
    assert all(file_position(each.file_name) == each.file for each in around)


def test_the_last_roll_of_a_run_is_followed_by_the_next_run():
    """A writer that never restarts still passes 16,384 rolls one day."""
    assert Position.of(7, ROLL_END - 1, 5).next_file() == Position.of(8, 0, 0)
    assert Position.of(7, 3, 5).next_file() == Position.of(7, 4, 0)
    assert Position.of(7, 3, 5).next_run() == Position.of(8, 0, 0)


def test_the_last_file_of_all_has_no_successor():
    """Wrapping round to the first file would write over the oldest data."""
    last = Position.of(RUN_END - 1, ROLL_END - 1, 0)
    with pytest.raises(ValueError, match="last run and roll"):
        last.next_file()
    with pytest.raises(ValueError, match="no such position"):
        last.next_run()


def test_the_end_of_a_full_file_is_a_position_of_that_file():
    """If it were the start of the next one, two places would share a name."""
    assert Position.of(0, 0, FILE_BYTES_MAX).file == START


@pytest.mark.parametrize(
    "parts", [(RUN_END, 0, 0), (0, ROLL_END, 0), (0, 0, OFFSET_END), (-1, 0, 0), (0, 0, -1)]
)
def test_a_part_out_of_its_bits_is_refused(parts):
    """It would silently become another place."""
    with pytest.raises(ValueError, match="no such position"):
        Position.of(*parts)


@pytest.mark.parametrize(
    "text",
    ["", "1.2", "1.2.3.4", "-1", "a.b.c", "1.2.-3", " 1.2.3", "1.2.3\n", str(1 << 63), "1e3"],
)
def test_text_that_is_not_a_position_is_refused_with_an_example(text):
    """It comes from a command line or a file; the message must help."""
    with pytest.raises(ValueError, match=r"such as 0\.0\.0|no such position"):
        Position.parse(text)


@pytest.mark.parametrize("name", STRAYS)
def test_a_stray_name_is_never_taken_for_a_log_file(name):
    """A `.tmp` read as data, or an editor's backup merged, corrupted other systems."""
    assert file_position(name) is None


@given(st.text(max_size=20))
def test_any_name_is_a_log_file_only_if_it_is_written_exactly_so(name):
    """Two names for one file would be read twice."""
    position = file_position(name)
    assert position is None or position.file_name == name
