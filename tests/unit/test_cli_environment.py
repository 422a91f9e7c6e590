"""Variables of the environment that set nothing are refused: a setting that is lost costs days."""

import os
import re

import click
import pytest
from commands import run

from rt.cli.environment import FOREIGN, KNOWN
from rt.cli.program import rt

DOCUMENT = os.path.join(os.path.dirname(__file__), "..", "..", "docs", "COMING-FROM.md")


def variables(command, context):
    """The variables that the help of a command and its subcommands names."""
    found = set()
    for parameter in command.params:
        found |= set(re.findall("RT_[A-Z0-9_]+", getattr(parameter, "help", None) or ""))
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            found |= variables(command.get_command(context, name), context)
    return found


def test_every_variable_that_a_command_reads_is_known():
    """A new setting whose variable was refused could not be set."""
    assert variables(rt, click.Context(rt)) == KNOWN


@pytest.mark.parametrize(
    ("variable", "words"),
    [
        ("RT_STRAEM", "did you mean RT_STREAM?"),
        ("RT_LOG_PATH", "instead use RT_ROOT, and unset it"),
        ("RAFT_HEARTBEAT", "instead use RT_HEARTBEAT_S, in seconds, and unset it"),
        ("RAFT_LOG_SIZE", "snapshots bound the log of Raft"),
        ("RT_QWERTYUIOP", "unset it; docs/COMING-FROM.md has our names"),
    ],
)
def test_an_unknown_variable_is_refused_with_our_name_for_it(variable, words, tmp_path):
    """Misspelt, or left over from another product."""
    done = run("subscribe", "--root", tmp_path, "--no-follow", env={variable: "1"})
    assert done.exit_code == 2
    assert f"the environment sets {variable}, which no command reads; " in done.output
    assert words in done.output


def test_a_known_variable_and_another_programs_are_left_alone(tmp_path):
    """RTX_ is not ours; and help is shown in any environment."""
    done = run("subscribe", "--no-follow", env={"RT_ROOT": str(tmp_path), "RTX_A": "1"})
    assert "there is no log" in done.output
    assert run("--help", env={"RT_STRAEM": "x"}).exit_code == 0


def test_the_document_has_every_foreign_name():
    """The table for users of KX RT is the one that the program goes by."""
    with open(DOCUMENT, encoding="utf-8") as file:
        text = file.read()
    assert [name for name in FOREIGN if f"`{name}`" not in text] == []
