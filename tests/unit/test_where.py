"""Where: conditions on session, key and JSON fields select the same messages as plain Python."""

import json
import threading
from itertools import product

import pytest
from commands import run
from hypothesis import given
from hypothesis import strategies as st
from logs import make_frame

from rt import Misuse, Publisher, Subscriber
from rt.format.message import Batch
from rt.format.where import Where
from rt.position import START

FLIGHTS = [
    (b"AA1", b'{"carrier": "AA", "delay": 12, "flight": {"number": 1}}'),
    (b"AA2", b'{"carrier": "AA", "delay": -3.5, "flight": {"number": 2}}'),
    (b"B6", b'{"carrier": "B6", "delay": null, "late": true}'),
    (b"", b"not JSON"),
    (b"DL", b'["carrier", "AA"]'),
    (b"\xff1", b'{"c\\u0061rrier": "A\\u0041", "delay": 30}'),
    (b"ZZ", '{"carrier": "Zürich", "delay": "30"}'.encode()),
    (b"XX", b'{"carrier": "AA", "delay": NaN}'),
]


def batch(messages=FLIGHTS, level=0):
    """Return one frame with these keys and payloads."""
    keys, payloads = [key for key, _ in messages], [payload for _, payload in messages]
    frame = make_frame(0, payloads, keys=keys, level=level)
    return Batch(frame.header, memoryview(frame.parts[1]), START, "jfk", None, 0, 0)


def keys(*terms, level=0, key_prefix=b""):
    """The keys of the flights that match."""
    where = Where.parse(terms, key_prefix)
    return [message.key for message in where.messages(batch(level=level))]


@pytest.mark.parametrize("level", [0, 3])
@pytest.mark.parametrize(
    ("terms", "found"),
    [
        ([], [key for key, _ in FLIGHTS]),
        ([".carrier=AA"], [b"AA1", b"AA2", b"\xff1"]),
        ([".carrier!=AA"], [b"B6", b"ZZ"]),
        ([".delay>=12"], [b"AA1", b"\xff1"]),
        ([".delay<0"], [b"AA2"]),
        ([".delay=12.0"], [b"AA1"]),
        ([".delay=null"], [b"B6"]),
        (['.delay="30"'], [b"ZZ"]),
        ([".delay=30"], [b"\xff1"]),
        ([".delay>20", ".carrier=AA"], [b"\xff1"]),
        ([".late=true"], [b"B6"]),
        ([".late!=false"], [b"B6"]),
        ([".late=1"], []),
        ([".flight.number=2"], [b"AA2"]),
        ([".flight!=1"], [b"AA1", b"AA2"]),
        ([".carrier=Zürich"], [b"ZZ"]),
        ([".carrier>AA"], [b"B6", b"ZZ"]),
        ([" key = AA* ", ".delay>0"], [b"AA1"]),
        (["key=AA1"], [b"AA1"]),
        (["key=AA"], []),
        (["key!=*"], []),
        (["key!=AA*", "key!="], [b"B6", b"DL", b"\xff1", b"ZZ", b"XX"]),
        (["key=\udcff*"], [b"\xff1"]),
        ([".nothing!=1"], []),
    ],
)
def test_terms_select_what_plain_python_would(terms, found, level):
    """Of compressed frames too; a name or text may be spelled with escapes in the payload."""
    assert keys(*terms, level=level) == found


def test_a_key_prefix_holds_beside_the_terms():
    """`key_prefix` is one term more."""
    assert keys(".delay>0", key_prefix=b"AA") == [b"AA1"]


def test_sessions_are_selected_by_globs_and_by_what_they_are_not():
    """All terms hold."""
    where = Where.parse(["session=eu-*", "session!=eu-test*"])
    names = ["eu-1", "eu-test", "eu-test-2", "us-1", "eu-"]
    assert [name for name in names if where.wants_session(name)] == ["eu-1", "eu-"]


