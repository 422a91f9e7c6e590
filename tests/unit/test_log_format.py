"""LOG_FORMAT.md: the page and the code say the same, byte by byte."""

import os
import re
import struct
from hashlib import blake2b

import pytest
from golden_logs import fixed
from logs import TIME_NS, MergedLog, make_frame

from rt import limits, names, position
from rt.format.frame import (
    HEADER,
    HEADER_BYTES,
    KEYS_COLUMN,
    MAGIC,
    Codec,
    FrameKind,
    Header,
    encode_frame,
    parse_header,
    session_tag,
)
from rt.format.index import ENTRY_BYTES
from rt.format.manifest import MERGED, LogIdentity
from rt.format.ranges import EMPTY_DIGEST, Range
from rt.inspect.verify import open_log, verify_log
from rt.log.files.directory import LogDirectory
from rt.log.files.disk import OsDisk
from rt.log.read.reader import Reader
from rt.log.write.appender import Appender
from rt.log.write.writer import Fsync, SessionWriter, WriterSettings
from rt.position import START

PATH = os.path.join(os.path.dirname(__file__), "..", "..", "docs", "LOG_FORMAT.md")
MARK = "<!-- example: tests/unit/test_log_format.py compares it with what the code writes -->\n"

NOTES = {  # offset in the file: what begins there
    0: "magic, header CRC, position 0.0.0",
    16: "sequence 0, time",
    32: "durable 0, messages 2, length",
    48: "length again, body CRC, kind, codec, keys, 0, tag",
    64: "times",
    80: "offsets 0, 12, 17; key offsets 0 ...",
    96: "... 2, 4; payloads",
    112: "... and keys",
}


@pytest.fixture(scope="module")
def page():
    """Return the text of the page."""
    with open(PATH) as file:
        return file.read()


def example(root):
    """Return the example of the page, as the code writes it."""
    with fixed():
        writer = SessionWriter(str(root), "flights", "jfk", WriterSettings(fsync=Fsync.NEVER))
        writer.write([TIME_NS, TIME_NS + 60], [b"AA1 departed", b"B6 on"], [b"AA", b"B6"])
        writer.close()
    directory = root / "flights" / "jfk"
    lines = [f"    {line}" for line in (directory / "manifest").read_text().splitlines()]
    data = (directory / "log.0.0").read_bytes()
    rows = [
        f"    {at:04x}  {data[at : at + 16].hex(' '):<47}  {NOTES[at]}"
        for at in range(0, len(data), 16)
    ]
    index = (directory / "log.0.0.idx").read_bytes().hex(" ")
    return "\n".join(
        ["`manifest`:", "", *lines, "", f"`log.0.0`, {len(data)} bytes:", "", *rows, "",
         "`log.0.0.idx`:", "", f"    {index}", ""]
    )  # fmt: skip


def test_the_worked_example_is_what_the_code_writes(page, tmp_path):
    """The author of a writer in another language checks it against these bytes."""
    assert page.partition(MARK)[2].strip("\n") == example(tmp_path).strip("\n")


def test_the_header_table_is_the_struct_of_the_code(page):
    """A wrong offset on the page makes every foreign log unreadable."""
    table = page.partition("## Header")[2].partition("## Body")[0]
    rows = re.findall(r"^\| (\d+) \| (\S+)(?: bytes)? \|", table, re.MULTILINE)
    sizes = {"4": 4, "u8": 1, "u32": 4, "u64": 8, "i64": 8}
    offset = 0
    for at, kind in rows:
        assert int(at) == offset
        offset += sizes[kind]
    assert offset == HEADER.size == HEADER_BYTES
    assert len(rows) == len(Header._fields) + 3  # magic, checksum, and the byte that is 0
    assert f"`{MAGIC.hex(' ')}`" in page


