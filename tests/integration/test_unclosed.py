"""A program that exits without closing its publisher has still written all its messages."""

import os
import subprocess
import sys

import pytest

from rt import Subscriber

PROGRAM = """
import os, sys
import rt
publisher = rt.Publisher(sys.argv[1], stream="s", session="p", batching=rt.Batching(linger_s=60))
for number in range(10):
    publisher.publish(b"%d" % number)
"""
ENDS = {
    "at its last line": "",
    "by an error": "raise ValueError",
    "by sys.exit": "sys.exit(3)",
    "after a fork": "child = os.fork()\nif child:\n    os.waitpid(child, 0)",
}


@pytest.mark.parametrize("end", ENDS)
def test_what_was_published_is_written_when_a_program_ends(tmp_path, end):
    """Eight of ten messages were lost: the thread that writes them is a daemon."""
    program = PROGRAM + ENDS[end]
    environment = {**os.environ, "PYTHONWARNINGS": "ignore"}
    subprocess.run(
        [sys.executable, "-P", "-c", program, tmp_path], check=False, timeout=60, env=environment,
        stderr=subprocess.DEVNULL,
    )  # fmt: skip
    with Subscriber(tmp_path, stream="s", session="p", follow=False) as subscriber:
        assert [message.payload for message in subscriber] == [b"%d" % n for n in range(10)]
