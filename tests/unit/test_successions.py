"""What a process believes when peers say which log continues another."""

from dataclasses import replace
from itertools import pairwise
from random import Random

import pytest

from replicator.push.progress import SessionProgress
from replicator.push.session_book import SessionBook
from replicator.wire.messages import Ack
from rt.errors import Misuse
from rt.log.files.disk import OsDisk
from rt.net.authority.certificates import AUTHORITY, certificate_files, init_authority
from rt.net.authority.succession import Succession, one_line
from rt.net.authority.successions import ENDED_NAME, WORDS_MAX, Successions, own_path
from rt.net.authority.trust import trust_of
from rt.position import Position
from tests.sim.disk import SimDisk

STREAM = "flights"
A, B, C = "a" * 32, "b" * 32, "c" * 32
FIRST = Succession(STREAM, A, B, "0.0.64", 1, "0" * 32, "b1:7420", "ops@site-b", 7)
SECOND = replace(FIRST, old=B, new=C, moved_to="c1:7420", at_ns=8)


@pytest.fixture(scope="module")
def sign(tmp_path_factory):
    """Make an authority; return what signs a word as a line, and its certificates."""
    directory = str(tmp_path_factory.mktemp("authority"))
    init_authority(directory)
    trust = trust_of(certificate_files(directory, AUTHORITY).ca)

    def sign(word):
        return one_line(word.signed(directory)).decode().rstrip()

    sign.directory = directory
    sign.authorities = lambda: trust.facts.authorities
    return sign


def test_a_signed_word_is_remembered_and_handed_on(sign, tmp_path):
    """A client that was told of it tells the old site, though it was started again meanwhile."""
    path, text = str(tmp_path / "flights.succession"), sign(FIRST)
    known = Successions(STREAM, sign.authorities, path)
    assert known.after(A) is None
    assert known.hear(text)
    again = Successions(STREAM, sign.authorities, path)
    assert (again.after(A), again.after(B), list(again.texts)) == (FIRST, None, [text])


def test_a_word_that_was_heard_before_is_no_news(sign):
    """Else each connection would end the others."""
    known = Successions(STREAM, sign.authorities)
    assert [known.hear(sign(FIRST)) for _ in range(3)] == [True, False, False]
    assert known.serial == 1


def test_what_the_authority_has_not_signed_is_ignored(sign, tmp_path):
    """A hostile peer must not be able to end a log, nor to end the connection that it is on."""
    other = str(tmp_path / "other")
    init_authority(other)
    known = Successions(STREAM, sign.authorities)
    changed = sign(FIRST).replace("b1:7420", "e1:7420")
    for text in (FIRST.signed(other), changed, "", "{}", "[" * 5000, "é" * 4000, sign(FIRST)[:-9]):
        assert not known.hear(text)
    assert (known.serial, list(known.texts)) == (0, [])


def test_a_word_of_another_stream_is_ignored(sign):
    """One authority may sign for many."""
    assert not Successions("other", sign.authorities).hear(sign(FIRST))


def test_a_node_takes_words_that_concern_its_own_log_only(sign, tmp_path):
    """By which it began or ended; it writes none, as its certificates are another's to write."""
    path = tmp_path / "flights.succession"
    known = Successions(STREAM, sign.authorities, str(path), log=B)
    assert known.hear(sign(FIRST))
    assert known.hear(sign(SECOND))
    assert not known.hear(sign(replace(FIRST, old=C, new="d" * 32)))
    assert not path.exists()


def test_the_first_of_two_words_on_one_log_stays(sign):
    """Two sites were promoted: changing sides would double what the first has taken."""
    known = Successions(STREAM, sign.authorities)
    assert known.hear(sign(FIRST))
    assert not known.hear(sign(replace(FIRST, new=C, at_ns=99)))
    assert known.after(A) == FIRST


def test_a_word_that_another_process_has_heard_is_read(sign, tmp_path):
    """`rt push` and `rt pull` beside each other share one file."""
    path = str(tmp_path / "flights.succession")
    one, other = (Successions(STREAM, sign.authorities, path) for _ in range(2))
    one.hear(sign(FIRST))
    other.reload()
    assert (other.after(A), other.serial) == (FIRST, 1)
    other.hear(sign(SECOND))
    one.reload()
    assert (one.after(B), one.serial) == (SECOND, 2)


