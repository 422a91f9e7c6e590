"""LOG_FORMAT.md: the page and the code say the same, byte by byte."""

import os
import re

import pytest
from golden_logs import fixed
from logs import TIME_NS

from rt import limits, names, position
from rt.format.frame import HEADER, HEADER_BYTES, KEYS_COLUMN, MAGIC, Codec, FrameKind, Header
from rt.format.index import ENTRY_BYTES
from rt.log.writer import Fsync, SessionWriter, WriterSettings

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
    """Return the example as it stands on the page, made by the code."""
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
    """Whoever writes a writer in another language checks it against these bytes."""
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
    assert len(rows) == len(Header._fields) + 2
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


if __name__ == "__main__":  # writes the example into the page
    import pathlib
    import tempfile

    text = pathlib.Path(PATH).read_text().partition(MARK)
    with tempfile.TemporaryDirectory() as directory:
        made = example(pathlib.Path(directory))
    pathlib.Path(PATH).write_text(f"{text[0]}{MARK}\n{made}")
