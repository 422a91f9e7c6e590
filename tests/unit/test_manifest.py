"""Manifest: synced lines that make an end, an emptiness or a loss a fact."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rt.errors import ManifestError
from rt.limits import MANIFEST_LINE_BYTES_MAX
from rt.manifest import (
    Archived,
    Identity,
    Manifest,
    Quarantined,
    Rolled,
    decode_entry,
    encode_entry,
    new_identity,
    parse_lines,
)
from rt.position import FILE_BYTES_MAX, Position

NUMBERS = st.integers(0, (1 << 63) - 1)
FILES = NUMBERS.map(lambda number: Position(number).file)
ENTRIES = st.one_of(
    st.builds(Identity, st.sampled_from(["session", "merged"]), st.text(max_size=63),
              st.text(max_size=63), st.just("0" * 32), NUMBERS, st.text(max_size=63)),
    st.builds(Rolled, FILES, st.integers(0, FILE_BYTES_MAX), NUMBERS, NUMBERS, NUMBERS, NUMBERS,
              NUMBERS),
    st.builds(Archived, FILES, NUMBERS, st.text(max_size=80)),
    st.builds(Quarantined, FILES, NUMBERS, NUMBERS, st.text(max_size=80)),
)  # fmt: skip

LOG = Identity("session", "flights", "jfk", "0" * 32, 1)
FIRST = Rolled(Position.of(0, 0, 0), 880, 0, 10, 5, 6, 7)
SECOND = Rolled(Position.of(0, 1, 0), 1760, 10, 30, 8, 9, 10)


def fed(*entries):
    """Return a manifest that took these entries, through their bytes."""
    manifest = Manifest()
    data = b"".join(map(encode_entry, entries))
    assert manifest.feed(data) == manifest.length == len(data)
    return manifest


@given(ENTRIES)
def test_every_line_survives(entry):
    """Whether a file is archived or lost is decided by this line alone."""
    line = encode_entry(entry)
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    assert decode_entry(line[:-1]) == entry


@given(st.binary(max_size=200))
def test_arbitrary_bytes_are_no_line(data):
    """A manifest may be damaged like anything else on a disk."""
    with pytest.raises(ManifestError):
        decode_entry(data)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=9),
        lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(
            ["rt", "what", "file", "end", "id", "kind"]) | st.text(max_size=4), inner),
    )
)  # fmt: skip
def test_any_json_under_a_good_crc_ends_in_an_entry_or_a_named_error(value):
    """A peer that sends manifest lines computes the CRC too."""
    import json
    from zlib import crc32

    text = json.dumps(value).encode()
    with pytest.raises(ManifestError):
        decode_entry(b"%s %08x" % (text, crc32(text)))


def test_every_flipped_bit_of_a_line_is_found():
    """A flipped digit would end a file elsewhere."""
    line = encode_entry(FIRST)[:-1]
    for bit in range(8 * len(line)):
        flipped = bytearray(line)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(ManifestError):
            decode_entry(bytes(flipped))


@pytest.mark.parametrize("depth", [1000, 100_000])
def test_a_deep_or_endless_line_is_refused(depth):
    """The JSON reader of the language ends in a RecursionError, which nobody expects."""
    from zlib import crc32

    text = b"[" * depth
    with pytest.raises(ManifestError):
        decode_entry(b"%s %08x" % (text, crc32(text)))
    with pytest.raises(ManifestError, match="longer"):
        Manifest().feed(b"x" * (MANIFEST_LINE_BYTES_MAX + 1))
    text = encode_entry(LOG)[:-10] + b" " * MANIFEST_LINE_BYTES_MAX
    with pytest.raises(ManifestError, match="longer"):
        decode_entry(b"%s %08x" % (text, crc32(text)))


def test_a_line_that_no_reader_would_take_is_not_written():
    """It would make the log unreadable for ever."""
    with pytest.raises(ManifestError, match="longer"):
        encode_entry(Archived(FIRST.file, 0, "x" * MANIFEST_LINE_BYTES_MAX))


@given(st.integers(0, 400))
def test_a_line_is_taken_only_when_it_is_finished(cut):
    """A reader may look while the line is being written."""
    data = encode_entry(LOG) + encode_entry(FIRST)
    manifest = Manifest()
    taken = manifest.feed(data[:cut])
    assert taken in (0, len(encode_entry(LOG)), len(data))
    manifest.feed(data[taken:])
    assert manifest.rolled == {FIRST.file: FIRST}
    assert manifest.length == len(data)


@pytest.mark.parametrize(
    ("entries", "words"),
    [
        ([FIRST], "first line"),
        ([LOG, new_identity("session", "flights", "jfk", created_ns=1)], "two logs"),
        ([LOG, FIRST, Rolled(FIRST.file, 80, 0, 1, 5, 6, 7)], "twice"),
        ([LOG, SECOND, FIRST], "out of order"),
    ],
)
def test_lines_that_contradict_each_other_are_refused_and_nothing_is_taken(entries, words):
    """Two logs mixed in one directory must not be read as one."""
    manifest = fed(*entries[:-1])
    before = (manifest.identity, dict(manifest.rolled), list(manifest.order))
    with pytest.raises(ManifestError, match=words):
        manifest.add(entries[-1])
    assert (manifest.identity, manifest.rolled, manifest.order) == before


def test_the_same_line_twice_is_once():
    """A receiver that crashed behind the write and before the answer gets it again."""
    manifest = fed(LOG, LOG, FIRST, FIRST, SECOND, FIRST)
    assert manifest.order == [FIRST.file, SECOND.file]


def test_a_manifest_knows_ends_and_successors():
    """Readers go from file to file by this."""
    manifest = fed(LOG, FIRST, SECOND, Archived(FIRST.file, 3, "time"))
    assert manifest.rolled_end(FIRST.file) == 880
    assert manifest.rolled_end(Position.of(0, 2, 0)) is None
    assert manifest.successor(FIRST.file) == SECOND.file
    assert manifest.successor(SECOND.file) is None
    assert FIRST.messages == 10
    assert list(manifest.archived) == [FIRST.file]


def test_a_line_without_a_group_is_of_a_session_without_one():
    """The field came later than the first logs."""
    import json
    from zlib import crc32

    fields = json.loads(encode_entry(LOG)[:-10])
    del fields["group"]
    text = json.dumps(fields, separators=(",", ":")).encode()
    assert decode_entry(b"%s %08x" % (text, crc32(text))) == LOG


@pytest.mark.parametrize(
    "texts",
    [
        (b'{"rt":1}, {"rt":1}',),
        (b'{"rt":1},{"rt":1}', b'"x":1}'),
        (b'{"rt":"', b'{"}'),
        (b"[" * 2000,),
        (b'{"a":' + b"[" * 2000,),
        (b"",),
        (b"1",),
        (b'{"reason":"{"}',),
    ],
)
def test_lines_that_only_look_like_one_array_are_looked_at_one_by_one(texts):
    """Many lines are parsed as one array, where two halves could make a whole that nobody wrote."""
    from zlib import crc32

    lines = [b"%s %08x" % (text, crc32(text)) for text in texts]
    assert parse_lines(lines) is None
    with pytest.raises(ManifestError):
        Manifest().feed(encode_entry(LOG) + b"".join(line + b"\n" for line in lines))


@given(st.lists(ENTRIES, max_size=9))
def test_many_lines_say_what_each_says_alone(entries):
    """There is one meaning of a line, however many are read at once."""
    lines = [encode_entry(entry)[:-1] for entry in entries]
    parsed = parse_lines(lines)
    if parsed is not None:
        assert [decode_entry(line) for line in lines] == entries
        assert len(parsed) == len(entries)
        assert [fields["what"] for fields in parsed] == [_word(entry) for entry in entries]


def _word(entry):
    return {Identity: "log", Rolled: "rolled", Archived: "archived"}.get(type(entry), "quarantined")


def test_a_line_with_a_field_that_nobody_knows_is_refused():
    """It says something that this version would pass over."""
    from zlib import crc32

    text = encode_entry(FIRST)[:-10].replace(b'{"rt":1', b'{"rt":1,"more":2')
    with pytest.raises(ManifestError, match="nobody knows"):
        decode_entry(b"%s %08x" % (text, crc32(text)))
