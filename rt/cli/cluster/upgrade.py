"""`rt cluster upgrade`: shows and raises the level of the formats that a cluster may use."""

from typing import Any

import click

from rt.cli.common.command_group import CommandGroup
from rt.cli.common.console import print_json, say
from rt.cli.common.link import link_options
from rt.cli.common.options import flag, json_option
from rt.client.readers.settings import ConnectionSettings
from rt.errors import Refused
from rt.net.admin import reading_answers
from rt.text import printable, time_text


@click.group(cls=CommandGroup)
def upgrade() -> None:
    """Show whether an update of the nodes can be undone, and make the update final.

    Update the nodes one by one, and take as long as you need. Before finalize, nothing is written
    that the previous version of rt cannot read, so any node may go back to that version.

    \b
    rt cluster upgrade status --config flights/clients.toml
    rt cluster upgrade finalize --config flights/clients.toml
    """  # noqa: D301 - click reads the backspace character


@upgrade.command()
@link_options("archive")
@json_option("the level and the nodes")
def status(settings: ConnectionSettings, *, as_json: bool) -> None:
    """Show the level of the cluster's formats, the level each node reads, and what finalize adds.

    \b
    rt cluster upgrade status --config flights/clients.toml
    """  # noqa: D301 - click reads the backspace character
    answer = settings.ask({"do": "level"})
    if as_json:
        print_json(answer)
    else:
        _show(answer)


@upgrade.command()
@link_options("archive")
@flag("--dry-run", help="Only say whether the update can be made final, and what that adds.")
@json_option("the level and the nodes")
def finalize(settings: ConnectionSettings, *, dry_run: bool, as_json: bool) -> None:
    """Let the cluster use the newest formats; from then on its nodes cannot go back.

    All members must be up and run a version of rt that reads the newest formats. Afterwards, nodes
    with an earlier version are refused by the others. Needs an operator's certificate.

    \b
    rt cluster upgrade finalize --dry-run --config flights/clients.toml
    rt cluster upgrade finalize --config flights/clients.toml
    """  # noqa: D301 - click reads the backspace character
    answer = settings.ask({"do": "level" if dry_run else "raise-level"})
    with reading_answers():
        obstacles = [printable(str(each)) for each in answer["obstacles"]]
    if as_json:
        print_json(answer)
    else:
        _show(answer)
    if obstacles:
        raise Refused("level", f"the upgrade cannot be finalized now: {'; '.join(obstacles)}")


def _show(answer: dict[str, Any]) -> None:
    with reading_answers():
        level, newest = int(answer["level"]), int(answer["newest"])
        agreed, nodes = answer["agreed"], list(answer["nodes"])
        features = {int(each["level"]): each for each in answer["features"]}
        rows = [
            (printable(str(each["name"])), int(each["reads"]), printable(str(each["software"])))
            for each in nodes
        ]
        obstacles = [printable(str(each)) for each in answer["obstacles"]]
        raised = "" if agreed is None else (
            f", set by {printable(str(agreed['by']))} at {time_text(int(agreed['at_ns']))}"
        )  # fmt: skip
        ahead = [
            printable(str(each["words"])) for number, each in sorted(features.items())
            if level < number <= newest
        ]  # fmt: skip
        since = printable(str(features[level]["since"])) if level in features else ""
    say(f"level     {level} of the cluster's formats{raised}")
    for name, reads, software in rows:
        known = f"{software}, reads up to level {reads}" if reads else "not connected now"
        say(f"node      {name}: {known}")
    oldest = f"rt {since} and later" if since else "every version of rt that its nodes ran"
    say(f"downgrade possible to {oldest}: all that is written can be read there")
    if level >= newest:
        say("next      nothing: this is the newest level that its nodes know")
        return
    for words in ahead:
        say(f"next      {words}")
    for words in obstacles:
        say(f"waits     {words}")
    if not obstacles:
        say("          rt cluster upgrade finalize allows it, and ends the way back")
