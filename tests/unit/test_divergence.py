"""What a lost cluster had merged that the cluster after it does not have."""

import json

import pytest

from rt.errors import Misuse
from rt.inspect.divergence import divergence
from rt.log.files.directory import LogDirectory
from rt.position import START
from tests.commands import publish, run
from tests.logs import TIME_NS, MergedLog


def texts(session, first, count):
    """Payloads of a session's next messages."""
    return [b"%s %d" % (session.encode(), first + n) for n in range(count)]


def roll(log):
    """End the file as a node does: its line has the digest."""
    log.next_file = log.appender.end.next_file()
    log.appender.roll(TIME_NS, digest=log.digest.hex())


@pytest.fixture
def logs(tmp_path):
    """Two merged logs of the same twenty messages: the old one and the new."""
    with MergedLog(str(tmp_path / "old")) as old, MergedLog(str(tmp_path / "new")) as new:
        for each in (old, new):
            each.merge("jfk", texts("jfk", 0, 10))
            each.merge("lga", texts("lga", 0, 10))
        yield old, new


def compared(old, new, groups=None):
    """Compare both as they are on disk."""
    first, second = LogDirectory(old.directory), LogDirectory(new.directory)
    for each in (first, second):
        each.refresh()
    return divergence(first, second, groups)


def test_what_only_the_old_log_has_is_named_by_session_and_sequence_number(logs):
    """And what publishers sent again is not, in whatever order it came."""
    old, new = logs
    cut = compared(old, new)
    assert (cut.beyond, cut.lost, cut.proof.number) == (0, 0, 20)
    old.merge("jfk", texts("jfk", 10, 5), texts("jfk", 15, 5))
    old.merge("lga", texts("lga", 10, 6))
    assert compared(old, new).missing == {"jfk": [(10, 20)], "lga": [(10, 16)]}
    new.merge("lga", texts("lga", 10, 2))
    new.merge("jfk", texts("jfk", 10, 10), texts("jfk", 20, 3))
    found = compared(old, new)
    assert (found.cut, found.proof) == (cut.cut, cut.proof)
    assert (found.beyond, found.lost, found.missing) == (16, 4, {"lga": [(12, 16)]})


def test_the_logs_may_have_rolled_since_and_archived_what_they_share(logs):
    """The lines of files that are gone prove that they were equal."""
    old, new = logs
    for each in logs:
        roll(each)
        each.merge("jfk", texts("jfk", 10, 2))
    cut = compared(old, new).cut
    roll(new)
    new.merge("jfk", texts("jfk", 12, 1))
    old.merge("jfk", texts("jfk", 12, 4))
    new.archive(START)
    found = compared(old, new)
    assert (found.cut, found.missing) == (cut, {"jfk": [(13, 16)]})


def test_a_message_of_a_group_is_there_if_another_publisher_sent_it(logs):
    """Redundant publishers number the same messages alike."""
    old, new = logs
    old.merge("jfk", texts("x", 10, 3))
    new.merge("lga", texts("x", 10, 2))
    assert compared(old, new).lost == 3
    assert compared(old, new, {"jfk": "feed", "lga": "feed"}).missing == {"feed": [(12, 13)]}


def test_the_command_says_it_and_its_exit_code_too(logs, tmp_path):
    """An operator decides by it whether the old files may go."""
    old, new = logs
    command = ["standby", "compare", old.directory, new.directory]
    assert run(*command).exit_code == 0
    old.merge("jfk", texts("jfk", 10, 3))
    shown = run(*command)
    assert shown.exit_code == 1
    assert "has 3 messages after it" in shown.output
    assert "missing   jfk: sequence numbers 10 to 12" in shown.output
    told = run(*command, "--json")
    assert json.loads(told.stdout)["missing"] == {"jfk": [[10, 13]]}
    for path, words in (
        (publish(tmp_path, [b"x"]), "a session's log; name a merged one"),
        (str(tmp_path / "nowhere"), "nowhere"),
    ):
        refused = run("standby", "compare", old.directory, path)
        assert refused.exit_code == 2, refused.output
        assert words in refused.output


def test_logs_that_do_not_begin_alike_are_refused(logs, tmp_path):
    """They are of two streams, or of a cluster that was founded without the other's log."""
    with MergedLog(str(tmp_path / "other")) as other:
        other.merge("ord", texts("ord", 0, 1))
        with pytest.raises(Misuse, match="do not begin alike"):
            compared(logs[0], other)


def test_what_follows_the_cut_must_be_there(logs):
    """Archived messages cannot be compared, and must not count as none."""
    old, new = logs
    old.merge("jfk", texts("jfk", 10, 3))
    roll(old)
    old.archive(START)
    with pytest.raises(Misuse, match="was archived; restore it first"):
        compared(old, new)
