"""CopiedLog: what was archived is read back from its copy, whole or not at all."""

import json
import os
import shutil

import pytest
from commands import run
from logs import MergedLog

from rt.cli.common import exits
from rt.errors import CorruptLog, GapError, Misuse
from rt.format.manifest import decode_entry, encode_entry
from rt.log.read.start import AtTime, Last
from rt.offload.offload import offload
from rt.offload.store import open_store
from rt.position import Position
from rt.subscriber import Subscriber

FILES = [Position.of(0, roll, 0) for roll in range(4)]
MESSAGES = 100  # of each file


def said(file, count=MESSAGES, first=0):
    """The payloads of a file."""
    return [b"%d.%d" % (file, n) * 50 for n in range(first, first + count)]


ALL = [payload for file in range(4) for payload in said(file)]


@pytest.fixture
def log(tmp_path):
    """Make a merged log of three rolled files and one that grows, and copy what is rolled."""
    with MergedLog(str(tmp_path / "rt" / "flights" / "out")) as log:
        for file in range(4):
            for first in range(0, MESSAGES, 20):
                log.merge("jfk", said(file, 20, first))
            if file < 3:
                log.roll()
        offload(log.appender.directory, open_store(str(tmp_path / "backup")))
        yield log


def reader(tmp_path, **options):
    """Return a subscriber that may read copies."""
    options = {"follow": False, "copies": str(tmp_path / "backup"), **options}
    return Subscriber(str(tmp_path / "rt"), stream="flights", **options)


def payloads(tmp_path, **options):
    """Read to the end."""
    with reader(tmp_path, **options) as subscriber:
        return [message.payload for message in subscriber]


def until_damage(tmp_path):
    """Read to the end or to damage; return what was given out, and the path of what is damaged."""
    found = []
    with reader(tmp_path) as subscriber:
        try:
            found.extend(message.payload for message in subscriber)
        except CorruptLog as error:
            return found, error.path
    return found, ""


def test_archived_files_are_read_back_as_if_they_were_there(log, tmp_path):
    """With all positions; without the option there is a gap, as always."""
    with reader(tmp_path) as subscriber:
        before = list(subscriber)
    log.archive(*FILES[:2])
    with reader(tmp_path) as subscriber:
        assert list(subscriber) == before
    assert payloads(tmp_path) == ALL
    with pytest.raises(GapError, match="limit"):
        payloads(tmp_path, copies=None, start=FILES[0])
    assert payloads(tmp_path, copies=None) == ALL[200:]


def test_a_reader_may_begin_anywhere_in_what_was_archived(log, tmp_path):
    """A position it kept for a year, a time, or so many messages from the end."""
    with reader(tmp_path) as subscriber:
        messages = list(subscriber)
    log.archive(*FILES[:3])
    for place in range(0, 300, 37):
        assert payloads(tmp_path, start=messages[place].position) == ALL[place:]
    assert payloads(tmp_path, start=Last(250)) == ALL[150:]
    assert payloads(tmp_path, start=AtTime(messages[130].merge_time_ns)) == ALL[120:]
    assert payloads(tmp_path, start="latest") == []


def test_a_file_whose_name_is_gone_is_read_back_too(log, tmp_path):
    """Empty files are folded into the manifest after a while."""
    log.archive(*FILES[:2])
    for file in FILES[:2]:
        os.unlink(os.path.join(log.appender.directory, file.file_name))
    assert payloads(tmp_path) == ALL


@pytest.mark.parametrize("taken", [1, 20, 50, 99])
def test_a_file_that_is_archived_while_it_is_read_is_read_on(log, tmp_path, taken):
    """Each message once, from the file and then from its copy."""
    with reader(tmp_path) as subscriber:
        messages = iter(subscriber)
        found = [next(messages).payload for _ in range(taken)]
        log.archive(FILES[0])
        found += [message.payload for message in messages]
    assert found == ALL


def test_what_was_not_copied_is_still_a_gap(log, tmp_path):
    """A reader must not run over a hole because it was allowed to look elsewhere."""
    for name in ("log.0.1.zst", "log.0.1.json"):
        os.unlink(tmp_path / "backup" / name)
    log.archive(*FILES[:2])
    with reader(tmp_path) as subscriber, pytest.raises(GapError) as caught:
        list(subscriber)
    assert (caught.value.gap.end, caught.value.gap.files) == (FILES[2], ("log.0.1",))
    assert payloads(tmp_path, on_gap="skip") == ALL[:100] + ALL[200:]


def test_not_a_byte_of_a_damaged_copy_is_given_out(log, tmp_path):
    """Any byte of it, wherever it lies: what is given out is right, or it is named.

    A bit or two of a zstd frame mean nothing; then the bytes are those that were copied.
    """
    log.archive(*FILES[:2])
    path = tmp_path / "backup" / "log.0.1.zst"
    whole, harmless = path.read_bytes(), 0
    for place in range(0, len(whole), 5):
        damaged = bytearray(whole)
        damaged[place] ^= 1
        path.write_bytes(damaged)
        found, place_named = until_damage(tmp_path)
        assert found == (ALL[:100] if place_named else ALL)
        assert place_named in ("", str(tmp_path / "backup" / "log.0.1.zst"))
        harmless += not place_named
    assert harmless <= 2


@pytest.mark.parametrize("damage", ["missing", "longer", "facts", "another file", "another log"])
def test_a_copy_that_does_not_match_its_facts_is_refused(log, tmp_path, damage):
    """The facts beside a copy can be damaged like any other file."""
    log.archive(FILES[0])
    facts, data = tmp_path / "backup" / "log.0.0.json", tmp_path / "backup" / "log.0.0.zst"
    fields = json.loads(facts.read_text())
    if damage == "missing":
        data.unlink()
    elif damage == "longer":
        fields["bytes"] -= 8
    elif damage == "facts":
        del fields["sha256"]
    elif damage == "another file":
        fields = json.loads((tmp_path / "backup" / "log.0.1.json").read_text())
    else:
        identity = decode_entry(fields["identity"].encode())._replace(id="1" * 32)
        fields["identity"] = encode_entry(identity).decode()[:-1]
    facts.write_text(json.dumps(fields))
    with reader(tmp_path) as subscriber, pytest.raises(CorruptLog, match=r"backup/log\.0\.0"):
        next(iter(subscriber))


def test_a_place_without_copies_is_named(log, tmp_path):
    """A slip in its name would look like a gap."""
    log.archive(FILES[0])
    with pytest.raises(Misuse, match="nowhere holds no copies"):
        payloads(tmp_path, copies=str(tmp_path / "nowhere"))


def test_a_follower_reads_back_and_continues_live(log, tmp_path):
    """It was away for a month, and wants it all."""
    log.archive(*FILES[:3])
    with reader(tmp_path, follow=True) as subscriber:
        messages = iter(subscriber)
        assert [next(messages).payload for _ in range(400)] == ALL
        log.merge("jfk", [b"live"])
        assert next(messages).payload == b"live"


def test_copies_are_read_on_the_command_line(log, tmp_path):
    """`rt subscribe --copies`."""
    log.archive(*FILES[:2])
    base = ["subscribe", "--root", tmp_path / "rt", "--stream", "flights", "--no-follow"]
    base += ["--from", "0.0.0"]
    assert run(*base).exit_code == exits.FOUND_WRONG
    result = run(*base, "--copies", tmp_path / "backup")
    assert (result.exit_code, result.stdout_bytes.split()) == (0, ALL)
    shutil.rmtree(tmp_path / "backup")
    assert run(*base, "--copies", tmp_path / "backup").exit_code == exits.BAD_USE
