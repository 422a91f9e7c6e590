"""The gateway's streams: what each message of the merged log makes of them."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rt.errors import Misuse
from rt.format.message import Message, Origin
from rt.gateway import requests
from rt.gateway.model import (
    HEADER,
    PRODUCERS_MAX,
    Producer,
    StreamChange,
    apply,
    change_of,
)
from rt.gateway.store import StreamStore
from rt.position import START, Position

PLAIN = StreamChange("create", "text/plain", has_data=False)


def message(change, payload=b"x", at=0):
    """A message of the merged log."""
    headers = change.encode() if isinstance(change, StreamChange) else change
    return Message(payload, b"gates", 0, 0, 0, at, Origin("http", 0, headers))


def stream_after(*changes):
    """The stream after these changes, and the last verdict."""
    stream, verdict = None, None
    for at, change in enumerate(changes, 1):
        stream, verdict = apply(stream, change, Position(at))
    return stream, verdict


def append(epoch=0, seq=0, **fields):
    """An append of the producer p."""
    return StreamChange("append", "text/plain", Producer("p", epoch, seq), **fields)


def test_a_change_survives_its_headers():
    """Every gateway has to read what another has published."""
    change = StreamChange(
        "append", "text/plain", Producer("p", 1, 2), "s", closes=True, part=3, last=False
    )
    assert change_of(message(change)) == change
    assert json.loads(PLAIN.encode()[HEADER]) == {
        "do": "create", "type": "text/plain", "has_data": False,
    }  # fmt: skip


def test_a_message_of_another_program_is_an_append():
    """Programs that know nothing of gateways publish to the same streams, by key."""
    assert change_of(message({})) == StreamChange("append")


@pytest.mark.parametrize(
    "values",
    [
        [], 7, {}, {"do": "burn"}, {"do": "append", "part": "1"}, {"do": "append", "part": True},
        {"do": "append", "producer": ["p", 0]}, {"do": "append", "producer": ["p", -1, 0]},
        {"do": "append", "producer": ["p", 0, 2**60]}, {"do": "append", "producer": [["p"], 0, 0]},
        {"do": "create", "type": "text/plain\r\nX: y"}, {"do": "create", "expires": "tomorrow"},
        {"do": "append", "closes": 1}, {"do": "append", "seq": "x" * 300},
        {"do": "create", "expires": "2030-01-31\ufb0512:00:00Z"}, {"do": "delete", "ended": "1"},
        {"do": "create", "maker": 7},
    ],
)  # fmt: skip
def test_what_no_gateway_writes_changes_nothing(values):
    """Any publisher of the stream may write such a header."""
    assert change_of(message({HEADER: json.dumps(values).encode()})) is None


@given(st.binary(max_size=80))
def test_no_header_raises(data):
    """It would end the gateway, and again after each restart."""
    change = change_of(message({HEADER: data}))
    assert change is None or isinstance(change, StreamChange)


def test_a_repeated_append_is_not_a_second_one():
    """The client did not hear the first answer."""
    stream, verdict = stream_after(PLAIN, append(), append())
    assert (verdict.status, verdict.is_new, stream.tail) == (204, False, 3)
    stream, verdict = stream_after(PLAIN, append(), append(seq=1), append(seq=0))
    assert (verdict.status, verdict.seq) == (204, 1)


@pytest.mark.parametrize(
    ("last", "status", "seq", "epoch"),
    [
        (append(seq=2), 409, 1, 0),
        (append(epoch=1, seq=1), 400, -1, -1),
        (append(epoch=1), 200, 0, 1),
        (replace(append(seq=1), type="text/html"), 409, -1, -1),
    ],
)
def test_an_append_that_does_not_follow_is_refused(last, status, seq, epoch):
    """A gap would be a message that is missing for ever."""
    _, verdict = stream_after(PLAIN, append(), last)
    assert (verdict.status, verdict.seq, verdict.epoch) == (status, seq, epoch)


def test_an_older_epoch_is_refused():
    """A program that was replaced must not go on."""
    _, verdict = stream_after(PLAIN, append(epoch=2), append(epoch=1))
    assert (verdict.status, verdict.epoch) == (403, 2)


def test_a_batch_that_was_cut_off_goes_on_where_it_ended():
    """A gateway may be killed between two frames of one append."""
    parts = [append(part=number, last=number == 2) for number in range(3)]
    stream, _ = stream_after(PLAIN, parts[0], parts[1])
    news = []
    for at, part in enumerate(parts, 10):
        stream, verdict = apply(stream, part, Position(at))
        news.append(verdict.is_new)
    assert news == [False, False, True]
    assert stream.heard["p"].next == (1, 0)


def test_the_append_that_closed_a_stream_may_be_repeated():
    """Any other is refused, and says that the stream is closed."""
    closing = append(closes=True)
    stream, verdict = stream_after(PLAIN, closing, closing)
    assert (verdict.status, stream.is_closed) == (204, True)
    _, verdict = stream_after(PLAIN, closing, append(seq=1))
    assert verdict.status == 409
    close = StreamChange("append", closes=True, has_data=False)
    assert stream_after(PLAIN, close, close)[1].status == 204


def test_an_array_whose_sequence_is_old_is_refused_as_a_whole():
    """Its first message is; the others must not be taken without it."""
    parts = [
        StreamChange("append", "text/plain", seq="5", part=number, last=number == 1)
        for number in range(2)
    ]
    stream, verdict = stream_after(PLAIN, *parts)
    assert (verdict.status, stream.tail) == (204, 4)
    for part in parts:
        stream, verdict = apply(stream, part, Position(9))
        assert (verdict.status, verdict.is_new) == (409, False)


def test_what_comes_with_a_creation_is_there_once():
    """A second gateway, or a request that was repeated, publishes it again."""
    made = replace(PLAIN, closes=True, last=False, maker="m")
    parts = [
        StreamChange("append", "text/plain", maker="m", part=n, last=n == 1, closes=True)
        for n in range(2)
    ]
    whole = stream_after(made, *parts)[0]
    stream, _ = stream_after(made, parts[0])
    other = replace(PLAIN, last=False, maker="other")
    again = [made, *parts, other, replace(parts[0], maker="other", closes=False)]
    verdicts = []
    for at, change in enumerate(again, 10):
        stream, verdict = apply(stream, change, Position(at))
        verdicts.append((verdict.status, verdict.is_new))
    assert verdicts[:3] == [(200, False), (200, False), (204, True)]
    assert not any(is_new for _, is_new in verdicts[3:])
    assert (stream.is_closed, stream.made) == (whole.is_closed, whole.made) == (True, 2)


def test_a_stream_that_was_appended_to_does_not_expire():
    """Another gateway has published the deletion before it saw the append."""
    stream, _ = stream_after(PLAIN, append())
    expiry = StreamChange("delete", has_data=False, ended=2)
    assert apply(stream, expiry, Position(9)).stream is stream
    assert apply(stream, replace(expiry, ended=3), Position(9)).stream is None


def test_producers_of_one_stream_are_bounded():
    """Clients choose their names."""
    stream = stream_after(PLAIN)[0]
    for number in range(PRODUCERS_MAX + 5):
        who = Producer(str(number), 0, 0)
        stream, _ = apply(stream, StreamChange("append", "text/plain", who), Position(number + 2))
    assert len(stream.heard) == PRODUCERS_MAX
    assert "4" not in stream.heard
    assert "5" in stream.heard


def test_a_store_goes_on_where_it_was_written(tmp_path):
    """What comes after the position is executed again, and comes to the same."""
    path = str(tmp_path / "store")
    with_stream = StreamStore(path, "log")
    with_stream.execute("gates", PLAIN, b"", Position(1))
    with_stream.execute("gates", append(), b"x", Position(2))
    with_stream.commit(Position(3))
    with_stream.execute("gates", append(seq=1), b"y", Position(3))
    before = with_stream.get("gates")
    with_stream.close()
    again = StreamStore(path, "log")
    assert again.position == 3
    assert again.execute("gates", append(seq=1), b"y", Position(3)).is_new
    assert again.get("gates") == before
    assert again.execute("gates", append(), b"x", Position(4)).status == 204
    assert again.refused(START, Position(9)) == {4}
    again.commit(Position(5))
    assert again.refused(START, Position(9)) == {4}
    again.close()


def test_a_store_of_another_log_begins_again(tmp_path):
    """A copy that was made again has other positions."""
    path = str(tmp_path / "store")
    first = StreamStore(path, "log")
    first.execute("gates", PLAIN, b"", Position(1))
    first.commit(Position(2))
    first.close()
    other = StreamStore(path, "other")
    assert (other.position, other.get("gates")) == (START, None)
    other.close()


def test_a_file_that_is_no_store_is_named(tmp_path):
    """It can be deleted, and is made from the log again."""
    path = tmp_path / "store"
    path.write_bytes(b"no database, " * 100)
    with pytest.raises(Misuse, match="delete it"):
        StreamStore(str(path), "log")


def test_a_message_that_is_not_json_is_no_part_of_a_stream_of_json(tmp_path):
    """One message of another program would make the whole stream unreadable."""
    store = StreamStore(str(tmp_path / "store"), "log")
    store.execute("gates", replace(PLAIN, type="application/json"), b"", Position(1))
    assert not store.execute("gates", StreamChange("append"), b"{", Position(2)).is_new
    assert store.execute("gates", StreamChange("append"), b"{}", Position(3)).is_new
    assert store.refused(START, Position(9)) == {2}
    store.close()


@pytest.mark.parametrize(
    ("body", "found"),
    [
        (b'{"a": 1.0}', [b'{"a": 1.0}']),
        (b' [ {"a":1e400} , [1, 2],"\\ud800" ] ', [b'{"a":1e400}', b"[1, 2]", b'"\\ud800"']),
        (b"[[]]", [b"[]"]),
        (b"null", [b"null"]),
        (b"[" + b"1" * 5000 + b"]", [b"1" * 5000]),
    ],
)
def test_the_elements_of_an_array_are_kept_as_they_are_written(body, found):
    """Decoding and encoding again would lose digits."""
    assert requests.messages_of("application/json", body) == found


@pytest.mark.parametrize(
    "body", [b"{", b"[]", b"NaN", b"\xff", b"[1,]", b"[" * 100_000, b"[" + b"1," * 10_000 + b"1]"]
)
def test_what_is_no_message_is_refused(body):
    """Every reader of the stream would fail; of too many, each would be a message."""
    with pytest.raises(Misuse):
        requests.messages_of("application/json; charset=utf-8", body)
