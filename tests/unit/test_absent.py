"""Empty is not an answer: what is not there, was archived, or matches nothing, is said."""

import logging
import os

import pytest
from commands import run
from logs import MergedLog

from rt import (
    GapError,
    Last,
    Misuse,
    NoMatch,
    Publisher,
    Subscriber,
    WriterSettings,
)
from rt.format.manifest import Archived, encode_entry
from rt.format.where import Where
from rt.limits import KIB
from rt.log.files.absent import no_log
from rt.log.files.archived import MERGED
from rt.log.files.directory import LogDirectory
from rt.log.read.follower import Follower, SessionFilter

PLACES = ["missing", "empty", "foreign", "unnamed", "root", "root/flights"]


def publish(root, session="jfk", stream="flights", count=3):
    """Give a session some messages."""
    with Publisher(str(root), stream=stream, session=session) as publisher:
        publisher.publish_many([b"m%d" % number for number in range(count)])


def read(root, **choice):
    """Return all that a reader that does not follow gets."""
    with Subscriber(str(root), follow=False, **choice) as subscriber:
        return [message.payload for message in subscriber]


def archive(directory, reason=MERGED):
    """Archive every rolled file of a log, as its pusher does once the nodes have merged it."""
    log = LogDirectory(str(directory))
    log.refresh()
    for file in log.manifest.order:
        with open(os.path.join(directory, "manifest"), "ab") as manifest:
            manifest.write(encode_entry(Archived(file, 1, reason)))
        with open(log.file_path(file), "r+b") as data:
            data.truncate(0)
    log.close()


def rolled_session(root):
    """Give a session files that are all rolled, and one that was just begun."""
    settings = WriterSettings(file_bytes_max=64 * KIB)
    with Publisher(str(root), stream="flights", session="jfk", writer=settings) as publisher:
        for _ in range(3):
            publisher.publish_many([bytes(1000)] * 100)
    with Publisher(str(root), stream="flights", session="jfk", writer=settings):
        pass  # a new run rolls the last file of the one before


@pytest.mark.parametrize(
    ("choice", "words"),
    [
        ({"root": "nope"}, "nope does not exist"),
        ({"stream": "fligths"}, "did you mean 'flights'?"),
        ({"session": "jfq"}, "the stream has: jfk; did you mean 'jfk'?"),
        ({}, "rt pull"),
        ({}, "the stream has: jfk"),
    ],
)
def test_a_log_that_is_not_there_is_an_error_that_names_what_is(tmp_path, choice, words):
    """A misspelt name gave an empty list, which a job took for a day without messages."""
    publish(tmp_path)
    root = tmp_path / choice.pop("root", "")
    with pytest.raises(Misuse, match="holds no log") as caught:
        read(root, **{"stream": "flights", **choice})
    assert words in str(caught.value)
    assert str(root) in str(caught.value)


def test_a_log_that_exists_and_holds_nothing_is_empty(tmp_path):
    """A stream without a message yet is not a mistake."""
    with Publisher(str(tmp_path), stream="flights", session="jfk"):
        pass
    assert read(tmp_path, stream="flights", session="jfk") == []
    with MergedLog(str(tmp_path / "flights" / "out")):
        assert read(tmp_path, stream="flights") == []


def test_a_reader_that_follows_says_now_and_then_that_there_is_no_log(tmp_path, caplog):
    """The log may be about to be made; a misspelt name would be waited for without a word."""
    now = [100.0]
    follower = Follower(
        LogDirectory(str(tmp_path / "flights" / "out")), "earliest",
        SessionFilter(None, Where.parse(None)), clock=lambda: now[0],
    )  # fmt: skip
    said = []
    for now[0] in (100.0, 101.0, 106.0, 107.0, 500.0):
        assert follower.next() is None
        said.append(len(caplog.records))
    assert said == [0, 0, 1, 1, 2]
    assert "waiting for a log" in caplog.text


@pytest.mark.parametrize("start", ["earliest", Last(3)])
def test_a_session_whose_messages_were_all_merged_and_archived_says_where_they_are(tmp_path, start):
    """The second command of the README, given after the push, printed nothing and exited with 0."""
    rolled_session(tmp_path)
    archive(tmp_path / "flights" / "jfk")
    with Subscriber(
        str(tmp_path), stream="flights", session="jfk", start=start, follow=False
    ) as subscriber:
        with pytest.raises(GapError, match="its messages are in the merged log of the stream"):
            next(iter(subscriber))
        assert list(subscriber) == []  # a gap is reported once
    events = []
    assert read(
        tmp_path, stream="flights", session="jfk", start=start, on_gap="notify",
        on_event=events.append,
    ) == []  # fmt: skip
    assert events[0].reason == MERGED
    assert read(tmp_path, stream="flights", session="jfk", start="latest") == []


