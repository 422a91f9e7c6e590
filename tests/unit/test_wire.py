"""The wire: every message comes back as it was, and nothing else comes out of anything."""

import contextlib
import re
import struct
import tracemalloc
from dataclasses import astuple
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from logs import make_frame

from replicator.wire import codec as wire
from replicator.wire.codec import DATA_HEAD_BYTES, encode, put_data_head
from replicator.wire.decoder import Decoder
from replicator.wire.large_messages import LargeMessages
from replicator.wire.messages import (
    CONNECTION,
    PULL,
    PUSH,
    TAIL_BYTES_MAX,
    Ack,
    ArchivedNotice,
    CaughtUpNotice,
    Data,
    HeadersNotice,
    Heartbeat,
    Hello,
    Open,
    Refusal,
    RolledNotice,
    Standing,
    SuccessionNotice,
    TailSpan,
)
from rt.errors import PeerError, Refused
from rt.format import manifest
from rt.position import FILE_BYTES_MAX, START, Position

DOCUMENT = Path(__file__).parents[2] / "docs" / "WIRE.md"

channels = st.integers(0, CONNECTION)
positions = st.builds(
    Position.of,
    st.integers(0, (1 << 19) - 1),
    st.integers(0, (1 << 14) - 1),
    st.integers(0, FILE_BYTES_MAX),
)
files = positions.map(lambda position: position.file)
numbers = st.integers(0, (1 << 63) - 1)
words = st.text(st.characters(exclude_categories=["Cs"]), max_size=60)
payloads = st.binary(min_size=64, max_size=300)
rolled_lines = st.builds(
    manifest.Rolled, files, st.integers(0, FILE_BYTES_MAX), numbers, numbers, numbers, numbers,
    numbers,
)  # fmt: skip


@st.composite
def archived(draw):
    """Return an archived message: both of its lines speak of one file."""
    rolled = draw(rolled_lines)
    return ArchivedNotice(draw(channels), rolled, manifest.Archived(rolled.file, 7, draw(words)))


@st.composite
def standings(draw):
    """Return a standing whose proof fits its end."""
    end = draw(positions)
    lines = rolled_lines.filter(lambda line: line.file + line.end <= end)
    rolled = draw(st.none() | lines) if end.file > 0 else None
    length = draw(st.integers(1, min(TAIL_BYTES_MAX, end.offset))) if end.offset else 0
    spans = (TailSpan(Position(end - length), length),) * draw(st.integers(1, 2)) if length else ()
    if end and not spans and rolled is None:
        end = START
    crc = draw(st.integers(0, (1 << 32) - 1))
    start = draw(st.sampled_from(["", "latest", "last:100", "0.0.4096", "at:1357017420000000000"]))
    return Standing(draw(channels), end, draw(positions), rolled, spans, crc, start)


short = st.text(st.characters(max_codepoint=127), max_size=60)
versions = st.lists(st.integers(0, 65535), min_size=2, max_size=2).map(sorted)
messages = st.one_of(
    st.builds(
        lambda span, direction, stream, software: Hello(*span, direction, stream, software),
        versions, st.sampled_from([PUSH, PULL]), short, short,
    ),
    st.builds(
        Open, channels, st.builds(manifest.LogIdentity, words, words, words, words, numbers)
    ),
    standings(),
    st.builds(RolledNotice, channels, rolled_lines),
    archived(),
    st.builds(CaughtUpNotice, channels, positions),
    st.builds(Ack, channels, positions, positions, positions, positions, positions),
    st.just(Heartbeat()),
    st.builds(Refusal, channels, words, words),
    st.builds(HeadersNotice, words),
    st.builds(SuccessionNotice, words.filter(bool)),
    st.builds(
        lambda channel, file, data: Data(channel, file, memoryview(data)),
        channels, files, payloads,
    ),
)  # fmt: skip


def kept(message):
    """Return the message so that it stays as it is when more is received."""
    if isinstance(message, Data):
        return ("Data", message.channel, message.position, bytes(message.payload))
    if isinstance(message, Standing | Ack):
        return message
    return (type(message).__name__, *astuple(message))


