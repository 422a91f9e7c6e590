"""Seek: an index entry is followed only if the frame it leads to says the same."""

import pytest
from logs import make_frame

from rt.format.index import Index, IndexEntry, encode_index
from rt.format.seek import walk_before
from rt.position import FILE_BYTES_MAX, Position

START = Position.of(2, 1, 0)


def log_of(count):
    """Return the bytes of a file, and a true entry for each frame."""
    data, entries = b"", []
    for place in range(count):
        frame = make_frame(START + len(data), [b"x"], sequence=place, time_ns=100 * place)
        entries.append(IndexEntry(len(data), 100 * place, place))
        data += b"".join(frame.parts)
    return data, entries


def found(data, entries, is_past, **kwargs):
    """Return where the walk begins."""
    raw = encode_index(entries)
    index = Index(lambda length, offset: raw[offset : offset + length], len(raw))
    read = lambda length, offset: data[offset : offset + length]  # noqa: E731
    return walk_before(read, index, START, is_past, merged=kwargs.get("merged", False)).position


def test_the_walk_begins_at_the_last_frame_that_is_not_past():
    """A start in a file of 1 GiB must not read all of it, nor begin too late."""
    data, entries = log_of(10)
    for place in range(10):
        at = found(data, entries, lambda entry, place=place: entry.number > place)
        assert at == START + entries[place].offset
        at = found(data, entries, lambda entry, place=place: entry.time_ns >= 100 * place)
        assert at == START + entries[max(0, place - 1)].offset


def test_without_an_index_the_walk_begins_at_the_start_of_the_file():
    """It can always be made again, so it may be missing."""
    data, _ = log_of(3)
    assert found(data, [], lambda entry: entry.number > 2) == START


@pytest.mark.parametrize(
    "lie",
    [
        IndexEntry(8, 300, 3),  # no frame there
        IndexEntry(0, 300, 3),  # a frame, but of another number
        IndexEntry(264, 300, 2),
        IndexEntry(264, 299, 3),
        IndexEntry(FILE_BYTES_MAX + 8, 300, 3),
        IndexEntry((1 << 64) - 1, 300, 3),
        IndexEntry(1 << 40, 300, 3),
    ],
)
def test_a_false_index_entry_is_ignored(lie):
    """One wrong time, believed, leads past what is sought: messages would be skipped in silence."""
    data, entries = log_of(6)
    assert entries[3] == IndexEntry(264, 300, 3)
    assert found(data, [*entries[:3], lie], lambda _entry: False) == START


def test_in_a_merged_log_only_a_range_frame_is_a_place_to_begin():
    """A session frame inside a range could be, by chance, at its own position."""
    data, entries = log_of(6)
    assert found(data, entries, lambda _entry: False, merged=True) == START
