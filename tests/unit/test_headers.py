"""Headers: written once all nodes can read them, and given out wherever a message is."""

import json
import pickle

import pytest

import rt
from replicator.push.headers_news import HeadersNews
from rt.client.groups.group import DeadLetter
from rt.errors import NO_HEADERS, Misuse, Refused
from rt.format.json_line import json_line
from rt.inspect.dump import frame_line
from rt.log.notify.headers_note import HeadersNote
from rt.log.write.batcher import Batching
from rt.log.write.writer import WriterSettings
from rt.position import START
from rt.publisher import Publisher
from rt.subscriber import Subscriber
from tests.commands import run

STREAM = "flights"
SOME = {"content-type": b"text/csv", "trace": b"\x00\xff"}


def messages_of(root, session="jfk", **settings):
    """Return the messages of a session's own log."""
    with Subscriber(root, stream=STREAM, session=session, follow=False, **settings) as reader:
        return list(reader)


def a_publisher(root, session="jfk", **settings):
    """Open a session."""
    return Publisher(root, stream=STREAM, session=session, **settings)


# What is published is what is read


@pytest.mark.parametrize("linger_s", [0.0, 60.0])
def test_messages_with_and_without_headers_share_a_session(tmp_path, linger_s):
    """A program adds them where it has any; its other messages stay as they were."""
    with a_publisher(tmp_path, batching=Batching(linger_s=linger_s)) as publisher:
        publisher.publish(b"0")
        publisher.publish(b"1", headers=SOME)
        publisher.publish(b"2", b"key", headers={})
        publisher.publish(b"3", headers={"a": bytearray(b"x")}, time_ns=7)
        publisher.publish_many([b"4", b"5"], headers=[None, SOME])
        publisher.publish_many([b"6"], [b"key"], headers=[SOME])
        publisher.publish_many([b"7", b"8"], headers=[None, {}])
    found = messages_of(tmp_path)
    assert [message.headers for message in found] == [
        {}, SOME, {}, {"a": b"x"}, {}, SOME, SOME, {}, {},
    ]  # fmt: skip
    assert [message.payload for message in found] == [b"%d" % each for each in range(9)]
    assert [message.key for message in found if message.key] == [b"key", b"key"]
    assert found[3].time_ns == 7
    assert pickle.loads(pickle.dumps(found)) == found


def test_frames_without_headers_have_no_column(tmp_path):
    """They cost nothing to who does not use them, and an older version reads them."""
    with a_publisher(tmp_path) as publisher:
        publisher.publish(b"0", headers={})
        publisher.publish_many([b"1", b"2"], headers=[{}, None])
    shown = run("dump", "--json", f"{tmp_path}/{STREAM}/jfk")
    frames = list(map(json.loads, shown.output.splitlines()))
    assert [frame["headers"] for frame in frames] == [False] * len(frames)
    assert "headers" not in frame_line(frames[0])


def test_a_mistake_in_headers_takes_nothing(tmp_path):
    """One clear error, and the numbers go on."""
    with a_publisher(tmp_path) as publisher:
        with pytest.raises(Misuse, match="header 'a' is bytes, not str"):
            publisher.publish(b"0", headers={"a": "text"})
        with pytest.raises(Misuse, match="as many keys, times and headers as payloads"):
            publisher.publish_many([b"0", b"1"], headers=[SOME])
        with pytest.raises(Misuse, match="a mapping of names to bytes, not list"):
            publisher.publish_many([b"0"], headers=[["a"]])
        assert publisher.publish(b"0") == 0


def test_headers_count_towards_the_size_of_a_message(tmp_path):
    """What is larger than a frame may be would be refused by every node."""
    with a_publisher(tmp_path, batching=Batching(message_bytes_max=20)) as publisher:
        assert publisher.publish(b"0123456789", headers={"a": b"123456"}) == 0
        with pytest.raises(Misuse, match="a message of 21 bytes is larger than the limit of 20"):
            publisher.publish(b"0123456789", headers={"a": b"1234567"})


@pytest.mark.parametrize(
    ("term", "found"),
    [
        ("header.a=x1", [1]),
        ("header.a=x*", [1, 2]),
        ("header.a!=x1", [2, 4]),
        ("header.b.c=", [3]),
        ("header.none=x", []),
    ],
)
def test_messages_are_selected_by_their_headers(tmp_path, term, found):
    """A reader of one content type decodes no other payload; who lacks a header does not match."""
    with a_publisher(tmp_path) as publisher:
        headers = [None, {"a": b"x1"}, {"a": b"x2"}, {"b.c": b""}, {"a": b"\xff"}]
        publisher.publish_many([b""] * 5, headers=headers)
        publisher.publish(b"none has any")
    assert [message.sequence for message in messages_of(tmp_path, where=term)] == found


def test_headers_are_shown_as_json_and_by_dump(tmp_path):
    """What cannot be text is said to be base64, under a name of its own."""
    with a_publisher(tmp_path) as publisher:
        publisher.publish(b"1", headers={**SOME, "x\n": b"\x1b"})
    [message] = messages_of(tmp_path)
    fields = json.loads(json_line(message))
    assert fields["headers"] == {"content-type": "text/csv", "x\n": "\x1b"}
    assert fields["headers_base64"] == {"trace": "AP8="}
    assert b"\x1b" not in json_line(message)
    shown = run("dump", f"{tmp_path}/{STREAM}/jfk").output
    assert "content-type=text/csv, 'x\\n'='\\x1b', trace=base64:AP8=" in shown


