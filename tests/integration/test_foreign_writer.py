"""A writer made from LOG_FORMAT.md alone: its session is read, judged and continued as our own."""

import ast
import os
import subprocess
import sys

import pytest

from rt import Last, Publisher, Subscriber
from rt.format.recovery import Clean, judge
from rt.format.walk import Walk
from rt.log.files.directory import LogDirectory
from rt.position import Position

PROGRAM = os.path.join(os.path.dirname(__file__), "..", "foreign_writer.py")
TEXTS = ["AA1", "B6 2", "", "DL461 departed", "UA1545", "MQ3768", "the last"]


@pytest.fixture
def root(tmp_path):
    """Give the root below which the foreign program wrote its session."""
    arguments = [str(tmp_path), "flights", "jfk", *TEXTS]
    subprocess.run([sys.executable, "-I", PROGRAM, *arguments], check=True, timeout=30)
    return str(tmp_path)


def read(root, **kwargs):
    """Return the messages of the session."""
    with Subscriber(root, stream="flights", session="jfk", follow=False, **kwargs) as subscriber:
        return list(subscriber)


def test_the_program_is_short_and_imports_nothing_of_ours():
    """Otherwise it would prove nothing about the page."""
    with open(PROGRAM) as file:
        text = file.read()
    imports = {
        name.name
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in node.names
    }
    assert imports <= {"json", "os", "struct", "sys", "time", "crc32"}
    assert text.count("\n") <= 40


def test_our_subscriber_reads_it(root):
    """From the start, from a position and by count."""
    messages = read(root)
    assert [message.payload.decode() for message in messages] == TEXTS
    assert [message.sequence for message in messages] == list(range(len(TEXTS)))
    assert read(root, start=messages[4].position) == messages[4:]
    assert read(root, start=Last(2)) == messages[-2:]


def test_recovery_takes_every_byte_of_it(root):
    """Strictly: place, tag, padding and all."""
    log = LogDirectory(os.path.join(root, "flights", "jfk"))
    log.refresh()
    file = log.open_file(Position(0))
    walk = Walk(Position(0), merged=log.merged, session=log.session)
    assert judge(file.pread, file.size(), walk) == Clean(Position(file.size()))
    file.close()
    log.close()


def test_our_writer_continues_it_in_a_new_run(root):
    """A publisher may be rewritten in another language, in either direction."""
    with Publisher(root, stream="flights", session="jfk") as publisher:
        assert publisher.publish(b"ours") == len(TEXTS)
    messages = read(root)
    assert [message.payload.decode() for message in messages] == [*TEXTS, "ours"]
    assert messages[-1].position == Position.of(1, 0, 0)