def decoded(*pieces):
    """Feed the pieces to a decoder and return the messages."""
    decoder = Decoder()
    return [kept(message) for piece in pieces for message in decoder.feed(piece)]


@given(st.lists(messages, max_size=8))
def test_each_message_comes_back_as_it_was(sent):
    """What encode promises, the decoder demands; any other pair would lose or invent facts."""
    assert decoded(b"".join(map(encode, sent))) == [kept(message) for message in sent]


@given(st.lists(messages, max_size=4), st.integers(1, 40))
def test_pieces_of_any_length_give_the_same_messages(sent, length):
    """A socket cuts where it likes; one byte at a time is only the worst of it."""
    data = b"".join(map(encode, sent))
    pieces = [data[start : start + length] for start in range(0, len(data), length)]
    assert decoded(*pieces) == decoded(data)
    assert decoded(*(data[place : place + 1] for place in range(len(data)))) == decoded(data)


def demand_canonical(data):
    """Decode bytes; check that what came of them has these bytes and no others, up to an error."""
    decoder, taken = Decoder(), b""
    with contextlib.suppress(PeerError):
        for message in decoder.feed(data):
            taken += encode(message)
    assert data.startswith(taken)


@given(st.binary(max_size=400))
def test_arbitrary_bytes_end_in_messages_or_in_a_peer_error(data):
    """Anyone who reaches the port may send anything; one named error is all that comes of it."""
    demand_canonical(data)


@given(st.integers(1, 10), st.binary(max_size=200))
def test_arbitrary_bodies_of_every_type_end_in_messages_or_in_a_peer_error(kind, body):
    """A right prefix opens the door of one parser; each has to hold by itself."""
    demand_canonical(struct.pack("<IB", len(body), kind) + body)


@given(st.data(), messages)
def test_a_flipped_bit_ends_in_messages_or_in_a_peer_error(data, message):
    """Nearly right input goes deepest into a parser."""
    damaged = bytearray(encode(message))
    place = data.draw(st.integers(0, 8 * len(damaged) - 1))
    damaged[place // 8] ^= 1 << place % 8
    demand_canonical(bytes(damaged))


@pytest.mark.parametrize("kind", [*range(1, 13), 0, 13, 255])
@pytest.mark.parametrize("length", [0, "most", "most + 1", 1 << 31, (1 << 32) - 1])
def test_a_claimed_length_allocates_nothing(kind, length):
    """A length is checked before memory is asked for, and memory follows bytes, not claims."""
    least, most = wire.BODIES.get(kind, wire.NO_BODY)[1:]
    short = {9: [Heartbeat()], 11: [HeadersNotice("")]}  # that may have no body
    claimed = {"most": most, "most + 1": most + 1}.get(length, length)
    tracemalloc.start()
    decoder = Decoder()
    try:
        given = list(decoder.feed(struct.pack("<IB", claimed, kind)))
        assert least <= claimed <= most
        assert given == (short.get(kind, []) if not claimed else [])
    except PeerError:
        assert claimed > most or claimed < least
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()


@pytest.mark.parametrize("place", [3, 4])
@pytest.mark.parametrize("value", [0, 1, 254, 255])
def test_a_length_inside_a_hello_is_held_against_the_body(place, value):
    """The second length field of a message lies as easily as the first."""
    body = bytearray(encode(Hello(1, 1, PUSH, "flights", "rt"))[5:])
    body[5] = value
    frame = struct.pack("<IB", len(body), 1) + body
    if value <= 9:
        assert decoded(frame)
    else:
        with pytest.raises(PeerError):
            decoded(frame)


@pytest.mark.parametrize("value", [4, 255])
def test_a_length_inside_a_refusal_is_held_against_the_body(value):
    """As above; 4 bytes of code and words together are all there is."""
    body = struct.pack("<IB", 0, value) + b"abc"
    with pytest.raises(PeerError, match="contradicts"):
        decoded(struct.pack("<IB", len(body), 10) + body)


def standing_bytes(end, crc=0, spans=(), line=b"", count=None):
    """Return a Standing as a peer may lay it out."""
    body = struct.pack("<IQQIB", 0, end, 0, crc, len(spans) if count is None else count)
    body += b"".join(struct.pack("<QI", *span) for span in spans) + line
    return struct.pack("<IB", len(body), 3) + body


LINE = manifest.encode_entry(manifest.Rolled(START, 128, 0, 2, 1, 1, 7))


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (standing_bytes(8192, spans=[(0, 0)]), "no tail"),
        (standing_bytes(8192, spans=[(0, 4097)]), "no tail"),
        (standing_bytes(8192, spans=[(0, (1 << 32) - 1)]), "no tail"),
        (standing_bytes(8192, spans=[(8191, 2)]), "no tail"),
        (standing_bytes(1 << 31, spans=[((1 << 30) - 8, 16)]), "beyond a file"),
        (standing_bytes(8192, spans=[(8191, 1)] * 3), "3 spans"),
        (standing_bytes(8192, spans=[(8191, 1)], count=2), "2 spans"),
        (standing_bytes(64, line=LINE), "ends after"),
        (standing_bytes(1 << 30, line=LINE + LINE), "1 whole"),
        (standing_bytes(1 << 30, line=LINE[:-1]), "1 whole"),
        (standing_bytes(0, line=b"l" * 65), "1 whole line, or a start"),
        (standing_bytes(0, line=b"\xff"), "UTF-8"),
    ],
)
def test_a_proof_is_small_and_lies_before_the_end(data, words):
    """The source reads those bytes of its own file; a peer does not choose how many, or which."""
    with pytest.raises(PeerError, match=words):
        decoded(data)


