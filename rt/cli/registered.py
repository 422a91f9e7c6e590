"""`rt cursor registered`: shows and moves the cursors that the nodes of a stream keep."""

from typing import Any, Final

import click

from rt.cli.console import note, print_json, table
from rt.cli.groups import CommandGroup
from rt.cli.link import reading_answers
from rt.cli.options import click_options, json_option
from rt.client.settings import ConnectionSettings
from rt.log.start import parse_start
from rt.names import parse_cursor
from rt.text import printable, time_text

_HEADINGS: Final = (
    "cursor", "position", "messages behind", "bytes", "seconds", "pinned", "stored", "reader",
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

    Seconds are between the merging of the first message that is not acknowledged and of the last.

    \b
    rt cursor registered list --config clients.toml
    """  # noqa: D301 - click reads the backspace character
    rows = _cursors(settings, {"do": "cursors"})
    if as_json:
        print_json(rows)
    elif not rows:
        note(f"no cursors are registered for stream {settings.stream}")
    else:
        _show(rows)


@registered.command()
@click.argument("name")
@click_options(ConnectionSettings, "pull")
@json_option("the cursor")
def show(settings: ConnectionSettings, *, name: str, as_json: bool) -> None:
    """Show one registered cursor.

    \b
    rt cursor registered show etl --config clients.toml
    """  # noqa: D301 - click reads the backspace character
    rows = _cursors(settings, {"do": "cursors", "name": parse_cursor(name)})
    if as_json:
        print_json(rows[0])
    else:
        _show(rows)


@registered.command()
@click.argument("name")
@click.option(
    "--to", "start", metavar="START", required=True,
    help="earliest, latest, a position (0.0.4096), last:N, or a time (ISO 8601).",
)  # fmt: skip
@click_options(ConnectionSettings, "pull")
@json_option("the outcome")
def reset(settings: ConnectionSettings, *, name: str, start: str, as_json: bool) -> None:
    """Move a registered cursor; its reader, if there is one, is fenced.

    Messages after the new position are delivered again; messages before it are not.

    \b
    rt cursor registered reset etl --to last:100 --config clients.toml
    """  # noqa: D301 - click reads the backspace character
    parse_start(start)
    answer = settings.ask({"do": "cursor-reset", "name": parse_cursor(name), "start": start})
    if as_json:
        print_json(answer)
    else:
        note(f"cursor {name} moved to {printable(str(answer.get('position')))}")


@registered.command()
@click.argument("name")
@click_options(ConnectionSettings, "pull")
def forget(settings: ConnectionSettings, *, name: str) -> None:
    """Remove a registered cursor; its reader, if there is one, is refused from then on.

    \b
    rt cursor registered forget etl --config clients.toml
    """  # noqa: D301 - click reads the backspace character
    settings.ask({"do": "cursor-forget", "name": parse_cursor(name)})
    note(f"cursor {name} forgotten")


def _cursors(settings: ConnectionSettings, request: dict[str, Any]) -> list[dict[str, Any]]:
    answer = settings.ask(request)
    with reading_answers():
        return [dict(row) for row in answer["cursors"]]


def _show(rows: list[dict[str, Any]]) -> None:
    with reading_answers():
        cells = [_cells(row) for row in rows]
    click.echo(table(_HEADINGS, cells))


def _cells(row: dict[str, Any]) -> list[str]:
    lag = [f"{row[name]:,}" if name in row else "?" for name in ("messages", "bytes", "seconds")]
    pinned = f"{row['pin_bytes']:,}" if row["pin_bytes"] else ""
    cells = [row["cursor"], row["position"], *lag, pinned, time_text(row["stored_ns"])[:19]]
    return [printable(str(each)) for each in (*cells, row["holder"])]