def test_the_numbers_of_the_page_are_those_of_the_code(page):
    """Limits that differ are frames that one side writes and the other refuses."""
    for number in (
        limits.BODY_BYTES_MAX, limits.MESSAGE_BYTES_MAX, limits.MANIFEST_LINE_BYTES_MAX,
        limits.INDEX_EVERY_BYTES, position.FILE_BYTES_MAX, position.RUN_END - 1,
        position.ROLL_END - 1,
    ):  # fmt: skip
        assert f"{number:,}" in page
    assert f"{names.NAME_LENGTH_MAX} bytes" in page
    assert f"Entries of {ENTRY_BYTES} bytes" in page
    assert "0 messages, 1 range, 2 control" in page
    assert [int(each) for each in (*FrameKind, *Codec, KEYS_COLUMN)] == [0, 1, 2, 0, 1, 1]


def test_the_page_is_short(page):
    """It is to be read before a line of code is written."""
    assert 75 <= page.count("\n") <= 200


def test_whole_frames_of_an_incomplete_last_range_are_given_out(tmp_path):
    """The page says so: what follows them was agreed on, and will be the same bytes."""
    with MergedLog(str(tmp_path)) as log:
        log.merge("jfk", [b"a"], [b"b"], [b"c"])
        end = log.appender.end.offset
    path = tmp_path / "log.0.0"
    data = path.read_bytes()
    size = parse_header(data[-88:]).size
    path.write_bytes(data[: end - size - 8])
    reader = Reader(LogDirectory(str(tmp_path)))
    assert reader.poll().payloads() == [b"a"]
    assert reader.poll() is None
    path.write_bytes(data)
    assert [reader.poll().payloads() for _ in range(2)] == [[b"b"], [b"c"]]
    reader.close()


def test_a_digest_covers_the_headers_of_control_frames(tmp_path):
    """A reader that leaves them out computes another digest, and calls two equal logs different."""
    messages = make_frame(0, [b"a"])
    control = encode_frame(
        b"", position=messages.header.size, sequence=1, time_ns=TIME_NS, messages=0,
        kind=FrameKind.CONTROL, session_tag=session_tag("jfk"),
    )  # fmt: skip
    headers = [frame.parts[0] for frame in (messages, control)]
    length = messages.header.size + control.header.size
    plain = Range(1, 1, TIME_NS, "jfk", START, length, 0, 1, 0)
    merged = plain.digested(EMPTY_DIGEST, 0, b"".join(headers))
    expected = blake2b(EMPTY_DIGEST, digest_size=16)
    expected.update(struct.pack("<QQqI", 0, 0, TIME_NS, 1) + plain.body() + b"".join(headers))
    assert merged.digest == expected.digest()
    log = Appender(OsDisk(), str(tmp_path), LogIdentity(MERGED, "flights", "out", "0" * 32, 1))
    log.begin_file(START)
    frames, after = [merged.frame(0), messages, control], log.walk.copy()
    for frame in frames:
        after.step(frame.header, frame.parts[1])
    log.append(
        [part for frame in frames for part in frame.parts], [f.header for f in frames], after
    )
    log.close()
    directory = open_log(str(tmp_path))
    report = verify_log(directory, lambda _count: None)
    directory.close()
    assert (report.faults, report.digest) == ([], merged.digest.hex())


def test_a_range_with_repeats_has_the_number_of_its_first_new_message(tmp_path):
    """Repeats are neither given out nor numbered, wherever in the frames they end."""
    with MergedLog(str(tmp_path)) as log:
        log.merge("jfk", [b"a", b"b"])
        log.merge("lga", [b"a", b"b"], [b"c", b"d"], skip=3)
        new = log.merge("jfk", [b"e"])
    assert new.number == 3
    reader, found = Reader(LogDirectory(str(tmp_path))), []
    while batch := reader.poll():
        found += [(message.number, message.payload) for message in batch.messages()]
    reader.close()
    assert found == [(0, b"a"), (1, b"b"), (2, b"d"), (3, b"e")]


if __name__ == "__main__":  # writes the example into the page
    import pathlib
    import tempfile

    text = pathlib.Path(PATH).read_text().partition(MARK)
    with tempfile.TemporaryDirectory() as directory:
        made = example(pathlib.Path(directory))
    pathlib.Path(PATH).write_text(f"{text[0]}{MARK}\n{made}")
