"""`rt archive policy`: shows and sets the rules by which files are archived."""

import json
import math
from typing import Any, Final

import click

from archiver.policy import parse_policy, policy_of
from rt.amounts import size_text
from rt.cli.common.command_group import CommandGroup
from rt.cli.common.console import print_json, say
from rt.cli.common.link import ask_latest_or_any, link_options
from rt.cli.common.options import Duration, json_option
from rt.client.readers.settings import ConnectionSettings
from rt.errors import Misuse
from rt.net.admin import reading_answers
from rt.text import time_text

_FILE_CHARACTERS_MAX: Final = 1 << 16  # a policy has only four rules


@click.group(cls=CommandGroup)
def policy() -> None:
    """Show the policy of a stream, or set it.

    \b
    rt archive policy show --nodes a:7420 --identity subscriber
    rt archive policy set --limit 500Gi --identity n1
    """  # noqa: D301 - click reads the backspace character


@policy.command()
@link_options("archive", json="policy, disks and leases")
def show(settings: ConnectionSettings, *, as_json: bool) -> None:
    """Print the policy, the leases that hold files, and how full the nodes' disks are.

    \b
    rt archive policy show --nodes a:7420 --identity subscriber
    """  # noqa: D301 - click reads the backspace character
    _show(ask_latest_or_any(settings, {"do": "policy"}), as_json=as_json)


@policy.command(name="set")
@link_options("archive")
@click.argument("text", metavar="[JSON]", default="")
@click.option("--file", "path", metavar="FILE", help="JSON, or TOML with a table [policy].")
@click.option(
    "--time", "age_s", type=Duration("min"),
    help="Archive a file this long after it was rolled, such as 7d; 0 turns the rule off. A number "
    "without a unit is minutes.",
)  # fmt: skip
@click.option(
    "--limit",
    metavar="SIZE",
    help="Archive the oldest files above this total size, such as 90Gi; none turns the rule off.",
)
@click.option(
    "--disk", type=int, help="Archive the oldest files above this percentage of disk usage."
)
@click.option(
    "--messages", metavar="N",
    help="Archive the oldest files above this number of messages; none turns the rule off.",
)  # fmt: skip
@json_option("policy, disks and leases")
def set_policy(
    settings: ConnectionSettings, *, text: str, path: str | None, age_s: float | None,
    limit: str | None, disk: int | None, messages: str | None, as_json: bool,
) -> None:  # fmt: skip
    """Set the policy of a stream, on all of its nodes; needs an operator's certificate.

    \b
    rt archive policy set '{"time": 10080, "limit": "90Gi", "disk": 90}' --identity operator
    rt archive policy set --file policy.toml --identity operator
    rt archive policy set --limit 500Gi --identity operator
    rt archive policy set --messages 10000000 --identity operator

    JSON or a file replaces the whole policy: a rule that it does not name gets its default. Options
    change only the rules that they name.
    """  # noqa: D301 - click reads the backspace character
    minutes = None if age_s is None else math.ceil(age_s / 60)
    given = {"time": minutes, "limit": limit, "disk": disk, "messages": _count(messages)}
    given = {name: value for name, value in given.items() if value is not None}
    if bool(text) + bool(path) + bool(given) != 1:
        raise click.UsageError("give the policy as JSON, as a --file, or by options")
    if given:
        with reading_answers():
            known = dict(settings.ask_latest({"do": "policy"})["policy"])
        wanted = policy_of({**known, **given})
    else:
        wanted = parse_policy(_read(path) if path else text)
    request = {"do": "set-policy", "policy": json.loads(wanted.text())}
    _show(settings.ask(request), as_json=as_json)


def _count(text: str | None) -> int | str | None:
    """Return a number as an int; leave other text, such as `none`, for `policy_of` to check."""
    return int(text) if text is not None and text.isdecimal() else text


def _read(path: str) -> str:
    with open(path, encoding="utf-8") as file:
        try:
            text = file.read(_FILE_CHARACTERS_MAX + 1)
        except UnicodeDecodeError:
            raise Misuse(f"{path} is not text; name a file with a policy as JSON or TOML") from None
    if len(text) > _FILE_CHARACTERS_MAX:
        raise Misuse(f"{path} is longer than {_FILE_CHARACTERS_MAX} characters; not a policy")
    return text


def _show(answer: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        print_json(answer)
        return
    with reading_answers():
        _print(answer)


def _print(answer: dict[str, Any]) -> None:
    say(json.dumps(answer["policy"]))
    say(f"files before {answer['archived_to']} are archived" + (
        "; no policy has been set, this is the default" if answer["is_default"] else ""
    ))  # fmt: skip
    for each in answer["disks"]:
        say(f"disk of {each['node']}: {each['percent']} % of {size_text(each['total'])} used")
    for each in answer["leases"]:
        say(f"{each['holder']} holds files until {time_text(each['until_ns'])}")