@pytest.mark.parametrize("end", [8, 192, 1 << 30, 1 << 44])
def test_a_copy_of_something_proves_something(end):
    """The CRC of no bytes is the same for every log: it once confirmed messages no node had."""
    with pytest.raises(PeerError, match="nothing proves"):
        decoded(standing_bytes(end))
    assert decoded(standing_bytes(0)) == [Standing(0, START)]


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\nHost: node\r\n\r\n",
        b"\x15\x03\x03\x00\x02\x02\x28",  # a TLS alert: handshake failure
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",  # a TLS hello
        b"SSH-2.0-OpenSSH_9.6\r\n",
        bytes(8),
        b"\xff" * 8,
    ],
    ids=["http", "tls alert", "tls hello", "ssh", "zeros", "ones"],
)
def test_another_protocol_is_refused_at_its_first_bytes(data):
    """Port scanners and misdirected clients come every day; they are turned away at once."""
    with pytest.raises(PeerError, match="a message of type"):
        decoded(data)


@pytest.mark.parametrize(
    "message",
    [
        Open(0, manifest.LogIdentity("session", "flights", "jfk", "0" * 32, 1)),
        Data(0, START, memoryview(bytes(64))),
        Heartbeat(),
    ],
    ids=lambda message: type(message).__name__,
)
def test_only_a_hello_or_a_refusal_may_come_first(message):
    """Whatever else a peer sends is refused by its type, before any of its body is stored."""
    decoder = Decoder(greeting=True)
    with pytest.raises(PeerError, match="before a Hello"):
        list(decoder.feed(encode(message)[:5]))
    decoder = Decoder(greeting=True)
    assert len(list(decoder.feed(encode(Hello(1, 2, PUSH, "flights", "rt"))))) == 1
    decoder.greeting = False
    assert len(list(decoder.feed(encode(message)))) == 1


def test_a_hello_has_at_most_256_bytes():
    """It is stored before anything is known of the peer but its certificate."""
    assert wire.HELLO_BYTES_MAX == wire.BODIES[1][2] == 256
    with pytest.raises(PeerError, match="cannot have 257 bytes"):
        decoded(struct.pack("<IB", 257, 1))


MEMORY = 64 << 20


