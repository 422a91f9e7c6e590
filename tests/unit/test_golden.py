"""Golden logs: what was written once is read for ever, and is still written so."""

import json
import os
import shutil

import pytest
from golden_logs import HERE, KINDS, contents, fixed, read

from rt.format.frame import HEADER_BYTES, Codec, parse_header
from rt.log.write.writer import SessionWriter

VERSIONS = sorted(name for name in os.listdir(HERE) if name.isdigit())


def names_of(root):
    """Return the paths under `root`."""
    return sorted(contents(root))


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("kind", KINDS)
def test_every_released_format_is_read(version, kind):
    """A log is kept for years; the program that reads it is newer."""
    root = os.path.join(HERE, version, kind)
    with open(f"{root}.json") as file:
        assert read(root, KINDS[kind][1]) == json.load(file)


@pytest.mark.parametrize("kind", ["session", "merged", "headers"])
def test_the_same_inputs_still_give_the_same_bytes(tmp_path, kind):
    """A byte that changes unnoticed is a format that changed without a version."""
    with fixed():
        KINDS[kind][0](str(tmp_path))
    golden = contents(os.path.join(HERE, VERSIONS[-1], kind))
    assert names_of(tmp_path) == sorted(golden)
    assert contents(tmp_path) == golden


def test_compressed_logs_are_the_same_but_for_what_zstd_made(tmp_path):
    """Another release of zstd may compress better; everything else must not change."""
    with fixed():
        KINDS["packed"][0](str(tmp_path))
    assert read(str(tmp_path), "jfk") == read(os.path.join(HERE, VERSIONS[-1], "packed"), "jfk")
    codecs = []
    for name, data in contents(os.path.join(HERE, VERSIONS[-1], "packed")).items():
        if os.path.basename(name).startswith("log.") and not name.endswith(".idx"):
            offset = 0
            while offset + HEADER_BYTES <= len(data):
                header = parse_header(data, offset)
                codecs.append(header.codec)
                offset += header.size
    assert sorted(codecs) == [Codec.NONE, Codec.NONE, Codec.ZSTD, Codec.ZSTD]


def test_todays_writer_continues_an_old_session(tmp_path):
    """An upgrade must not strand the publisher's own log."""
    shutil.copytree(os.path.join(HERE, "1", "session"), tmp_path / "root")
    before = read(str(tmp_path / "root"), "jfk")
    writer = SessionWriter(str(tmp_path / "root"), "flights", "jfk")
    assert writer.next_sequence == 50
    writer.write([0], [b"today"], None)
    writer.close()
    assert [row[0] for row in read(str(tmp_path / "root"), "jfk")] == [
        *(row[0] for row in before), "2.0.0",
    ]  # fmt: skip
