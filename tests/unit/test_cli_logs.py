"""The log of a command: its level, its form, and that others may listen to more than stderr."""

import json
import logging

import pytest

from rt.cli.common.logs import JSON, configure_log, use_format
from rt.web.serving.recent import forget_events, keep_events
from tests.commands import run


@pytest.fixture(autouse=True)
def restored():
    """Give the root logger back as it was."""
    root = logging.getLogger()
    level, handlers = root.level, root.handlers[:]
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


def test_a_json_line_is_one_object_whatever_is_in_it():
    """A collector splits at newlines, and a peer chooses some of the text."""
    configure_log(logging.INFO)
    use_format(JSON)
    [handler] = logging.getLogger().handlers
    record = logging.makeLogRecord(
        {"name": "rt.node", "levelno": logging.INFO, "levelname": "INFO",
         "msg": 'n2 "leads"\nforged', "event": "leader", "term": 4, "payload": b"secret"}
    )  # fmt: skip
    line = handler.format(record)
    assert "\n" not in line
    fields = json.loads(line)
    assert (fields["level"], fields["event"], fields["term"]) == ("info", "leader", 4)
    assert fields["ts"].endswith("Z")
    assert "payload" not in fields


def test_stderr_shows_no_more_because_the_page_listens():
    """`rt node --http` wrote every line at INFO to a terminal that had asked for warnings."""
    configure_log(logging.WARNING)
    [handler] = logging.getLogger().handlers
    shown = []
    handler.emit = shown.append
    events = keep_events()
    try:
        logging.getLogger("rt.node").info("n1 leads")
        logging.getLogger("rt.node").warning("no leader")
    finally:
        forget_events(events)
    assert [each.getMessage() for each in shown] == ["no leader"]
    assert [each["text"] for each in events.latest(9)] == ["no leader", "n1 leads"]
    assert logging.getLogger("rt").level == logging.NOTSET  # or --debug would show no more later


def test_lines_of_one_kind_in_a_row_are_one_event():
    """A thousand archived files would push the election off the page."""
    events = keep_events()
    try:
        logging.getLogger("rt.node").info("n1 leads")
        for number in range(1000):
            logging.getLogger("rt.archiver").info("log.0.%d is archived", number)
    finally:
        forget_events(events)
    newest, oldest = events.latest(9)
    assert (newest["text"], newest["more"], oldest["text"]) == (
        "log.0.999 is archived", 999, "n1 leads",
    )  # fmt: skip


@pytest.mark.parametrize("place", [0, 1])
def test_the_form_is_an_option_before_or_after_the_command(place):
    """`rt -v node` works and `rt node -v` too."""
    words = ["status", "--help"]
    words[place:place] = ["--log-format", "json"]
    assert run(*words).exit_code == 0
    assert "'yaml' is not one of" in run("--log-format", "yaml", "status").stderr
