"""Names: what a peer calls itself never reaches a path unless it is in the grammar."""

import fnmatch
import os
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rt import names
from rt.errors import Misuse

HOSTILE = [
    "",
    " ",
    ".",
    "..",
    "...",
    "/",
    "//",
    "../x",
    "../../etc/passwd",
    "a/..",
    "a/../b",
    "a/b",
    "/etc/passwd",
    "./a",
    "a/",
    "a\\b",
    "..\\a",
    "C:\\a",
    "c:",
    "~",
    "~root",
    "$home",
    "%2e%2e%2f",
    "a%00",
    "\0",
    "a\0",
    "a\0b",
    "\n",
    "a\n",
    "a\nb",
    "a\r",
    "a\t",
    "a b",
    " a",
    "a ",
    "a\x1b[2j",
    "a\x7f",
    "-a",
    "--help",
    "-",
    "a-",
    "a--b",
    "_a",
    "a_",
    "a__b",
    ".a",
    "a.",
    "a..b",
    "a.-b",
    "a*",
    "a?",
    "[a]",
    "a;b",
    "a|b",
    "a&b",
    "`a`",
    "$(a)",
    "'a'",
    '"a"',
    "a,b",
    "a=b",
    "a:b",
    "a@b",
    "a+b",
    "lost+found",
    "#a",
    "a!",
    "JFK",
    "Jfk",
    "jfK",
    "\u0430bc",  # Cyrillic a
    "j\u0444k",
    "\uff41",  # full-width a
    "\u212a",  # Kelvin sign, lower() of which is k
    "\u0131",  # dotless i
    "caf\u00e9",
    "cafe\u0301",
    "\u0661",  # Arabic-Indic 1: str.isdigit() says yes
    "a\u200b",  # zero-width space
    "a\u202eb",  # right-to-left override
    "\ufeffa",
    "a\u2024b",  # one dot leader
    "a\u2215b",  # division slash
    "\ud800",  # lone surrogate, as os.fsdecode makes them
    "\U0001f600",
    "a" * 64,
    "a" * 300,
    "a." * 31 + "ab",
    "in",
    "out",
    "log",
    "log.0.0",
    "log.0.0.idx",
    "manifest",
    "state",
    "quarantine",
    "a.tmp",
    "a.idx",
    "a.lock",
    "con",
    "nul.txt",
    "com1",
    "lpt9.a",
]
FRIENDLY = ["a", "0", "jfk", "jfk-4", "a.b", "a_b", "a-b.c_d", "2013", "a" * 63, "con-air", "input"]


def refused(parse, text):
    """Return the message with which `parse` refuses `text`."""
    with pytest.raises(Misuse) as caught:
        parse(text)
    return str(caught.value)


@pytest.mark.parametrize("text", HOSTILE, ids=ascii)
def test_hostile_name_becomes_no_path(text):
    """Rsync had three CVEs from a peer's name that became a path."""
    refused(lambda name: names.session_directory("/r", name, "jfk"), text)
    refused(lambda name: names.session_directory("/r", "flights", name), text)


@pytest.mark.parametrize("text", HOSTILE, ids=ascii)
def test_refusal_is_one_short_printable_line(text):
    """The text comes from a stranger and goes into a log and a terminal."""
    message = refused(names.parse_session, text)
    assert message.isascii()
    assert message.isprintable()
    assert len(message) < 240


def test_the_table_of_hostile_names_is_long_and_has_no_repeats():
    """It must hold at least 60 names; a repeat would count twice."""
    assert len(set(HOSTILE)) == len(HOSTILE) >= 60


@pytest.mark.parametrize("text", FRIENDLY)
def test_friendly_name_is_taken_by_every_parser(text):
    """All nouns share one grammar, so a name learned once is valid everywhere."""
    for parse in (names.parse_session, names.parse_stream, names.parse_node, names.parse_peer):
        assert parse(text) == text


def test_message_names_the_noun_the_text_and_the_way_out():
    """A refusal that does not say what to do costs a support call."""
    message = refused(names.parse_stream, "JFK")
    assert "stream" in message
    assert "'JFK' has upper-case letters" in message
    assert "lower-case" in message


