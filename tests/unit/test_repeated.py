"""Repeated log lines: the first is logged at once, the rest are one line a minute."""

import logging

import pytest

from rt.net import repeated
from rt.net.repeated import RepeatedLines


@pytest.fixture
def clock():
    """Return a clock that a test sets: a list of one number."""
    return [100.0]


@pytest.fixture
def lines(clock):
    """Return lines that are summarised every minute of the test's clock."""
    return RepeatedLines(logging.getLogger("flood"), 60.0, lambda: clock[0])


def messages(caplog):
    """Return what was logged."""
    return [record.getMessage() for record in caplog.records]


def test_the_first_line_is_logged_and_the_others_are_counted(lines, clock, caplog):
    """206,339 lines in 25 s filled a disk; the first of them said it all."""
    for number in range(1000):
        lines.warn("refused", f"refused {number}")
    assert messages(caplog) == ["refused 0"]
    clock[0] += 60
    lines.flush()
    assert messages(caplog)[1:] == ["refused 999 (999 more like it within 1 min)"]


def test_a_flood_that_goes_on_is_one_line_a_minute(lines, clock, caplog):
    """An operator sees that it has not ended."""
    for _ in range(600):
        lines.warn("refused", "refused")
        clock[0] += 1
    assert len(caplog.records) == 1 + 9


def test_a_line_after_a_quiet_minute_is_logged_at_once(lines, clock, caplog):
    """What happens once an hour must not wait for a count."""
    for _ in range(3):
        lines.warn("refused", "refused")
        clock[0] += 121
        lines.flush()
    assert messages(caplog) == ["refused"] * 3


def test_different_kinds_are_counted_apart(lines, caplog):
    """A flood from one address hides nothing about another."""
    for _ in range(10):
        lines.warn("a", "from a")
        lines.say(logging.ERROR, "b", "from b")
    assert messages(caplog) == ["from a", "from b"]
    assert [record.levelno for record in caplog.records] == [logging.WARNING, logging.ERROR]


def test_the_number_of_kinds_is_bounded(lines, clock, caplog):
    """A flood may come from many addresses; lines and memory stay bounded."""
    for number in range(10_000):
        lines.warn(f"address {number}", f"refused {number}")
    assert len(caplog.records) == repeated.KINDS_MAX + 1
    clock[0] += 61
    lines.flush()
    assert len(caplog.records) == repeated.KINDS_MAX + 2
    lines.warn("address x", "refused x")
    assert messages(caplog)[-1] == "refused x", "there is room for other kinds again"


def test_text_of_a_peer_is_not_taken_for_a_format(lines, caplog):
    """A `%` in a peer's words would end in a traceback of the logging module."""
    lines.warn("x", "100 %d %s")
    assert messages(caplog) == ["100 %d %s"]
