"""PushConnection: what goes wrong with one session's files ends no other's shipping."""

import os

import pytest

from replicator.push.connection import PushConnection
from replicator.push.session_book import SessionBook
from replicator.source.gather_window import GatherWindow
from replicator.wire.codec import VERSION
from replicator.wire.dialer import Destination
from replicator.wire.hello import PUSH
from replicator.wire.messages import CHANNELS_MAX, Ack, Standing
from rt import Publisher
from rt.log.notify.confirmations import ConfirmationsFile
from rt.names import parse_glob
from rt.position import START, Position

STREAM = "flights"


class Contexts:
    """TLS that is never used: nothing is dialled."""

    roles = None

    def current(self):
        """Return nothing."""


class Line:
    """A link to a node that takes everything, and answers what a test puts there."""

    name, has_left, memory, version = "n1", False, None, VERSION

    def __init__(self):
        self.answers = []

    def take_no_frames(self):
        """Nothing comes."""

    def send(self, data):
        """Take it."""

    def receive(self, *_args, **_named):
        """Return what a test has put there."""
        answers, self.answers = self.answers, []
        return iter(answers)

    def beat(self):
        """Nothing is due."""


@pytest.fixture
def connection(tmp_path):
    """Return a connection for two sessions, each of a message."""
    for name in ("jfk", "lga"):
        with Publisher(tmp_path, stream=STREAM, session=name) as publisher:
            publisher.publish(b"message")
    book = SessionBook(str(tmp_path), STREAM, [parse_glob("*")])
    nodes = Destination([("localhost", 1)], Contexts(), PUSH, STREAM)
    return PushConnection(nodes, book, GatherWindow(1))


def connected(connection):
    """Connect, and take some turns; return the line and the sessions that were opened on it."""
    line = Line()
    connection.begin(line)
    for _ in range(3):
        connection.turn()
    return line, connection._side


def use_up(side, left=0):
    """Have all channels of a connection opened but so many."""
    side._opened = CHANNELS_MAX - left


def opened(side):
    """Return the sessions with a channel, by their numbers."""
    return {number: os.path.basename(each.log.path) for number, each in side._channels.items()}


def test_a_note_that_cannot_be_read_ends_the_channel_of_its_session_only(connection, tmp_path):
    """It may belong to another user, or be no file: all sessions were disconnected, for ever."""
    (tmp_path / STREAM / "jfk" / "confirmed").mkdir()
    line, side = connected(connection)
    numbers = opened(side)
    line.answers = [Standing(number, START) for number in numbers]
    for _ in range(2):
        connection.turn()
    for number, name in numbers.items():
        end = side._channels[number].position
        assert end
        line.answers.append(Ack(number, end, end, end, end, Position(8)))
        assert name in connection._channels
    connection.turn()
    assert sorted(connection._channels) == ["lga"]
    assert "not a regular file" in connection.error("jfk")
    assert connection._book.progress("lga").known.merged


@pytest.mark.parametrize("fault", ["close", "read"])
def test_the_next_connection_opens_all_sessions_though_the_note_of_one_is_out_of_order(
    connection, tmp_path, monkeypatch, fault
):
    """A disk that is full may say so when the file is closed; no session was shipped any more."""
    if fault == "read":
        (tmp_path / STREAM / "jfk" / "confirmed").mkdir()
    connected(connection)
    if fault == "close":
        for name in ("jfk", "lga"):
            connection._book.progress(name)

        def refuse(_file):
            raise OSError(122, "Disk quota exceeded")

        monkeypatch.setattr(ConfirmationsFile, "close", refuse)
    connection.end()
    monkeypatch.undo()
    _, side = connected(connection)
    assert sorted(opened(side).values()) == ["jfk", "lga"]


def test_a_connection_whose_channels_are_used_up_is_closed_and_dialled_again(connection):
    """A program that opens a publisher for each request would be hung up on at 4,096."""
    _, side = connected(connection)
    assert connection.is_wanted()
    use_up(side)
    assert not connection.is_wanted()
    connection.end()
    assert connection.is_wanted()


def test_no_channel_is_opened_that_a_node_would_hang_up_for(connection, tmp_path):
    """Sixteen are opened in a turn, and the last of them may be one too many for all the others."""
    _, side = connected(connection)
    use_up(side, left=1)
    for name in ("bos", "ewr"):
        Publisher(tmp_path, stream=STREAM, session=name).close()
    connection.look()
    connection.turn()
    assert max(opened(side)) == CHANNELS_MAX - 1
    assert not connection.is_wanted()


def test_sessions_that_no_connection_could_carry_end_none(connection, tmp_path):
    """It was closed and dialled again without end, and those left over were not shipped."""
    book = SessionBook(str(tmp_path), STREAM, None)
    for name in ("jfk", "lga", "bos", *map(str, range(CHANNELS_MAX))):
        book.choose(name, lambda: None)
    nodes = Destination([("localhost", 1)], Contexts(), PUSH, STREAM)
    connection = PushConnection(nodes, book, GatherWindow(1))
    _, side = connected(connection)
    use_up(side)
    Publisher(tmp_path, stream=STREAM, session="bos").close()
    connection.look()
    connection.turn()
    assert connection.is_wanted()
    assert "4,096 sessions at most" in connection.error("bos")
    assert sorted(opened(side).values()) == ["jfk", "lga"]
