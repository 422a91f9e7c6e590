"""What an ended log has confirmed counts no more once another one continues it."""

import pytest

from replicator.push.progress import SessionProgress
from replicator.push.session_book import SessionBook
from replicator.wire.messages import Ack
from rt.log.notify.confirmations import Confirmations, ConfirmationsFile
from rt.position import Position


def acked(*ends):
    """Return a node's confirmation of these ends."""
    return Ack(0, *map(Position, ends))


@pytest.fixture
def book(tmp_path):
    """The sessions of a publisher that another process has shipped up to 96 before."""
    directory = tmp_path / "flights" / "jfk"
    directory.mkdir(parents=True)
    file = ConfirmationsFile(str(directory))
    file.write(Confirmations(*map(Position, (96, 96, 96, 500, 0))))
    file.close()
    return SessionBook(str(tmp_path), "flights", None, 3)


@pytest.mark.parametrize(
    ("is_seen", "serials"),
    [(True, (0, 1)), (False, (0, 1)), (False, (1,))],
    ids=["before the first answer", "made afterwards", "after a restart"],
)
def test_confirmations_of_an_ended_log_do_not_come_back_from_the_file(book, is_seen, serials):
    """A flush without a new message succeeded, though the next log lacked what it was about."""
    if is_seen:
        book.progress("jfk")
    for serial in serials:
        book.begun(serial)
    book.acked("jfk", "b1:7420", acked(64, 64, 64, 64, 400), "b1")
    assert book.progress("jfk").known.merged == 64


def test_a_file_is_kept_until_the_next_standby_has_it(tmp_path):
    """By marks of the ended log it was released before, and could not have been sent again."""
    reached = [Position(100)]
    progress = SessionProgress(str(tmp_path), 1, standby=lambda: reached[0])
    progress.record("a1", acked(96, 96, 96, 96, 500))
    assert progress.released == 0
    progress.begin_epoch()
    progress.record("b1", acked(96, 96, 96, 96, 900))
    reached[0] = Position(600)
    assert progress.released == 0
