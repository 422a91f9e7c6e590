"""kill -9 of a publisher, 200 times: what was flushed is there once and in order."""

import os
import random
import signal
import subprocess
import sys

import pytest

from rt import Subscriber

KILLS = 200
# The parent has imported everything; each publisher is a child of it, a process of its own.
PUBLISHERS = """
import os, sys
from rt import Batching, Fsync, Publisher, WriterSettings

def publish(compression):
    settings = WriterSettings(
        fsync=Fsync.ALWAYS, file_bytes_max=65536, compression=compression)
    with Publisher(sys.argv[1], stream="flights", session="jfk", writer=settings,
                   batching=Batching(frame_bytes=1024, linger_s=0.0002)) as publisher:
        os.write(1, b"%d %d\\n" % (os.getpid(), publisher.next_sequence))
        while True:
            for _ in range(1 + publisher.next_sequence % 7):
                number = publisher.publish(b"%d" % publisher.next_sequence + bytes(200))
            publisher.flush("synced")
            os.write(1, b"%d\\n" % (number + 1))

for line in sys.stdin:
    child = os.fork()
    if child == 0:
        publish(int(line))
    os.write(1, b"dead %d\\n" % os.waitpid(child, 0)[1])
"""


def killed(publishers, compression, chance):
    """Run a publisher and kill it after some flushes; return where it began and what is safe."""
    publishers.stdin.write(b"%d\n" % compression)
    publishers.stdin.flush()
    pid, begin = map(int, publishers.stdout.readline().split())
    safe = begin
    for _ in range(chance.randrange(25)):
        safe = int(publishers.stdout.readline())
    os.kill(pid, signal.SIGKILL)
    while not (line := publishers.stdout.readline()).startswith(b"dead"):
        safe = int(line)
    assert line == b"dead %d\n" % signal.SIGKILL
    return begin, safe


@pytest.mark.faults
@pytest.mark.process
def test_every_flushed_message_survives_200_kills_once_and_in_order(tmp_path):
    """The promise of `flush`, against the most common accident there is."""
    seed = random.randrange(1 << 32)
    chance, root, flushed = random.Random(seed), str(tmp_path), 0
    with subprocess.Popen(
        [sys.executable, "-c", PUBLISHERS, root], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as publishers:
        for life in range(KILLS):
            begin, safe = killed(publishers, life % 3, chance)
            assert begin >= flushed, f"seed {seed}, life {life}: numbers went back before a flush"
            flushed = safe
    with Subscriber(root, stream="flights", session="jfk", follow=False) as subscriber:
        found = [(message.sequence, message.payload) for message in subscriber]
    assert found == [(number, b"%d" % number + bytes(200)) for number in range(len(found))]
    assert len(found) >= flushed > KILLS, f"seed {seed}"
