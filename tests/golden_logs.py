"""Golden logs: the directories under tests/golden, rebuilt from the same inputs.

`python tests/golden_logs.py` writes them: only for a new version of the format, beside the old.
"""

import json
import os
import shutil
import sys
from contextlib import contextmanager
from unittest import mock

from logs import TIME_NS, MergedLog, rows

from rt import Subscriber
from rt.format.headers import encode_headers
from rt.log.write.writer import Fsync, SessionWriter, WriterSettings

HERE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "golden")
FLIGHTS = [b"UA1545 EWR-IAH", b"UA1714 LGA-IAH", b"AA1141 JFK-MIA", b"B6725 JFK-BQN", b"", b"DL461"]
NOT_COMMITTED = {"lock"}


@contextmanager
def fixed():
    """Replace the clock and randomness that a log uses with fixed values."""
    with (
        mock.patch("time.time_ns", return_value=TIME_NS),
        mock.patch("secrets.token_hex", lambda count: "0f" * count),
    ):
        yield


def write_session(root, *, level=0):
    """Write a session of two runs: the first of two rolls, the second with keys and a jump."""
    settings = WriterSettings(fsync=Fsync.NEVER, file_age_s=1e-9, compression=level)
    writer = SessionWriter(root, "flights", "jfk", settings)
    writer.write([TIME_NS, TIME_NS + 60], FLIGHTS[:2], None)
    writer.sync(30)
    writer.write([TIME_NS + 120], FLIGHTS[2:3], None)
    writer.close()
    settings = WriterSettings(fsync=Fsync.NEVER, compression=level)
    writer = SessionWriter(root, "flights", "jfk", settings)
    writer.write([TIME_NS + 180, TIME_NS + 180], FLIGHTS[3:5], [b"B6725", b""])
    writer.sync(30)
    writer.next_sequence = 10
    writer.write([TIME_NS - 1] * 40, [FLIGHTS[5]] * 40, [b"DL461"] * 40)
    writer.close()


def write_headers(root):
    """Write a session with headers: with and without keys, compressed or not, and without any."""
    settings = WriterSettings(fsync=Fsync.NEVER, compression=0)
    writer = SessionWriter(root, "flights", "jfk", settings)
    some = encode_headers({"content-type": b"text/plain", "empty": b"", "\u00fc": b"\xff\x00"})
    writer.write([TIME_NS] * 3, FLIGHTS[:3], None, [some, b"", encode_headers({"a": b"1"})])
    writer.sync(30)
    writer.write([TIME_NS] * 2, FLIGHTS[3:5], [b"B6725", b""], [b"", some])
    writer.write([TIME_NS], FLIGHTS[5:], None)
    many = encode_headers({f"h{number:02}": b"x" * number for number in range(64)})
    writer.write([TIME_NS], [b"many"], [b"k"], [many])
    writer.close()


def write_merged(root):
    """Write a merged log of two files, with two sessions, keys and repeats."""
    with MergedLog(os.path.join(root, "flights", "out")) as log:
        log.merge("jfk", FLIGHTS[:2], FLIGHTS[2:3])
        log.merge("lga", FLIGHTS[3:], keys=True)
        log.roll()
        log.merge("jfk", FLIGHTS[:3], FLIGHTS[3:5], keys=True, skip=4)


def contents(root):
    """Return every file under `root` that is committed, by its path."""
    found = {}
    for directory, _, names in os.walk(root):
        for name in set(names) - NOT_COMMITTED:
            path = os.path.join(directory, name)
            with open(path, "rb") as file:
                found[os.path.relpath(path, root)] = file.read()
    return found


def read(root, session):
    """Return the messages of a log as values that JSON can hold."""
    with Subscriber(root, stream="flights", session=session, follow=False) as subscriber:
        messages = list(subscriber)
    return [
        [str(message.position), *(
            each.decode() if isinstance(each, bytes) else each for each in row
        ), *(
            [{name: value.hex() for name, value in message.headers.items()}]
            if message.headers else []
        )]
        for message, row in zip(messages, rows(messages), strict=True)
    ]  # fmt: skip


KINDS = {
    "session": (write_session, "jfk"),
    "packed": (lambda root: write_session(root, level=3), "jfk"),
    "merged": (write_merged, None),
    "headers": (write_headers, "jfk"),
}


def main():
    """Write the golden directories and what they hold."""
    for kind, (write, session) in KINDS.items():
        root = os.path.join(HERE, "1", kind)
        shutil.rmtree(root, ignore_errors=True)
        with fixed():
            write(root)
        with open(os.path.join(HERE, "1", f"{kind}.json"), "w") as file:
            rows_of = ",\n".join(json.dumps(row) for row in read(root, session))
            file.write(f"[\n{rows_of}\n]\n")
        for directory, _, names in os.walk(root):
            for name in NOT_COMMITTED.intersection(names):
                os.remove(os.path.join(directory, name))


if __name__ == "__main__":
    sys.exit(main())
