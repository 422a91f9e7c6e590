"""Output for a terminal that a pipe does not get."""

import os
import pty

import pytest

from rt.cli.common import console
from tests.commands import PATIENCE_S, clean_environment, run, start


def on_terminal(*arguments, **options):
    """Run `rt` with a terminal as stdout and stderr; return its exit code and what was shown."""
    ours, theirs = pty.openpty()
    with start(*arguments, stdout=theirs, stderr=theirs, **options) as process:
        os.close(theirs)
        shown = b""
        while piece := _read(ours):
            shown += piece
        os.close(ours)
        process.wait(PATIENCE_S)
    return process.returncode, shown


def _read(terminal):
    try:
        return os.read(terminal, 65536)
    except OSError:  # the other end is closed
        return b""


@pytest.mark.process
def test_terminal_shows_progress_after_a_second_and_wipes_it_off(tmp_path):
    """A short command needs none; after the end only the summary counts."""
    lines = tmp_path / "lines"
    lines.write_bytes(b"x\n" * 30)
    code, shown = on_terminal(
        "publish", "--root", tmp_path, "--session", "jfk", "--rate", "20/s", lines
    )
    assert code == 0
    assert b" B) in " in shown.partition(b"published ")[0], "the summary has it too"
    assert b"\x1b[2K" in shown
    assert shown.rstrip().endswith(b"up to 0.0.2640")


@pytest.mark.process
def test_terminal_has_colours_unless_it_wants_none(tmp_path, monkeypatch):
    """NO_COLOR is for people, and terminals, that cannot use colours."""
    assert b"\x1b[" in on_terminal("verify", tmp_path)[1]
    monkeypatch.setenv("NO_COLOR", "1")
    assert "NO_COLOR" in clean_environment()
    assert b"\x1b[" not in on_terminal("verify", tmp_path)[1]


def test_pipe_has_no_colours(tmp_path):
    """Escape sequences are noise in a log file, and a puzzle in a report."""
    assert "\x1b[" not in run("verify", tmp_path).stderr


def test_table_is_as_wide_as_it_needs_to_be():
    """A path that is cut off cannot be pasted."""
    wide = "x" * 300
    assert console.table(["a", "b"], [[wide, "1"], ["", "2"]]).splitlines() == [
        f"a{' ' * 301}b", f"{wide}  1", f"{' ' * 302}2",
    ]  # fmt: skip
