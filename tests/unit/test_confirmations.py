"""Confirmations: how far a session has come, passed from one process to another."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rt.log.notify.confirmations import (
    FILE_NAME,
    Confirmations,
    ConfirmationsFile,
    Level,
    decode_confirmations,
)
from rt.position import Position

POSITIONS = st.integers(0, (1 << 63) - 1).map(Position)
CONFIRMED = st.builds(Confirmations, *[POSITIONS] * 5)


@given(CONFIRMED)
def test_confirmations_are_read_as_they_were_written(confirmed):
    """`flush` returns on the strength of it."""
    assert decode_confirmations(confirmed.encode()) == confirmed


@given(st.binary(max_size=96))
def test_arbitrary_bytes_confirm_nothing(data):
    """Half an overwrite, or another program's file, must never acknowledge a message."""
    assert decode_confirmations(data) is None


@given(CONFIRMED, CONFIRMED, st.integers(1, 47))
def test_a_file_read_in_the_middle_of_a_write_confirms_nothing_new(old, new, cut):
    """It is overwritten in place, while the publisher reads."""
    mixed = new.encode()[:cut] + old.encode()[cut:]
    assert decode_confirmations(mixed) in (None, old, new)


def test_the_file_may_be_missing_short_or_damaged(tmp_path):
    """A publisher whose session was never shipped must not fail for it."""
    file = ConfirmationsFile(str(tmp_path))
    assert file.read() == Confirmations()
    told = Confirmations(Position(5), Position(4), Position(3), Position(9))
    file.write(told)
    assert file.read() == told
    path = tmp_path / FILE_NAME
    path.write_bytes(path.read_bytes()[:-1])
    assert file.read() == Confirmations()
    file.write(told)
    assert [file.read().reached(level) for level in Level if level >= Level.RECEIVED] == [5, 4, 3]


def test_levels_are_ordered_and_a_wrong_word_names_them_all():
    """`flush("syncd")` must say what there is."""
    assert Level.WRITTEN < Level.SYNCED < Level.RECEIVED < Level.REPLICATED < Level.MERGED
    assert Level.parse("Merged") is Level.MERGED
    with pytest.raises(ValueError, match="written, synced, received, replicated, merged"):
        Level.parse("syncd")
