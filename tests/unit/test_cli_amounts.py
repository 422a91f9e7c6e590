"""Times and sizes on the command line: how options accept them, and how output shows them."""

import math
import re
import tokenize
from pathlib import Path

import click
import pytest

import rt as package
from rt.amounts import duration_text, size_text
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


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"), (0.00004, "0 s"), (0.9994, "999 ms"), (0.9996, "1 s"), (9.96, "10 s"),
        (59.4, "59 s"), (59.6, "1 min"), (3599.6, "1 h"), (86_399, "23 h 59 min"),
        (1e6, "11 d 13 h"), (math.nan, "0 s"), (-1.0, "0 s"), (math.inf, duration_text(1e15)),
    ],
)  # fmt: skip
def test_a_duration_is_rounded_to_what_a_person_needs(seconds, text):
    """A value is never shown as 1000 ms or 60 s; what a peer reports may not be a number."""
    assert duration_text(seconds) == text


@pytest.mark.parametrize(
    ("size", "text"),
    [(1023, "1023 B"), (1024, "1.0 KiB"), (102_348, "99.9 KiB"), (102_400, "100 KiB"),
     (1023.4 * 1024, "1023 KiB"),
     ((1 << 30) - 8, "1.0 GiB"), (1 << 50, "1024 TiB"), (1 << 30, "1.0 GiB")],
)  # fmt: skip
def test_a_size_has_at_most_four_digits(size, text):
    """Sizes are compared at a glance."""
    assert size_text(size) == text


def test_no_message_formats_seconds_by_itself():
    """A third spelling of durations had come to be, one f-string at a time."""
    own = re.compile(
        r"\{[^{}]*:[.,0-9]*[gf]\} ?(s|ms|seconds|MB)\b|%\.?[0-9]*[fg] ?m?s\b|1e6[^{}]*\} MB"
    )
    measured = {"rt/demo/report.py"}  # latencies, with their digits
    root = Path(package.__file__).parents[1]
    found = set()
    for folder in ("rt", "replicator", "sequencer", "archiver"):
        for path in (root / folder).rglob("*.py"):
            with tokenize.open(path) as file:
                if own.search(file.read()):
                    found.add(str(path.relative_to(root)))
    assert found <= measured | {"rt/config/kinds.py"}