def filtered(root, **choice):
    """Return the `NoMatch` events of a reader that does not follow, and its messages."""
    events = []
    got = read(root, stream="flights", on_event=events.append, **choice)
    return got, [event for event in events if isinstance(event, NoMatch)]


@pytest.fixture
def merged(tmp_path):
    """Give a merged log of two sessions."""
    with MergedLog(str(tmp_path / "flights" / "out")) as log:
        log.merge("slow", [b"a", b"b"], keys=True)
        log.merge("fast", [b"c"], keys=True)
        yield log


@pytest.mark.parametrize(
    ("choice", "sessions", "near"),
    [
        ({"sessions": ["sloww"]}, ("sloww",), "slow"),
        ({"sessions": ["slow", "fasst"]}, ("fasst",), "fast"),
        ({"sessions": ["x*"]}, ("x*",), ""),
        ({"where": "session=sloww"}, (), ""),
        ({"key_prefix": b"no such key"}, (), ""),
        ({"sessions": ["slow"]}, None, ""),
        ({"sessions": ["s*"], "key_prefix": b""}, None, ""),
    ],
)
def test_a_filter_that_matches_nothing_is_reported_at_the_end(
    tmp_path, merged, caplog, choice, sessions, near
):
    """A misspelt session looks like a silent one: the reader waited for ever without a word."""
    _, events = filtered(tmp_path, **choice)
    assert [(event.sessions, event.nearest) for event in events] == (
        [] if sessions is None else [(sessions, near)]
    )
    assert ("matches" in caplog.text) is (sessions is not None)
    assert "no such key" not in caplog.text


def test_a_reader_that_follows_reports_a_filter_that_matches_nothing_and_waits(tmp_path, caplog):
    """Its copy may be growing, so it waits for a moment; a new session may be the one meant."""
    now, events = [100.0], []
    with MergedLog(str(tmp_path / "out")) as log:
        log.merge("fast", [b"c"])
        follower = Follower(
            LogDirectory(str(tmp_path / "out")), "earliest",
            SessionFilter(["sloww"], Where.parse(None)), on_event=events.append,
            clock=lambda: now[0],
        )  # fmt: skip

        def looked_at(now_s):
            now[0] = now_s
            assert follower.next() is None
            return [event.nearest for event in events if isinstance(event, NoMatch)]

        assert looked_at(100.0) == []
        assert looked_at(106.0) == looked_at(107.0) == [""]
        log.merge("slow", [b"a"])
        assert looked_at(200.0) == looked_at(300.0) == ["", "slow"]
        follower.close()
    assert [record.levelno for record in caplog.records] == [logging.WARNING] * 2


def test_a_file_or_a_directory_above_logs_is_named_as_such(tmp_path):
    """`rt verify rt-data/flights` should say which logs are below."""
    publish(tmp_path)
    assert "it has the logs jfk" in str(no_log(str(tmp_path / "flights")))
    assert "it is a file" in str(no_log(str(tmp_path / "flights" / "jfk" / "log.0.0")))


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    """Return a directory in which names lead to everything but a log."""
    root = tmp_path_factory.mktemp("places")
    for name in ("empty", "foreign", "unnamed"):
        (root / name).mkdir()
    (root / "foreign" / "notes.txt").write_text("no log")
    (root / "unnamed" / "manifest").touch()
    with Publisher(str(root / "root"), stream="flights", session="jfk") as publisher:
        publisher.publish(b"AA1")
    return root


@pytest.mark.parametrize(
    "place", ["missing", "empty", "foreign", "unnamed", "root", "root/flights"]
)
@pytest.mark.parametrize(
    "command",
    [
        "verify {}", "dump {}", "log-history {}", "index check {}", "index rebuild {}",
        "archive plan --policy {{}} --dir {}", "export parquet {} exported",
        "archive offload stored --dir {}", "restore {} --root restored",
    ],
    ids=lambda command: " ".join(command.split()[:2]),
)  # fmt: skip
def test_no_command_takes_what_is_no_log_for_an_empty_one(places, monkeypatch, command, place):
    """A job with a misspelt directory succeeded with nothing, day after day."""
    monkeypatch.chdir(places)
    done = run(*(each.format(place) for each in command.split()))
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1, done.stderr
    assert place in done.stderr
    if place.startswith("root") and not command.startswith("restore"):
        assert "jfk; name one of them" in done.stderr
