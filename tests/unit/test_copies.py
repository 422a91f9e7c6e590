"""Copies: a copy counts as checked once it was read, and not before."""

import errno

import pytest

from rt.errors import SessionDiverged
from rt.log.files.disk import OsDisk
from rt.position import Position
from sequencer.execution.copies import Copies
from sequencer.ledger.ledger import Ledger
from sequencer.planning.holdings import Holdings
from sequencer.planning.session_log import SessionLogs

END = Position(1_000)


class Executor:
    """An executor whose next checks raise what it is given."""

    def __init__(self, *errors):
        self.errors = list(errors)
        self.ledger, self.logs = Ledger(), SessionLogs(OsDisk(), "in")
        self.checks = 0

    def copy_end(self, _session):
        """Return where a copy ends."""
        return END

    def check_copy(self, _session, _known):
        """Check a copy."""
        self.checks += 1
        if self.errors:
            raise self.errors.pop(0)


def copies(*errors):
    """Return the copies of a node that holds one session, and its executor."""
    executor, holdings = Executor(*errors), Holdings("n1", ["n1"])
    holdings.record_durable("jfk", END)
    made = Copies(executor, holdings)
    executor.logs.records.grow("jfk")
    return made, executor


def test_a_copy_that_cannot_be_read_is_checked_again_and_ends_nothing(caplog):
    """With no descriptors left, an idle publisher would wait for `merged` for ever."""
    known, executor = copies(OSError(errno.EMFILE, "Too many open files"), OSError(5, "I/O error"))
    for _ in range(2):
        known.check()
        assert "jfk" not in executor.logs.records.checked
    known.check()
    assert "jfk" in executor.logs.records.checked
    assert executor.checks == 3
    assert caplog.text.count("session jfk cannot be checked, and waits") == 1


def test_a_copy_that_diverged_is_not_checked_again_before_it_grows():
    """It is set aside; another one begins in its place."""
    known, executor = copies(SessionDiverged("in/jfk/log.0.0", "jfk", END, "another frame"))
    with pytest.raises(SessionDiverged):
        known.check()
    known.check()
    assert executor.checks == 1
    executor.logs.records.grow("jfk")
    known.check()
    assert "jfk" in executor.logs.records.checked