def large_data(size, claimed=None):
    """Return Data that carries one frame of `size` bytes, or whose header claims to."""
    frame = b"".join(make_frame(0, [bytes(size)]).parts)
    data = encode(Data(0, START, memoryview(frame)))
    if claimed is None:
        return data
    return struct.pack("<IB", claimed, 4) + data[5:]


@pytest.mark.parametrize("claimed", [2 << 20, 31 << 20])
def test_a_large_message_begins_with_a_frame_as_large(claimed):
    """A source sends 1 MiB at most, unless one frame has more; anything else is a claim."""
    decoder = Decoder(large=LargeMessages(MEMORY).of("a"))
    with pytest.raises(PeerError, match="begins with a frame of"):
        list(decoder.feed(large_data(100, claimed)[:100]))
    fresh = Decoder(large=LargeMessages(MEMORY).of("a"))
    with pytest.raises(PeerError, match="does not begin with a frame"):
        list(fresh.feed(struct.pack("<IB", claimed, 4) + bytes(100)))


def test_large_messages_share_a_bounded_memory_and_give_it_back():
    """16 connections with an unfinished message of 31 MiB each held 875 MB."""
    memory, message = LargeMessages(5 << 20).of("a"), large_data(2 << 20)
    decoders = [Decoder(large=memory) for _ in range(3)]
    for decoder in decoders[:2]:
        assert not list(decoder.feed(message[:-1]))
    with pytest.raises(Refused, match="too many") as refused:
        list(decoders[2].feed(message[:200]))
    assert refused.value.code == "memory"
    assert len(list(decoders[0].feed(message[-1:]))) == 1
    decoders[0].space()
    decoders[1].close()
    assert len(decoders[1].space()) < 64 << 10, "what refers to an ended connection keeps its bytes"
    late = [Decoder(large=memory) for _ in range(2)]
    assert [len(list(each.feed(message))) for each in late] == [1, 1]


def test_a_large_message_is_accounted_for_though_another_came_right_before_it():
    """A peer that sent one whole message first could hold another of any size unfinished."""
    decoder = Decoder(large=LargeMessages(3 << 20).of("a"))
    with pytest.raises(Refused, match="identity_memory_bytes"):
        list(decoder.feed(large_data(2 << 20) + large_data(4 << 20)[:200]))


def test_a_buffer_that_was_large_is_accounted_for_until_it_is_given_back():
    """One byte of a next message kept 32 MiB, and a smaller message took their place in the sum."""
    messages = LargeMessages(9 << 20)
    decoder = Decoder(large=messages.of("a"))
    small = encode(Data(0, START, memoryview(bytes(512 << 10))))
    assert len(list(decoder.feed(large_data(8 << 20) + small[:100]))) == 1
    assert len(decoder.space()) < 1 << 20
    assert 512 << 10 < messages.held.total() < 2 << 20
    assert len(list(decoder.feed(small[100:]))) == 1
    decoder.space()
    assert messages.held.total()
    decoder.rest()
    assert not messages.held.total()


def test_one_name_leaves_room_for_the_largest_message_of_another():
    """With two connections and 200 bytes one publisher had the large messages of all refused."""
    messages = LargeMessages(MEMORY)
    greedy = [Decoder(large=messages.of("greedy")) for _ in range(3)]
    head = large_data(31 << 20)[:200]
    for decoder in greedy[:2]:
        assert not list(decoder.feed(head))
    with pytest.raises(Refused, match="'greedy'"):
        list(greedy[2].feed(head))
    other = Decoder(large=messages.of("other"))
    assert not list(other.feed(large_data((32 << 20) - 64)[:200]))


def test_messages_that_are_not_large_are_accounted_for_by_name_too():
    """128 connections with an unfinished message of 1 MB each took 270 MB."""
    messages = LargeMessages(4 << 20)
    head = encode(Data(0, START, memoryview(bytes(1_000_000))))[:200]
    greedy = [Decoder(large=messages.of("greedy")) for _ in range(5)]
    for decoder in greedy[:4]:
        assert not list(decoder.feed(head))
    with pytest.raises(Refused, match="identity_memory_bytes"):
        list(greedy[4].feed(head))
    assert not list(Decoder(large=messages.of("other")).feed(head))


