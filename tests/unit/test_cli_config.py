"""`rt config explain`: each setting, its value, and where that came from."""

import json

import click
import pytest

from rt.cli.common.config import commands_with_settings
from rt.cli.program import rt
from tests.commands import run


@pytest.fixture
def file(tmp_path):
    """A file for two commands."""
    path = tmp_path / "rt.toml"
    path.write_text('[node]\nname = "n7"\nreserve = "1Gi"\n[push]\nstream = "flights"\n')
    return path


def explained(*arguments, env=None):
    """Return value and source of each setting."""
    done = run("config", "explain", *arguments, "--json", env=env)
    assert done.exit_code == 0, done.output
    return {each["setting"]: (each["value"], each["source"]) for each in json.loads(done.stdout)}


def test_each_setting_says_where_it_came_from(file):
    """Four sources, and the one that is believed to count is usually another."""
    found = explained("node", "--config", file, "--listen", "a:1", env={"RT_RESERVE": "2Gi"})
    assert found["name"] == ("n7", f"name in [node] of {file}")
    assert found["listen"] == ("a:1", "option --listen")
    assert found["reserve"] == ("2Gi", "environment RT_RESERVE")
    assert found["election_s"] == ("500ms", "default")


def test_the_file_that_the_environment_names_counts(file):
    """RT_CONFIG is what most people set."""
    assert explained("push", env={"RT_CONFIG": str(file)})["stream"][0] == "flights"


def test_only_what_was_set_is_shown_on_request(file):
    """A node has thirty settings, of which five were chosen."""
    assert set(explained("node", "--config", file, "--set")) == {"name", "reserve"}


def test_a_size_of_many_digits_is_shown_in_a_short_unit_too(file):
    """No one reads 106390912Ki; a script still gets it whole."""
    words = "config", "explain", "node", "--reserve", "106390912Ki", "--set"
    assert "106390912Ki (101 GiB)  option" in run(*words).stdout
    assert json.loads(run(*words, "--json").stdout)[0]["value"] == "106390912Ki"


def test_every_command_with_settings_can_be_explained():
    """A command that is missing here would be the one that is asked about."""
    names = commands_with_settings(click.Context(rt))
    assert {"node", "push", "pull", "publish", "session list", "status", "check"} <= set(names)
    for name in names:
        done = run("config", "explain", name, "--session", "x") if name == "publish" else run(
            "config", "explain", name
        )  # fmt: skip
        assert done.exit_code == 0, (name, done.output)
        assert "default" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nodee"], "is not a command with settings; these are: "),
        (["dump"], "is not a command with settings"),
        (["session"], "'session list'"),
        (["node", "--lissten", "x"], "No such option"),
        (["node", "--config", "/nowhere.toml"], "no such file"),
        (["node", "--reserve", "much"], "reserve"),
        ([], "COMMAND"),
    ],
)
def test_wrong_use_is_one_sentence(arguments, words):
    """A command that explains has to explain itself."""
    done = run("config", "explain", *arguments)
    assert done.exit_code == 2
    assert words in done.stderr
    assert "Traceback" not in done.stderr