def test_so_many_words_are_kept(sign):
    """Memory and greetings have a bound; the oldest sites are gone for long."""
    known = Successions(STREAM, sign.authorities)
    ids = [f"{number:032x}" for number in range(WORDS_MAX + 2)]
    for number, (old, new) in enumerate(pairwise(ids)):
        assert known.hear(sign(replace(FIRST, old=old, new=new, at_ns=number)))
    assert len(known.texts) == WORDS_MAX
    assert known.after(ids[0]) is None
    assert known.after(ids[-2]).new == ids[-1]


def test_a_file_that_cannot_be_read_is_not_believed(sign, tmp_path):
    """It is a file of this machine, and a start must not fail by it."""
    path = tmp_path / "flights.succession"
    path.write_bytes(b"\xff\n" + sign(FIRST).encode())
    assert not Successions(STREAM, sign.authorities, str(path)).texts
    path.write_text(f"garbage\n{sign(FIRST)}\n")
    assert Successions(STREAM, sign.authorities, str(path)).after(A) == FIRST
    assert own_path(str(tmp_path / "ca.pem"), STREAM) == str(path)


def test_a_node_keeps_the_word_that_ended_its_log(sign):
    """After a power cut it refuses at once; it need not wait for a client that knows."""
    disk = SimDisk(Random(1))
    disk.make_directory("n1")
    assert Successions(STREAM, sign.authorities, log=B, kept=(disk, "n1")).ended is None
    known = Successions(STREAM, sign.authorities, log=B, kept=(disk, "n1"))
    assert known.ended_by(sign(FIRST)) is None, "by this one it began"
    disk.cut_power()
    assert not Successions(STREAM, sign.authorities, log=B, kept=(disk, "n1")).texts
    text = SECOND.signed(sign.directory)
    assert known.ended_by(text) == SECOND, "in several lines"
    disk.cut_power()
    again = Successions(STREAM, sign.authorities, log=B, kept=(disk, "n1"))
    assert (again.ended, list(again.texts)) == (SECOND, [one_line(text).decode().rstrip()])


def test_a_kept_word_that_is_damaged_is_said_in_a_sentence(sign, tmp_path):
    """It may have ended the log, so the node does not go on by itself; a sound one may not."""
    path = tmp_path / ENDED_NAME
    changed = sign(SECOND).replace("c1:7420", "e1:7420")
    for text in (changed, "", sign(SECOND)[:-1], "\xff"):
        path.write_text(text)
        with pytest.raises(Misuse, match=r"says that this node's log has ended, and cannot be bel"):
            Successions(STREAM, sign.authorities, log=B, kept=(OsDisk(), str(tmp_path)))
    path.write_text(sign(FIRST))
    known = Successions(STREAM, sign.authorities, log=B, kept=(OsDisk(), str(tmp_path)))
    assert known.ended is None, "another log was here before"


def test_a_word_that_cannot_be_kept_is_kept_later(sign, tmp_path, caplog):
    """A full disk does not let the node go on; it may be full no more when it hears it again."""
    directory = tmp_path / "n1"
    text = sign(SECOND)
    known = Successions(STREAM, sign.authorities, log=B, kept=(OsDisk(), str(directory)))
    assert known.ended_by(text) == SECOND
    assert "a restart may forget it" in caplog.text
    directory.mkdir()
    assert known.ended_by(text) == SECOND
    assert (directory / ENDED_NAME).read_text() == text + "\n"


def test_confirmations_of_a_log_that_has_ended_do_not_count_for_the_next(tmp_path):
    """What the old site had merged beyond the cut is not in the new log before it is sent again."""
    told = Ack(0, *map(Position, (96, 96, 96, 96, 500)))
    book = SessionBook(str(tmp_path), STREAM, None, 3)
    book.begun(0)
    book.acked("jfk", "a1:7420", told, "x")
    book.begun(0)
    assert book.progress("jfk").known.merged == 96
    book.begun(1)
    known = book.progress("jfk").known
    assert (known.received, known.replicated, known.merged) == (0, 0, 0)
    book.begun(0)  # a slow dial, from before
    book.acked("jfk", "b1:7420", told._replace(merged=Position(64)), "x")
    assert book.progress("jfk").known.merged == 64
    book.begun(1)
    assert book.progress("jfk").known.merged == 64


def test_what_was_released_stays_released(tmp_path):
    """Its file may be gone."""
    progress = SessionProgress(str(tmp_path), 1)
    progress.record("a1:7420", Ack(0, *map(Position, (96, 96, 96, 96, 500))))
    assert progress.released == 96
    progress.begin_epoch()
    assert (progress.known.merged, progress.known.released) == (0, 96)