@pytest.mark.parametrize(
    ("term", "words"),
    [
        ("carrier=AA", r"not a condition: 'carrier=AA'; write NAME OPERATOR VALUE"),
        (".=1", "write NAME OPERATOR VALUE"),
        ("", "write NAME OPERATOR VALUE"),
        (7, "not a condition: '7'"),
        ("session>jfk", "session, key and headers are compared by = or !="),
        ("session=JFK", "upper-case"),
        (".late<true", "true is compared by = or !="),
        (".late=", 'give a value, or "" for an empty text'),
        ("key=\ud800", "is not UTF-8"),
    ],
)
def test_a_term_that_is_not_understood_is_quoted(term, words):
    """One sentence, with the form that is."""
    with pytest.raises(Misuse, match=words):
        Where.parse([term])


def test_too_many_terms_are_refused():
    """Each costs something for every message."""
    with pytest.raises(Misuse, match="65 terms; use 64 at most"):
        Where.parse(["key!=a"] * 65)


def test_shares_divide_all_keys_and_keep_each_in_one():
    """Four workers handle everything, once, and each key in order."""
    flights = [(b"%s%d" % (name, number % 7), b"%d" % number) for number in range(200)
               for name in (b"AA", b"B6", b"")]  # fmt: skip
    shares = [
        list(Where.parse(None, share=f"{member}/4").messages(batch(flights)))
        for member in (1, 2, 3, 4)
    ]
    every = [message for share in shares for message in share]
    assert sorted(message.number for message in every) == list(range(len(flights)))
    keys_of = [{message.key for message in share} for share in shares]
    assert all(not keys_of[a] & keys_of[b] for a in range(4) for b in range(a))
    for share in shares:
        assert [message.number for message in share] == sorted(message.number for message in share)
    assert min(map(len, shares)) > 0


def test_the_share_of_a_key_never_changes():
    """Readers of any version and machine must agree; no key counts as an empty one."""
    share_of = {
        key: next(n for n in range(1, 9) if Where.parse(None, share=f"{n}/8").wanted(one(key))[0])
        for key in (b"", b"AA1", b"AA2", b"\xff")
    }
    assert share_of == {b"": 1, b"AA1": 4, b"AA2": 2, b"\xff": 1}
    plain = Batch(make_frame(0, [b"x"]).header, memoryview(b""), START, "jfk", None, 0, 0)
    assert Where.parse(None, share="1/8").wanted(plain) == [True]


def one(key):
    """A batch of one message."""
    return batch([(key, b"x")])


@pytest.mark.parametrize("share", ["0/4", "5/4", "4", "1/0", "1/2000", "a/b", "-1/4"])
def test_an_impossible_share_is_refused(share):
    """Nine of ten readers would otherwise wait for messages that none gets."""
    with pytest.raises(Misuse, match=r"not a share: .*; 2/4 is the second of 4"):
        Where.parse(None, share=share)


SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(-9, 9), st.sampled_from(["a", "\\", 'q"', "é", "\ud800"])
)
OPERATORS = {
    "=": lambda a, b: a == b, "!=": lambda a, b: a != b, "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b, ">": lambda a, b: a > b, ">=": lambda a, b: a >= b,
}  # fmt: skip


def kind(value):
    """Numbers are one type in JSON, and true is no number."""
    return "number" if type(value) is int else type(value)


@given(
    st.lists(st.dictionaries(st.sampled_from("xyé"), SCALARS), min_size=1, max_size=6),
    st.sampled_from("xyé"), st.sampled_from(list(OPERATORS)), SCALARS, st.booleans(),
)  # fmt: skip
def test_looking_before_decoding_changes_nothing(objects, name, sign, value, ascii_only):
    """The search for bytes may only leave out what decoding would leave out too."""
    if sign not in ("=", "!=") and kind(value) not in ("number", str):
        return
    payloads = [json.dumps(o, ensure_ascii=ascii_only).encode(errors="replace") for o in objects]
    where = Where.parse(f".{name}{sign}{json.dumps(value)}")
    found = [m.number for m in where.messages(batch([(b"", each) for each in payloads]))]
    expected = []
    for place, each in enumerate(payloads):
        payload = json.loads(each)
        if name not in payload:
            continue
        if kind(payload[name]) == kind(value):
            if OPERATORS[sign](payload[name], value):
                expected.append(place)
        elif sign == "!=":
            expected.append(place)
    assert found == expected


