"""Times on the command line: options accept and show them as settings do."""

import click
import pytest

from rt.cli.common.options import SECONDS_MAX, Duration
from rt.cli.program import rt
from tests.commands import run


def every_option(group=rt, path=()):
    """Yield the name of a command and an option, for each option."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        yield from ((" ".join((*path, name)), each) for each in command.params)
        if isinstance(command, click.Group):
            yield from every_option(command, (*path, name))


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("500ms", 0.5), ("90s", 90.0), ("1h", 3600.0), ("1.5d", 129600.0), ("60", 60.0), ("0", 0.0)],
)
def test_an_option_takes_a_time_as_a_setting_does(text, seconds):
    """A number alone is seconds, as in the scripts of the first version."""
    assert Duration().convert(text, None, None) == seconds


def test_the_age_of_a_policy_counts_a_bare_number_as_minutes():
    """It always did, as the policy's JSON does."""
    kind = Duration("min")
    assert kind.convert("5", None, None) == 300
    assert kind.convert("7d", None, None) == 7 * 86_400


@pytest.mark.parametrize("text", ["", "x", "-1", "nan", "inf", "1e3", "5 weeks", "400d"])
def test_an_invalid_time_is_refused(text):
    """A command that waits must not wait for ever because of a slip."""
    with pytest.raises(click.BadParameter, match=r"not a time such as 500ms|longer than 366d"):
        Duration().convert(text, None, None)
    assert Duration().convert(f"{SECONDS_MAX}s", None, None) == SECONDS_MAX


def test_no_option_takes_bare_seconds():
    """One spelling everywhere: `--timeout 3600.0` stood beside `--every 30s`."""
    floats = {
        (command, each.opts[0])
        for command, each in every_option()
        if isinstance(each.type, click.types.FloatParamType | click.FloatRange)
        and not isinstance(each.type, Duration)
    }
    assert floats == {("check", "--days-warning"), ("check", "--days-critical")}
    telling = [
        (command, each.opts[0])
        for command, each in every_option()
        if isinstance(each.type, Duration) and "second" in each.help
    ]
    assert telling == []


@pytest.mark.parametrize(
    ("command", "default"),
    [("cluster add", "1h"), ("archive lease", "1h"), ("check", "5min"), ("gateway", "30s")],
)
def test_the_help_shows_a_default_as_a_user_writes_it(command, default):
    """What the help prints can be typed."""
    text = " ".join(run(*command.split(), "--help").stdout.split())
    assert f"[default: {default}]" in text
