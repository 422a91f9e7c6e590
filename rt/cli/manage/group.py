"""`rt group`: shows and moves the groups whose members divide a stream."""

from typing import Final

import click

from rt.cli.common.command_group import CommandGroup
from rt.cli.common.completing import complete_asked
from rt.cli.common.console import note, print_json, table
from rt.cli.common.options import click_options, json_option
from rt.cli.common.remembered_places import (
    LAG_HEADINGS,
    Row,
    ask_rows,
    lag_cells,
    move,
    remove,
    show_rows,
    to_option,
)
from rt.client.readers.settings import ConnectionSettings
from rt.names import parse_cursor
from rt.net.admin import reading_answers
from rt.text import printable

_HEADINGS: Final = ("group", "position", *LAG_HEADINGS, "claims", "members")
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
    rows = ask_rows(settings, {"do": "groups"}, "groups")
    if as_json:
        print_json(rows)
    elif not rows:
        note(f"stream {settings.stream} has no groups")
    else:
        show_rows(_HEADINGS, rows, _cells)


@group.command()
@click.argument("name", shell_complete=complete_asked("groups"))
@click_options(ConnectionSettings, "pull")
@json_option("the group")
def show(settings: ConnectionSettings, *, name: str, as_json: bool) -> None:
    """Show one group, and the ranges that its members hold.

    Only the leader knows the members; any other node lists none.

    \b
    rt group show etl --config clients.toml
    """  # noqa: D301 - click reads the backspace character
    rows = ask_rows(settings, {"do": "groups", "name": parse_cursor(name)}, "groups")
    if as_json:
        print_json(rows[0])
        return
    show_rows(_HEADINGS, rows, _cells)
    with reading_answers():
        claims = [[printable(str(each[field])) for field in _CLAIM_FIELDS]
                  for each in rows[0]["claims"]]  # fmt: skip
        members = [printable(str(each)) for each in rows[0]["members"]]
    if claims:
        click.echo("\n" + table(_CLAIM_HEADINGS, claims))
    if members:
        click.echo("\nmembers: " + ", ".join(members))


@group.command()
@click.argument("name", shell_complete=complete_asked("groups"))
@to_option
@click_options(ConnectionSettings, "pull")
@json_option("the outcome")
def reset(settings: ConnectionSettings, *, name: str, start: str, as_json: bool) -> None:
    """Move a group; ranges that its members hold now are revoked.

    Messages after the new position are delivered again; messages before it are not.

    \b
    rt group reset etl --to last:100 --config clients.toml
    """  # noqa: D301 - click reads the backspace character
    move(settings, "group", name, start, as_json=as_json)


@group.command()
@click.argument("name", shell_complete=complete_asked("groups"))
@click_options(ConnectionSettings, "pull")
def forget(settings: ConnectionSettings, *, name: str) -> None:
    """Remove a group; its members are refused from then on.

    \b
    rt group forget etl --config clients.toml
    """  # noqa: D301 - click reads the backspace character
    remove(settings, "group", name)


def _cells(row: Row) -> list[str]:
    cells = [
        row["group"],
        row["position"],
        *lag_cells(row),
        len(row["claims"]),
        len(row["members"]),
    ]
    return [printable(str(each)) for each in cells]
