"""Manifest: synced lines that make an end, an emptiness or a loss a fact."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rt.errors import ManifestError
from rt.format.manifest import (
    Archived,
    LogIdentity,
    Manifest,
    Quarantined,
    Rolled,
    decode_entry,
    encode_entry,
    read_block,
)
from rt.limits import MANIFEST_LINE_BYTES_MAX
from rt.log.files.identity import new_identity
from rt.position import FILE_BYTES_MAX, Position

NUMBERS = st.integers(0, (1 << 63) - 1)
FILES = NUMBERS.map(lambda number: Position(number).file)
ENTRIES = st.one_of(
    st.builds(LogIdentity, st.sampled_from(["session", "merged"]), st.text(max_size=63),
              st.text(max_size=63), st.just("0" * 32), NUMBERS, st.text(max_size=63)),
    st.builds(Rolled, FILES, st.integers(0, FILE_BYTES_MAX), NUMBERS, NUMBERS, NUMBERS, NUMBERS,
              NUMBERS),
    st.builds(Archived, FILES, NUMBERS, st.text(max_size=80)),
    st.builds(Quarantined, FILES, NUMBERS, NUMBERS, st.text(max_size=80)),
)  # fmt: skip

LOG = LogIdentity("session", "flights", "jfk", "0" * 32, 1)
FIRST = Rolled(Position.of(0, 0, 0), 880, 0, 10, 5, 6, 7)
SECOND = Rolled(Position.of(0, 1, 0), 1760, 10, 30, 8, 9, 10)


def _text(entry):
    return encode_entry(entry)[:-10]


def _sealed(text):
    from zlib import crc32

    return b"%s %08x\n" % (text, crc32(text))


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
def test_arbitrary_bytes_are_not_a_line(data):
    """A manifest may be damaged like anything else on a disk."""
    with pytest.raises(ManifestError):
        decode_entry(data)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=9),
        lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(
            ["rt", "what", "file", "end", "id", "kind"]) | st.text(max_size=4), inner),
        max_leaves=20,
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
    """The JSON reader of the language ends in a RecursionError, which callers do not expect."""
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
    ("entries", "reason"),
    [
        ([FIRST], "first line"),
        ([LOG, new_identity("session", "flights", "jfk", created_ns=1)], "two logs"),
        ([LOG, FIRST, Rolled(FIRST.file, 80, 0, 1, 5, 6, 7)], "twice"),
        ([LOG, SECOND, FIRST], "out of order"),
    ],
)
def test_lines_that_contradict_each_other_are_refused_and_nothing_is_taken(entries, reason):
    """Two logs mixed in one directory must not be read as one."""
    manifest = fed(*entries[:-1])
    before = (manifest.identity, dict(manifest.rolled), list(manifest.order))
    with pytest.raises(ManifestError, match=reason):
        manifest.add(entries[-1])
    assert (manifest.identity, manifest.rolled, manifest.order) == before


def test_a_repeated_line_changes_nothing():
    """A receiver that crashed after the write and before the answer gets it again."""
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
        (b"",),
        (b"1",),
        (b'{"reason":"{"}',),
        (b'x{"rt":1,"what":"archived","file":"log.0.0","at_ns":1,"reason":"x"}',),
        (b'{"rt":1,"what":"archived","file":"log.0.0","at_ns":01,"reason":"x"}',),
        (b'{"rt":1,"what":"archived","file":"log.0.16384","at_ns":1,"reason":"x"}',),
        (b'{"rt":1,"what":"archived","file":"log.524288.0","at_ns":1,"reason":"x"}',),
        (b'{"rt":1,"what":"archived","file":"log.0.0","at_ns":1,"reason":"\x01"}',),
        (b'{"rt":1,"what":"archived","file":"log.0.0","at_ns":1,"reason":"\xff"}',),
        (b'{"rt":1,"what":"archived","file":"log.0.0","at_ns":1,"reason":"%s"}' % (b"x" * 4096),),
        (_text(FIRST).replace(b"880", b"1073741817"),),
        (_text(FIRST).replace(b"880", b"-8"),),
    ],
)
def test_invalid_lines_are_refused_however_many_are_read(texts):
    """Many lines are read at once, where two halves could make a line that was never written."""
    lines = b"".join(map(_sealed, texts))
    for before in (b"", encode_entry(SECOND)):
        with pytest.raises(ManifestError):
            Manifest().feed(encode_entry(LOG) + before + lines)


@given(st.lists(ENTRIES, max_size=9))
def test_many_lines_mean_what_each_means_alone(entries):
    """There is one meaning of a line, however many are read at once."""
    found = read_block(b"".join(map(encode_entry, entries)) if entries else b"\n")
    if found is not None:
        assert found == (
            [entry for entry in entries if isinstance(entry, Rolled)],
            [entry for entry in entries if isinstance(entry, Archived)],
        )


def test_lines_in_our_own_layout_are_read_in_bulk():
    """A manifest of years is read in a third of the time; 1 GiB, names and digests and all."""
    full = Rolled(Position.of(1, 0, 0), FILE_BYTES_MAX, 30, 40, -1, 9, 10, "0" * 32, "ewr,jfk,+3")
    gone = [Archived(FIRST.file, 3, "disk, over the lease of spark", 7), Archived(full.file, 4, "")]
    data = b"".join(map(encode_entry, [FIRST, gone[0], full, gone[1]]))
    assert read_block(data) == ([FIRST, full], gone)
    manifest = fed(LOG, FIRST, gone[0], full, gone[1])
    assert manifest.rolled == {FIRST.file: FIRST, full.file: full}
    assert list(manifest.archived.values()) == gone


@pytest.mark.parametrize("entry", [FIRST, Archived(FIRST.file, 3, "time", 7)])
def test_every_flipped_bit_is_found_where_many_lines_are_read(entry):
    """The CRC is asked before anything is believed."""
    line = encode_entry(entry)
    for bit in range(8 * (len(line) - 1)):
        flipped = bytearray(line)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(ManifestError):
            Manifest().feed(encode_entry(LOG) + flipped)


def test_a_line_in_another_layout_means_the_same():
    """Another program may order the fields as it likes."""
    import json

    def reworded(entry):
        fields = dict(reversed(json.loads(_text(entry)).items()))
        return _sealed(json.dumps(fields).encode())

    entries = [FIRST, SECOND, Archived(FIRST.file, 3, "time", 7)]
    manifest = Manifest()
    manifest.feed(encode_entry(LOG) + b"".join(map(reworded, entries)))
    assert manifest.rolled == fed(LOG, *entries).rolled
    assert manifest.archived == fed(LOG, *entries).archived


def test_a_manifest_of_many_blocks_is_read_whole():
    """A line that lies across the end of a block is one line."""
    files = [Position.of(0, number, 0) for number in range(2000)]
    entries = [Rolled(file, 8, place, place + 1, 1, 1, 1) for place, file in enumerate(files)]
    manifest = fed(LOG, *entries)
    assert manifest.order == files
    assert list(manifest.rolled.values()) == entries
    with pytest.raises(ManifestError, match="out of order"):
        fed(
            LOG,
            *entries[:1500],
            entries[5]._replace(file=Position.of(0, 5, 0).next_run()),
            *entries,
        )


def test_a_line_with_an_unknown_field_is_refused():
    """It says something that this version would ignore."""
    from zlib import crc32

    text = encode_entry(FIRST)[:-10].replace(b'{"rt":1', b'{"rt":1,"more":2')
    with pytest.raises(ManifestError, match="unknown field"):
        decode_entry(b"%s %08x" % (text, crc32(text)))


def torn(tail, *, before=512):
    """Return a line, and a write after it that lost everything before the disk's next sector."""
    line = Archived(FIRST.file, 1, "")
    first = encode_entry(LOG) + encode_entry(line._replace(reason="x" * 40))
    fill = before - 10 - len(first) - len(encode_entry(line))
    lines = first + encode_entry(line._replace(reason="y" * fill))
    assert len(lines) == before - 10
    return lines, lines + bytes(10) + tail


@pytest.mark.parametrize("tail", [b"", b'of": 1} 0123abcd\n', b'of": 1} 0123abcd\n{"what'])
def test_lines_that_a_power_cut_tore_count_as_not_written(tail):
    """Seed 178: a sector of the last write was lost, and a node called its copy damaged."""
    lines, data = torn(tail)
    manifest = Manifest()
    assert manifest.feed(data) == len(lines) == manifest.length
    again = Manifest()
    assert again.feed(data[:400]) + again.feed(data[again.length :]) == len(lines)


def test_zeros_before_a_whole_line_or_inside_a_sector_are_damage():
    """What follows was synced after it; and no power cut ends inside of a sector."""
    _, data = torn(b'of": 1} 0123abcd\n' + encode_entry(FIRST))
    with pytest.raises(ManifestError, match="CRC"):
        Manifest().feed(data)
    _, data = torn(b'of": 1} 0123abcd\n', before=500)
    with pytest.raises(ManifestError, match="CRC"):
        Manifest().feed(data)