def test_refused_text_is_cut_to_forty_characters_even_when_escaping_grows_it():
    """Three hundred NULs must not fill the log with twelve hundred characters."""
    assert names.shown("\0" * 300) == "'" + r"\x00" * 10 + "'..."
    assert names.shown("a" * 300) == "'" + "a" * 40 + "'..."
    assert names.shown("a" * 40) == "'" + "a" * 40 + "'"


@pytest.mark.parametrize("value", [None, 7, b"jfk", ["jfk"]])
def test_a_value_that_is_not_text_is_refused_by_its_type(value):
    """Publisher(session=None) is a common slip; it must not be a TypeError from a regex."""
    assert type(value).__name__ in refused(names.parse_session, value)
    assert type(value).__name__ in refused(names.parse_glob, value)


@given(st.text(max_size=80))
def test_whatever_is_accepted_stays_directly_under_its_stream(text):
    """The property that the table shows: no accepted name can leave its directory or hide in it."""
    try:
        path = names.session_directory("/r", "flights", text)
    except Misuse:
        return
    assert os.path.normpath(path) == path
    assert os.path.split(path) == ("/r/flights", text)


@given(st.from_regex(r"[a-z0-9]([-._]?[a-z0-9]){0,31}", fullmatch=True))
def test_every_text_of_the_grammar_is_a_name_unless_reserved(text):
    """The grammar in the documents is the grammar in the code, read by another expression."""
    try:
        assert names.parse_session(text) == text
    except Misuse as error:
        assert "reserved" in str(error)  # noqa: PT017 - the other branch has no error


@pytest.mark.parametrize(
    ("glob", "yes", "no"),
    [
        ("*", ["a", "a.b"], []),
        ("jfk", ["jfk"], ["jfk-1", "ajfk"]),
        ("jfk-*", ["jfk-1", "jfk-1.a"], ["jfk", "ajfk-1"]),
        ("*-jfk", ["a-jfk"], ["jfk", "a-jfk-1"]),
        ("a*b*c", ["abc", "a-b-c", "abbc"], ["acb", "ab", "ac"]),
        ("a.b*", ["a.b", "a.bc"], ["axb"]),
        ("a*a", ["aa", "aba"], ["a"]),
        ("**", ["a"], []),
    ],
)
def test_glob_matches_what_it_says_and_nothing_else(glob, yes, no):
    """A dot is a dot: a certificate for `a.b*` must not open `axb`."""
    parsed = names.parse_glob(glob)
    assert [name for name in yes + no if names.glob_matches(parsed, name)] == yes


@pytest.mark.parametrize(
    "text",
    ["", "a?", "[a]*", "a|*", "(a*)", "a/*", "../*", "A*", "*\n", "*\0", "\u0430*", "a" * 63 + "*"],
    ids=ascii,
)
def test_hostile_glob_is_refused(text):
    """A glob is read out of a certificate; only `*` has a meaning in it."""
    refused(names.parse_glob, text)


@given(st.text("ab*", min_size=1, max_size=12), st.text("ab", min_size=1, max_size=12))
def test_glob_agrees_with_a_regular_expression(glob, name):
    """Our linear matcher is checked against the library's backtracking one."""
    expected = re.fullmatch(fnmatch.translate(glob), name) is not None
    assert names.glob_matches(names.parse_glob(glob), name) == expected


def test_glob_of_many_stars_takes_no_longer_than_a_plain_one():
    """Thirty-one stars over sixty-three letters would keep a backtracking matcher busy for ever."""
    assert not names.glob_matches(names.parse_glob("*a" * 31), "a" * 62 + "b")


@pytest.mark.parametrize("data", [b"", b"JFK", b"log", b"../x", b"a" * 64, b"jfk\xe9"])
def test_bytes_that_name_no_session_are_refused_however_often_they_come(data):
    """What was read once is remembered, and a peer may repeat what is wrong."""
    for _ in range(3):
        with pytest.raises((Misuse, UnicodeDecodeError)):
            names.decode_session(data)
        assert names.decode_session(b"jfk") == "jfk"