@pytest.mark.parametrize("payload", [b"[" * 100_000, b'{"x": ' + b"9" * 5000 + b"}", b"\xff{}"])
def test_a_hostile_payload_does_not_match_and_does_no_harm(payload):
    """Nested too deeply, a number too long, not UTF-8."""
    where = Where.parse(".x!=0")
    assert list(where.messages(batch([(b"", payload + b'\\"x"')]))) == []


@pytest.fixture
def published(tmp_path):
    """Two sessions' logs."""
    for session, carrier in (("jfk", "AA"), ("lga", "B6")):
        with Publisher(tmp_path, stream="flights", session=session) as publisher:
            for number, late in product(range(4), (0, 40)):
                publisher.publish(
                    json.dumps({"carrier": carrier, "n": number, "delay": late}).encode(),
                    key=b"%s%d" % (carrier.encode(), number),
                )
    return tmp_path


def test_a_subscriber_resumes_between_the_messages_that_match(published):
    """`position` counts what was passed over."""
    options = {"stream": "flights", "session": "jfk", "follow": False, "where": ".delay>=30"}
    with Subscriber(published, **options) as subscriber:
        first = next(iter(subscriber))
        position = subscriber.position
    assert json.loads(first.payload)["n"] == 0
    with Subscriber(published, start=position, **options) as subscriber:
        assert [json.loads(m.payload)["n"] for m in subscriber] == [1, 2, 3]


def test_the_command_filters(published):
    """As its help says."""
    arguments = (
        "subscribe", "--root", str(published), "--stream", "flights", "--own-session", "jfk",
        "--no-follow",
    )  # fmt: skip
    done = run(*arguments, "--where", ".delay>=30", "--where", "key=AA2")
    assert [json.loads(line)["n"] for line in done.stdout.splitlines()] == [2]
    counted = run(*arguments, "--where", ".delay>=30", "--count", "3")
    assert len(counted.stdout.splitlines()) == 3
    wrong = run(*arguments, "--where", "delay>=30")
    assert wrong.exit_code == 2
    assert "not a condition: 'delay>=30'; write NAME OPERATOR VALUE" in wrong.output


@pytest.fixture
def busy(tmp_path):
    """A session in which nothing that is wanted comes, again and again, for as long as it may."""
    ended = threading.Event()

    def publish():
        with Publisher(tmp_path, stream="flights", session="jfk") as publisher:
            for _ in range(6000):  # for a minute at least: the machine may be busy
                publisher.publish(b"{}", key=b"AA1")
                if ended.wait(0.01):
                    return

    thread = threading.Thread(target=publish)
    thread.start()
    yield thread
    ended.set()
    thread.join()


def test_messages_that_do_not_match_do_not_prolong_a_wait(busy, tmp_path):
    """A program that asked for a second of patience would wait for as long as others publish."""
    with Subscriber(tmp_path, stream="flights", session="jfk", where="key=B6*") as subscriber:
        assert list(subscriber.messages(timeout_s=0.2)) == []
    assert busy.is_alive()


def test_the_command_ends_where_nothing_that_matches_comes(busy, tmp_path):
    """It says that messages are missing instead of waiting on."""
    result = run(
        "subscribe", "--root", str(tmp_path), "--stream", "flights", "--own-session", "jfk",
        "--where", "key=B6*", "--count", "1", "--timeout", "0.3",
    )  # fmt: skip
    assert result.exit_code == 1
    assert "1 message wanted, 1 missing at 300 ms without a message" in result.output
    assert busy.is_alive()
