"""`rt group`: shows and moves the groups whose members divide a stream."""

from typing import Any, Final

import click

from rt.cli.console import note, print_json, table
from rt.cli.groups import CommandGroup
from rt.cli.link import reading_answers
from rt.cli.options import click_options, json_option
from rt.client.settings import ConnectionSettings
from rt.log.start import parse_start
from rt.names import parse_cursor
from rt.text import printable

_HEADINGS: Final = ("group", "position", "messages behind", "bytes", "seconds", "claims", "members")
_CLAIM_HEADINGS: Final = ("claim", "from", "to", "deliveries")
_CLAIM_FIELDS: Final = ("number", "first", "end", "deliveries")


@click.group(cls=CommandGroup)
def group() -> None:
    """Show and change groups: programs that divide the messages of a stream among them.

    A group hands each message to one of its members (rt.connect(...).subscriber(group="etl")).

    \b
    rt group list --stream flights --nodes n1:7420 --identity spark
    rt group show etl --config clients.toml
    """  # noqa: D301 - click reads the backspace character


@group.command("list")
@click_options(ConnectionSettings, "pull")
@json_option("the groups")
def list_groups(settings: ConnectionSettings, *, as_json: bool) -> None:
    """List the groups of a stream, how far each lags, and how many members it has.

    \b
    rt group list --config clients.toml
    """  # noqa: D301 - click reads the backspace character
    rows = _groups(settings, {"do": "groups"})
    if as_json:
        print_json(rows)
    elif not rows:
        note(f"stream {settings.stream} has no groups")
    else:
        _show(rows)


@group.command()
@click.argument("name")
@click_options(ConnectionSettings, "pull")
@json_option("the group")
def show(settings: ConnectionSettings, *, name: str, as_json: bool) -> None:
    """Show one group, and the ranges that its members hold.

    Members are known to the node that leads; another one lists none.

    \b
    rt group show etl --config clients.toml
    """  # noqa: D301 - click reads the backspace character
    rows = _groups(settings, {"do": "groups", "name": parse_cursor(name)})
    if as_json:
        print_json(rows[0])
        return
    _show(rows)
    with reading_answers():
        claims = [[printable(str(each[field])) for field in _CLAIM_FIELDS]
                  for each in rows[0]["claims"]]  # fmt: skip
        members = [printable(str(each)) for each in rows[0]["members"]]
    if claims:
        click.echo("\n" + table(_CLAIM_HEADINGS, claims))
    if members:
        click.echo("\nmembers: " + ", ".join(members))


@group.command()
@click.argument("name")
@click.option(
    "--to", "start", metavar="START", required=True,
    help="earliest, latest, a position (0.0.4096), last:N, or a time (ISO 8601).",
)  # fmt: skip
@click_options(ConnectionSettings, "pull")
@json_option("the outcome")
def reset(settings: ConnectionSettings, *, name: str, start: str, as_json: bool) -> None:
    """Move a group; what its members hold now does not count any more.

    Messages after the new position are delivered again; messages before it are not.

    \b
    rt group reset etl --to last:100 --config clients.toml
    """  # noqa: D301 - click reads the backspace character
    parse_start(start)
    answer = settings.ask({"do": "group-reset", "name": parse_cursor(name), "start": start})
    if as_json:
        print_json(answer)
    else:
        note(f"group {name} moved to {printable(str(answer.get('position')))}")


@group.command()
@click.argument("name")
@click_options(ConnectionSettings, "pull")
def forget(settings: ConnectionSettings, *, name: str) -> None:
    """Remove a group; its members are refused from then on.

    \b
    rt group forget etl --config clients.toml
    """  # noqa: D301 - click reads the backspace character
    settings.ask({"do": "group-forget", "name": parse_cursor(name)})
    note(f"group {name} forgotten")


def _groups(settings: ConnectionSettings, request: dict[str, Any]) -> list[dict[str, Any]]:
    answer = settings.ask(request)
    with reading_answers():
        return [dict(row) for row in answer["groups"]]


def _show(rows: list[dict[str, Any]]) -> None:
    with reading_answers():
        cells = [_cells(row) for row in rows]
    click.echo(table(_HEADINGS, cells))


def _cells(row: dict[str, Any]) -> list[str]:
    lag = [f"{row[name]:,}" if name in row else "?" for name in ("messages", "bytes", "seconds")]
    cells = [row["group"], row["position"], *lag, len(row["claims"]), len(row["members"])]
    return [printable(str(each)) for each in cells]
