"""Index: a binary search on the disk, whose result is never trusted."""

from bisect import bisect_left

from hypothesis import given
from hypothesis import strategies as st

from rt.format.index import ENTRY_BYTES, Index, IndexEntry, encode_index

U64 = st.integers(0, (1 << 64) - 1)


def index_of(data):
    """Return the index that these bytes are."""
    return Index(lambda length, offset: data[offset : offset + length], len(data))


@given(st.lists(st.integers(0, 1 << 30)).map(sorted), st.integers(0, 1 << 30))
def test_the_search_counts_the_entries_before_what_is_sought(offsets, wanted):
    """Any start by position, time or number goes through this."""
    data = encode_index([IndexEntry(offset, offset, offset) for offset in offsets])
    index = index_of(data)
    assert [index[place].offset for place in range(index.entries)] == offsets
    assert index.count(lambda entry: entry.offset >= wanted) == bisect_left(offsets, wanted)


@given(st.binary(max_size=5 * ENTRY_BYTES), U64)
def test_arbitrary_bytes_end_in_some_count(data, wanted):
    """An index may be torn, stale or damaged; it must only cost time."""
    index = index_of(data)
    assert 0 <= index.count(lambda entry: entry.number > wanted) <= index.entries


def test_a_torn_last_entry_and_a_file_cut_meanwhile_are_not_entries():
    """Index files are not synced, and a restarted writer cuts them under a reader."""
    data = encode_index([IndexEntry(8, 1, 2)])
    assert index_of(data + b"torn").entries == 1
    assert Index(lambda _length, _offset: b"", ENTRY_BYTES)[0] == IndexEntry(0, 0, 0)