def test_the_command_gives_each_line_the_headers_it_was_given(tmp_path):
    """A shell publishes for a program that looks at the content type."""
    told = ["--header", "content-type=text/csv", "--header", "empty="]
    arguments = ["publish", "--root", str(tmp_path), "--stream", STREAM, "--session", "jfk"]
    lines = tmp_path / "lines.txt"
    lines.write_text("a\nb\n")
    assert run(*arguments, *told, str(lines)).exit_code == 0
    headers = {"content-type": b"text/csv", "empty": b""}
    assert [message.headers for message in messages_of(tmp_path)] == [headers] * 2
    wrong = run(*arguments, "--header", "content-type", str(lines))
    assert "write NAME=VALUE" in wrong.output
    assert wrong.exit_code == 2


def test_a_dead_letter_keeps_headers_and_an_older_one_is_read():
    """The trace of a message that failed is what its operator looks for."""
    letter = DeadLetter("etl", START, "jfk", 7, b"AA1", 5, "rejected", b"AA1 late", SOME)
    assert DeadLetter.parse(letter.encode()) == letter
    without = letter._replace(headers=None)
    assert DeadLetter.parse(without.encode()) == without
    assert b"headers" not in without.encode(), "an older version reads it"


@pytest.mark.parametrize("compression", [0, 3])
def test_arrow_has_headers_as_maps(tmp_path, compression):
    """What is filtered and joined in a table is filtered there by its headers too."""
    pytest.importorskip("pyarrow")
    with a_publisher(tmp_path, writer=WriterSettings(compression=compression)) as publisher:
        publisher.publish_many([b"0", b"1"], headers=[SOME, None])
        publisher.publish(b"2", b"key")
        publisher.publish_many([b"3", b"4"], [b"k", b""], headers=[None, {"a": b""}])
    columns = ["payload", "key", "headers"]
    rows = rt.read_arrow(f"{tmp_path}/{STREAM}/jfk", columns=columns).read_all().to_pylist()
    assert [dict(row["headers"]) for row in rows] == [SOME, {}, {}, {}, {"a": b""}]
    assert [row["key"] for row in rows] == [None, None, b"key", b"k", None]
    with Subscriber(tmp_path, stream=STREAM, session="jfk", follow=False) as reader:
        batches = [batch.to_arrow() for batch in reader.batches()]
    shown = [dict(each) for batch in batches for each in batch.column("headers").to_pylist()]
    assert shown == [SOME, {}, {}, {}, {"a": b""}]


def test_one_yes_of_any_node_is_noted_and_stays(tmp_path):
    """It is what all have agreed on; a node that was restarted may not know it yet."""
    note = HeadersNote(str(tmp_path))
    news = HeadersNews(str(tmp_path))
    news.record("n1", "n3 is old")
    news.record("n2", "n3 is old")
    assert note.read() == "n3 is old"
    news.record("n2", "")
    assert note.read() == ""
    news.record("n1", "n2 is old")
    assert note.read() == ""


def test_a_no_of_an_earlier_run_is_forgotten_and_a_yes_is_not(tmp_path):
    """All nodes may have been updated while nothing was shipped."""
    note = HeadersNote(str(tmp_path))
    for said, left in (("n3 is old", None), ("", "")):
        assert note.write(said)
        HeadersNews(str(tmp_path)).begin()
        assert note.read() == left


def test_a_note_waits_for_the_stream_to_have_a_directory(tmp_path):
    """A pusher may run before the first publisher does, and must not make the directory."""
    news = HeadersNews(str(tmp_path / STREAM))
    news.record("n1", "")
    assert not (tmp_path / STREAM).exists()
    (tmp_path / STREAM).mkdir()
    news.save()
    assert HeadersNote(str(tmp_path / STREAM)).read() == ""


def test_a_publisher_raises_what_the_nodes_say_and_takes_nothing(tmp_path):
    """The sentence says what to update; the session is not blocked by a message it cannot ship."""
    with a_publisher(tmp_path) as publisher:
        HeadersNote(str(tmp_path / STREAM)).write("node n3 runs rt 0.9")
        for publish in (
            lambda: publisher.publish(b"", headers=SOME),
            lambda: publisher.publish_many([b""], headers=[SOME]),
        ):
            with pytest.raises(Refused, match="node n3 runs") as caught:
                publish()
            assert caught.value.code == NO_HEADERS
        assert publisher.publish(b"", headers={}) == 0
        HeadersNote(str(tmp_path / STREAM)).write("")
        assert publisher.publish(b"", headers=SOME) == 1


def test_a_note_that_is_something_else_says_nothing(tmp_path):
    """It may be cut by a full disk, and another program may write there."""
    note = HeadersNote(str(tmp_path))
    assert note.read() is None
    for text in (b"", b"ye", b"\xff\x00", b"\x00" * 9000):
        (tmp_path / ".headers").write_bytes(text)
        assert note.read() is None
    note.write("a\nb" * 9000)
    assert note.read().startswith("a\\x0ab")
