"""The option checkBodies: what of a log a query reads, and what damage it can notice."""

import os
import pickle
from dataclasses import replace
from pathlib import Path

import pytest

from rt import Publisher
from rt.arrow import read_arrow
from rt.errors import CorruptLog, Misuse, PoisonError
from rt.events import Poisoned
from rt.format.frame import parse_header
from rt.position import Position
from tests.integration.test_poison import poison
from tests.spark.random_logs import STREAM, plain_rows, random_log
from tests.spark.reading import Load, bytes_read, wanted

SIZES = ("session", "time_ns", "payload_size")


@pytest.fixture
def large(tmp_path):
    """A session of eight frames, each with a payload of 100,000 bytes."""
    with Publisher(str(tmp_path), stream=STREAM, session="jfk") as publisher:
        for letter in b"abcdefgh":
            publisher.publish(bytes([letter]) * 100_000)
            publisher.flush("written")
    return os.path.join(tmp_path, STREAM, "jfk")


def spoil_a_payload(directory: str) -> None:
    """Flip a bit in the middle of the log's file, where a payload is."""
    with open(os.path.join(directory, "log.0.0"), "r+b") as file:
        file.seek(450_000)
        byte = file.read(1)[0]
        file.seek(450_000)
        file.write(bytes([byte ^ 1]))


@pytest.mark.parametrize("seed", range(6))
def test_columns_alone_give_the_rows_that_whole_frames_give(tmp_path, seed):
    """Keys, zstd, repeats, several runs: the result is that of a plain decoder."""
    with random_log(str(tmp_path), seed) as merging:
        rows = plain_rows(merging.directory)
        read = Load(merging.directory, checkBodies="false").read(wanted(*SIZES))
    assert read["payload_size"].to_pylist() == [len(row.payload) for row in rows]
    assert read["time_ns"].to_pylist() == [row.time_ns for row in rows]
    assert read["session"].to_pylist() == [row.session for row in rows]


def test_sizes_and_times_are_read_without_the_payloads(large):
    """Of 800,000 bytes, a few hundred."""
    load = Load(large, checkBodies="false")
    load.read(wanted(*SIZES)).to_pylist()  # imports what reading needs
    before = bytes_read()
    assert load.read(wanted(*SIZES))["payload_size"].to_pylist() == [100_000] * 8
    assert bytes_read() - before < 100_000


@pytest.mark.parametrize("mode", ["FAILFAST", "PERMISSIVE", "DROPMALFORMED"])
def test_false_reads_headers_alone_in_every_mode(large, mode):
    """Counting does not need a body, whatever becomes of damaged ones."""
    spoil_a_payload(large)
    load = Load(large, checkBodies="false", mode=mode)
    before = bytes_read()
    assert load.read(wanted("session")).num_rows == 8
    assert bytes_read() - before < 100_000


def test_true_finds_damage_that_headers_do_not_show(large):
    """By default such a query is right without it, and does not look."""
    spoil_a_payload(large)
    assert Load(large).read(wanted("session")).num_rows == 8
    with pytest.raises(CorruptLog, match="CRC"):
        Load(large, checkBodies="true").read(wanted("session"))


def test_payloads_are_always_checked(large):
    """No setting hands over bytes whose CRC was not compared."""
    spoil_a_payload(large)
    with pytest.raises(CorruptLog, match="CRC"):
        Load(large, checkBodies="false").read(wanted("payload"))


def test_offsets_that_lead_elsewhere_are_found_without_the_crc(large):
    """The columns are not compared with the CRC, so they are compared with the header."""
    with open(os.path.join(large, "log.0.0"), "r+b") as file:
        file.seek(64 + 8 + 4)  # the end of the first frame's only payload
        file.write(b"\xff\xff\xff\x7f")
    with pytest.raises(CorruptLog, match="columns"):
        Load(large, checkBodies="false").read(wanted("payload_size"))


def seal_wrong_offsets(directory: str) -> Poisoned:
    """Make the third frame one that is whole and cannot be decoded; return the event of it."""
    path = Path(directory, "log.0.0")
    data, at = path.read_bytes(), 0
    for _ in range(2):
        at += parse_header(data, at).size
    path.write_bytes(poison(data, at))
    end = at + parse_header(data, at).size
    return Poisoned("jfk", Position(at), Position(end), 1, "")


@pytest.mark.parametrize("columns", [("payload",), ("payload_size",), ()])
@pytest.mark.parametrize("check", ["auto", "true", "false"])
def test_a_poisoned_frame_is_told_from_a_damaged_one(large, columns, check):
    """No copy has a better one: the error names session and position, and where to go on."""
    event = seal_wrong_offsets(large)
    with pytest.raises(PoisonError) as found:
        Load(large, checkBodies=check).read(wanted(*columns))
    assert replace(found.value.event, reason="") == event
    assert str(found.value.path) == os.path.join(large, "log.0.0")
    said = str(pickle.loads(pickle.dumps(found.value)))
    assert f"a frame of session jfk at {event.position} cannot be decoded: " in said
    assert f"start from {event.end} to continue after its 1 message" in said
    rest = read_arrow(large, start=str(event.end)).read_all()
    assert rest.num_rows == 5


def test_a_damaged_frame_is_no_poison(large):
    """Another copy may have it whole."""
    spoil_a_payload(large)
    with pytest.raises(CorruptLog) as found:
        Load(large).read(wanted("payload"))
    assert not isinstance(found.value, PoisonError)


def test_another_word_is_refused(large):
    """And the message lists the choices."""
    with pytest.raises(Misuse, match="checkBodies='some': give one of auto, true, false"):
        Load(large, checkBodies="some")
