"""Variables of the environment that set nothing are refused: a setting that is lost costs days."""

import os

import click
import pytest
from commands import run

from rt.cli.common.environment import FOREIGN, KNOWN, check_environment, variables
from rt.cli.program import rt
from rt.errors import Misuse

DOCUMENT = os.path.join(os.path.dirname(__file__), "..", "..", "docs", "COMING-FROM.md")


def test_what_is_known_without_looking_is_read_by_a_command():
    """A name in the list that no command reads would be ignored silently."""
    assert variables(rt, click.Context(rt)) >= KNOWN


def test_a_setting_that_is_not_in_the_list_is_found_at_the_command():
    """The list saves time; the commands decide."""

    @click.group()
    def program():
        """A program."""

    @program.command()
    @click.option("--new", help="A setting.  [RT_NEW_SETTING]")
    def one(new):
        """A command."""

    check_environment({"RT_NEW_SETTING": "1", "RT_ROOT": "x"}, program)
    with pytest.raises(Misuse, match=r"did you mean RT_NEW_SETTING\?"):
        check_environment({"RT_NEW_SETING": "1"}, program)


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
    assert "holds no log" in done.output
    assert run("--help", env={"RT_STRAEM": "x"}).exit_code == 0


def test_the_document_has_every_foreign_name():
    """The table for users of KX RT is the one that the program goes by."""
    with open(DOCUMENT, encoding="utf-8") as file:
        text = file.read()
    assert [name for name in FOREIGN if f"`{name}`" not in text] == []
