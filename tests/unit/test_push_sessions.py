"""PushConnection: what goes wrong with one session's files ends no other's shipping."""

import pytest

from replicator.push.connection import PushConnection
from replicator.push.session_book import SessionBook
from replicator.source.gather_window import GatherWindow
from replicator.wire.dialer import Destination
from replicator.wire.hello import PUSH
from replicator.wire.messages import Ack, Refusal, Standing
from rt import Publisher
from rt.names import parse_glob
from rt.position import START, Position
from tests.links import Line, turns

STREAM = "flights"


class Contexts:
    """TLS that is never used: nothing is dialled."""

    roles = successions = None

    def current(self):
        """Return nothing."""


class Book(SessionBook):
    """A book of which a test keeps one file from being closed."""

    fails = False

    def rest(self, session):
        if self.fails:
            raise OSError(122, "Disk quota exceeded")
        super().rest(session)


@pytest.fixture
def connect(tmp_path):
    """Return what makes a connection for two sessions, each of a message."""
    for name in ("jfk", "lga"):
        with Publisher(tmp_path, stream=STREAM, session=name) as publisher:
            publisher.publish(b"message")
    nodes = Destination([("localhost", 1)], Contexts(), PUSH, STREAM)

    def connection(book=None, **options):
        book = book or Book(str(tmp_path), STREAM, [parse_glob("*")])
        return book, PushConnection(nodes, book, GatherWindow(1), **options)

    return connection


def test_a_note_that_cannot_be_read_ends_the_channel_of_its_session_only(connect, tmp_path):
    """It may belong to another user, or be no file: all sessions were disconnected, for ever."""
    (tmp_path / STREAM / "jfk" / "confirmed").mkdir()
    book, connection = connect()
    line = Line().shipping(connection)
    for number, name in line.sessions.items():
        end, _ = connection.sent(name)
        assert end
        line.answers.append(Ack(number, end, end, end, end, Position(8)))
    connection.turn()
    assert connection.sent("jfk")[0] is None
    assert connection.sent("lga")[0]
    assert "not a regular file" in connection.error("jfk")
    assert book.progress("lga").known.merged


@pytest.mark.parametrize("fault", ["close", "read"])
def test_the_next_connection_opens_all_sessions_though_the_note_of_one_is_out_of_order(
    connect, tmp_path, fault
):
    """A disk that is full may say so when the file is closed; no session was shipped any more."""
    if fault == "read":
        (tmp_path / STREAM / "jfk" / "confirmed").mkdir()
    book, connection = connect()
    Line().shipping(connection)
    book.fails = fault == "close"
    connection.end()
    book.fails = False
    assert sorted(Line().shipping(connection).sessions.values()) == ["jfk", "lga"]


def test_a_connection_whose_channels_are_used_up_is_closed_and_dialled_again(connect):
    """A program that opens a publisher for each request would be hung up on at 4,096."""
    for most, is_wanted in ((3, True), (2, False)):
        book, connection = connect(channels_max=most)
        Line().shipping(connection)
        book.names = lambda: ["jfk"]  # the other one has ended
        assert connection.is_wanted() == is_wanted
        connection.end()
        assert connection.is_wanted()


def test_no_channel_is_opened_that_a_node_would_hang_up_for(connect, tmp_path):
    """Sixteen are opened in a turn, and the last of them may be one too many for all the others."""
    book, connection = connect(channels_max=3)
    line = Line().shipping(connection)
    for name in ("bos", "ewr"):
        Publisher(tmp_path, stream=STREAM, session=name).close()
    connection.check_soon()
    connection.turn()
    assert max(line.sessions) == 2
    book.names = lambda: ["jfk"]
    assert not connection.is_wanted()


def test_sessions_that_no_connection_could_carry_end_none(connect, tmp_path):
    """It was closed and dialled again without end, and those left over were not shipped."""
    book = SessionBook(str(tmp_path), STREAM, None)
    for name in ("jfk", "lga", "bos"):
        book.choose(name, lambda: None)
    _, connection = connect(book, channels_max=2)
    line = Line().shipping(connection)
    Publisher(tmp_path, stream=STREAM, session="bos").close()
    connection.check_soon()
    connection.turn()
    assert connection.is_wanted()
    assert "2 sessions at most" in connection.error("bos")
    assert sorted(line.sessions.values()) == ["jfk", "lga"]


def test_a_session_that_is_offered_again_is_refused_until_the_node_accepts_it(connect, tmp_path):
    """A drain that ran out then did not know that another program ships the session."""
    book = Book(str(tmp_path), STREAM, [parse_glob("jfk")], refused_retry_s=0)
    book.refused = lambda _session, _why: 0.0
    book, connection = connect(book)
    line = Line()
    connection.begin(line)
    turns(connection)
    for _ in range(2):
        line.answers = [Refusal(max(line.sessions), "busy", "another ships it")]
        before = len(line.sessions)
        turns(connection)
        connection.check_soon()
        turns(connection)
        assert len(line.sessions) > before, "it was offered again"
        assert connection.refusal("jfk") == "busy"
        assert "another ships it" in connection.error("jfk")
    line.answers = [Standing(max(line.sessions), START)]
    turns(connection)
    connection.check_soon()
    turns(connection)
    assert (connection.refusal("jfk"), connection.error("jfk")) == ("", connection.dialer.error)


def acked(book, node, end):
    """Record that a node holds and has merged the session up to `end`."""
    book.acked("jfk", node, Ack(0, *(Position(end),) * 5), "log")


def test_a_node_that_is_no_member_any_more_has_no_say(tmp_path):
    """A replaced node's disk is gone: with its voice, one that is there would do for a majority."""
    book = SessionBook(str(tmp_path), STREAM, None, nodes=3)
    for each in ("a:1", "b:1", "c:1"):
        book.answered(each, each[0])
    acked(book, "c:1", 640)
    book.follow(["a:1", "b:1", "d:1"])
    acked(book, "c:1", 1280)  # it was on its way
    acked(book, "a:1", 1280)
    assert book.progress("jfk").released == START
    acked(book, "d:1", 640)
    assert book.progress("jfk").released == Position(640)


def test_another_node_at_an_address_has_confirmed_nothing_yet(tmp_path):
    """It was replaced by one of another name on the same machine, with an empty disk."""
    book = SessionBook(str(tmp_path), STREAM, None, nodes=3)
    book.answered("c:1", "n3")
    acked(book, "c:1", 640)
    book.answered("c:1", "n4")
    acked(book, "a:1", 640)
    assert book.progress("jfk").released == START
    acked(book, "c:1", 640)
    assert book.progress("jfk").released == Position(640)