@pytest.mark.parametrize(
    "message", [Open(0, manifest.LogIdentity("session", "flights", "jfk", "0" * 32, 1)),
                Data(0, START, memoryview(bytes(64)))], ids=lambda message: type(message).__name__
)  # fmt: skip
def test_what_a_sink_does_not_send_is_refused_by_its_type(message):
    """A subscriber has no reason to send frames: none of their bytes is kept."""
    decoder = Decoder()
    decoder.from_sink = True
    with pytest.raises(PeerError, match="a sink does not send"):
        list(decoder.feed(encode(message)[:5]))
    others = Decoder()
    others.from_sink = True
    assert len(list(others.feed(encode(Heartbeat())))) == 1


def test_bytes_beyond_a_file_are_refused():
    """A position and a length together must not run over into the bits of the roll."""
    position = Position.of(0, 0, FILE_BYTES_MAX - 64)
    with pytest.raises(PeerError, match="beyond a file"):
        decoded(encode(Data(0, position, memoryview(bytes(72)))))
    assert decoded(encode(Data(0, position, memoryview(bytes(64)))))


def test_a_position_with_the_sign_bit_is_refused():
    """Positions are i64 in other languages and in Arrow; a negative one is not a position."""
    body = struct.pack("<IQ", 0, 1 << 63)
    with pytest.raises(PeerError, match="not a position"):
        decoded(struct.pack("<IB", len(body), 7) + body)


def test_the_head_of_data_is_what_encode_makes():
    """The fast path, which copies no payload, gives the same bytes."""
    payload = bytes(range(64))
    buffer = bytearray(DATA_HEAD_BYTES) + payload
    put_data_head(buffer, 3, Position(128), len(payload))
    assert bytes(buffer) == encode(Data(3, Position(128), memoryview(payload)))


def test_the_buffer_gives_its_memory_back_after_a_large_message():
    """One 32 MiB frame a year must not cost 32 MiB a connection for the rest of it."""
    decoder = Decoder()
    large = encode(Data(0, Position(0), memoryview(bytes(8 << 20))))
    assert len(list(decoder.feed(large))) == 1
    assert len(decoder.space()) < 1 << 20


def test_the_text_of_a_refusal_is_cut_between_characters():
    """A long path must not turn a clear sentence into a protocol error at the other side."""
    [refused] = decoded(encode(Refusal(1, "disk", "é" * 2000)))
    assert refused == ("Refusal", 1, "disk", "é" * (wire.WORDS_BYTES_MAX // 2))


def test_the_table_of_the_document_has_the_limits_of_the_code():
    """A limit that is written down wrong is a bug in somebody's implementation."""
    rows = re.findall(r"^\| (\d+) \| \w+ \|.*\| ([\d to]+) \|$", DOCUMENT.read_text(), re.MULTILINE)
    told = {int(kind): [int(each) for each in limits.split(" to ")] for kind, limits in rows}
    known = {kind: wire.BODIES.get(kind, wire.NO_BODY)[1:] for kind in range(256)}
    assert told == {
        kind: sorted({least, most}) for kind, (least, most) in known.items() if least <= most
    }


def test_the_example_of_the_document_is_what_is_sent():
    """The author of another implementation begins with these bytes."""
    text = DOCUMENT.read_text()
    [example] = re.findall(r"```hex\n(.*?)```", text, re.DOTALL)
    data = bytes.fromhex("".join(line.partition("#")[0] for line in example.splitlines()))
    sent = [
        Hello(2, 2, PUSH, "flights", "rt 1.0"),
        Standing(0, Position(192), spans=(TailSpan(Position(64), 64), TailSpan(START, 192)), crc=7),
        CaughtUpNotice(0, Position.of(1, 0, 64)),
        Heartbeat(),
        Refusal(0, "diverged", "the sink ends at 0.0.192, the source at 0.0.128"),
    ]
    assert decoded(data) == [kept(message) for message in sent]
    assert b"".join(map(encode, sent)) == data
