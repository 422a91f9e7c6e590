"""`rt cursor registered`: shows and moves the cursors that the nodes of a stream keep."""

from typing import Final

import click

from rt.cli.common.command_group import CommandGroup
from rt.cli.common.completing import complete_asked
from rt.cli.common.console import note, print_json
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
from rt.text import printable, time_text

_HEADINGS: Final = (
    "cursor", "position", *LAG_HEADINGS, "pinned", "stored", "reader",
)  # fmt: skip


@click.group(cls=CommandGroup)
def registered() -> None:
    """Show and change the cursors that the nodes of a stream keep.

    \b
    rt cursor registered list --stream flights --nodes n1:7420 --identity spark
    """  # noqa: D301 - click reads the backspace character


@registered.command("list")
@click_options(ConnectionSettings, "pull")
@json_option("the cursors")
def list_registered(settings: ConnectionSettings, *, as_json: bool) -> None:
    """List the registered cursors of a stream, and how far each lags.

    A lag in seconds is the time between merging the first unacknowledged message and the last one.

    \b
    rt cursor registered list --config clients.toml
    """  # noqa: D301 - click reads the backspace character
    rows = ask_rows(settings, {"do": "cursors"}, "cursors")
    if as_json:
        print_json(rows)
    elif not rows:
        note(f"no cursors are registered for stream {settings.stream}")
    else:
        show_rows(_HEADINGS, rows, _cells)


@registered.command()
@click.argument("name", shell_complete=complete_asked("cursors"))
@click_options(ConnectionSettings, "pull")
@json_option("the cursor")
def show(settings: ConnectionSettings, *, name: str, as_json: bool) -> None:
    """Show one registered cursor.

    \b
    rt cursor registered show etl --config clients.toml
    """  # noqa: D301 - click reads the backspace character
    rows = ask_rows(settings, {"do": "cursors", "name": parse_cursor(name)}, "cursors")
    if as_json:
        print_json(rows[0])
    else:
        show_rows(_HEADINGS, rows, _cells)


@registered.command()
@click.argument("name", shell_complete=complete_asked("cursors"))
@to_option
@click_options(ConnectionSettings, "pull")
@json_option("the outcome")
def reset(settings: ConnectionSettings, *, name: str, start: str, as_json: bool) -> None:
    """Move a registered cursor; its reader, if there is one, is fenced.

    Messages after the new position are delivered again; messages before it are not.

    \b
    rt cursor registered reset etl --to last:100 --config clients.toml
    """  # noqa: D301 - click reads the backspace character
    move(settings, "cursor", name, start, as_json=as_json)


@registered.command()
@click.argument("name", shell_complete=complete_asked("cursors"))
@click_options(ConnectionSettings, "pull")
def forget(settings: ConnectionSettings, *, name: str) -> None:
    """Remove a registered cursor; its reader, if there is one, is refused from then on.

    \b
    rt cursor registered forget etl --config clients.toml
    """  # noqa: D301 - click reads the backspace character
    remove(settings, "cursor", name)


def _cells(row: Row) -> list[str]:
    pinned = f"{row['pin_bytes']:,}" if row["pin_bytes"] else ""
    cells = [
        row["cursor"],
        row["position"],
        *lag_cells(row),
        pinned,
        time_text(row["stored_ns"])[:19],
    ]
    return [printable(str(each)) for each in (*cells, row["holder"])]
