"""Golden logs: the directories of tests/golden and examples/golden, rebuilt from the same inputs.

`python tests/golden_logs.py` writes them: those of tests/golden only for a new version of the
format, beside the old. Those of examples/golden are for readers in other languages, each with its
messages as lines, as examples/languages/reader.c prints them.
"""

import json
import os
import shutil
import sys
import tempfile
from contextlib import closing, contextmanager
from unittest import mock

from logs import TIME_NS, MergedLog, rows

from rt import DiskLimit, Subscriber
from rt.events import SessionChange
from rt.format.headers import encode_headers
from rt.format.manifest import Archived
from rt.log.files.directory import LogDirectory
from rt.log.files.disk import OsDisk
from rt.log.write.appender import Appender
from rt.log.write.writer import Fsync, SessionWriter, WriterSettings
from rt.position import START

TESTS = os.path.dirname(os.path.abspath(__file__))
HERE = os.path.join(TESTS, "golden")
SHOWN = os.path.join(os.path.dirname(TESTS), "examples", "golden")
FLIGHTS = [b"UA1545 EWR-IAH", b"UA1714 LGA-IAH", b"AA1141 JFK-MIA", b"B6725 JFK-BQN", b"", b"DL461"]
NOT_COMMITTED = {"lock", "sending", "confirmed", "shipping"}


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


def write_torn(root):
    """Write a session whose last frame was half written when the power went."""
    write_session(root)
    directory = os.path.join(root, "flights", "jfk")
    path = os.path.join(directory, "log.1.0")
    os.truncate(path, os.path.getsize(path) - 24)
    with open(os.path.join(directory, "manifest"), "rb+") as file:
        known = file.readlines()
        file.truncate(file.tell() - len(known[-1]))  # that this file has ended was not written yet


def write_group(root):
    """Write a session of a group."""
    settings = WriterSettings(fsync=Fsync.NEVER, compression=0)
    writer = SessionWriter(root, "flights", "jfk-2", settings, group="jfk")
    writer.write([TIME_NS, TIME_NS + 60], FLIGHTS[:2], None)
    writer.close()


def write_dropped(root):
    """Write a session whose first file was dropped; the second begins with a notice of it."""
    settings = WriterSettings(fsync=Fsync.NEVER, file_age_s=1e-9, compression=0)
    limit = DiskLimit(1 << 20, on_full="drop_oldest")
    writer = SessionWriter(root, "flights", "jfk", settings, limit=limit)
    for number in range(3):
        writer.write([TIME_NS + number] * 2, FLIGHTS[2 * number : 2 * number + 2], None)
        writer.sync(30)
    assert writer.dropping.drop(lambda: None)
    writer.close()


def write_archived(root):
    """Write a merged log of two files, of which the first is archived."""
    write_merged(root)
    log = LogDirectory(os.path.join(root, "flights", "out"))
    log.refresh()
    with closing(Appender(OsDisk(), log.path, log.manifest.identity)) as appender:
        appender.recover()
        appender.archive(Archived(START, TIME_NS, "limit"))


def write_events(root):
    """Write a merged log of which a session's opening and closing are a part."""
    with MergedLog(os.path.join(root, "flights", "out")) as log:
        log.note(SessionChange.OPENED, "jfk")
        log.merge("jfk", FLIGHTS[:2])
        log.note(SessionChange.CLOSED, "jfk")
        log.merge("lga", FLIGHTS[3:])


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


def lines(directory):
    """Return the messages of a log as text, a line each."""
    root, stream, name = directory.rsplit("/", 2)
    session = None if name == "out" else name
    settings = {"on_gap": "notify", "on_event": lambda _event: None, "follow": False}
    found = []
    with Subscriber(root, stream=stream, session=session, **settings) as subscriber:
        for each in subscriber:
            number = "-" if session else each.number
            headers = ",".join(f"{n.encode().hex()}={v.hex()}" for n, v in each.headers.items())
            found.append(
                f"{each.position}\t{number}\t{each.session}\t{each.sequence}\t{each.time_ns}\t"
                f"{each.key.hex() or '-'}\t{headers or '-'}\t{each.payload.hex() or '-'}\n"
            )
    return "".join(found)


EXAMPLES = {
    "session": (write_session, "jfk"),
    "packed": (lambda root: write_session(root, level=3), "jfk"),
    "headers": (write_headers, "jfk"),
    "torn": (write_torn, "jfk"),
    "group": (write_group, "jfk-2"),
    "dropped": (write_dropped, "jfk"),
    "merged": (write_merged, "out"),
    "archived": (write_archived, "out"),
    "events": (write_events, "out"),
}
KINDS = {
    "session": (write_session, "jfk"),
    "packed": (lambda root: write_session(root, level=3), "jfk"),
    "merged": (write_merged, None),
    "headers": (write_headers, "jfk"),
}


def write_example(kind, target):
    """Write the log of one of `EXAMPLES` to a directory, without what only its writer needs."""
    write, name = EXAMPLES[kind]
    with tempfile.TemporaryDirectory() as root:
        with fixed():
            write(root)
        shutil.copytree(
            os.path.join(root, "flights", name), target, ignore=lambda _path, _names: NOT_COMMITTED
        )


def main():
    """Write the golden directories and what they hold."""
    for kind, (_, name) in EXAMPLES.items():
        target = os.path.join(SHOWN, kind, "flights", name)
        shutil.rmtree(os.path.join(SHOWN, kind), ignore_errors=True)
        write_example(kind, target)
        with open(os.path.join(SHOWN, f"{kind}.tsv"), "w") as file:
            file.write(lines(target))
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
