"""Shared by `rt group` and `rt cursor registered`: positions that the nodes keep under a name."""

from collections.abc import Callable, Sequence
from typing import Any, Final

import click

from rt.cli.common.console import print_json, say, table
from rt.cli.common.link import look
from rt.client.readers.settings import ConnectionSettings
from rt.log.read.start import parse_start
from rt.names import parse_cursor
from rt.net.admin import reading_answers
from rt.text import printable

LAG_HEADINGS: Final = ("messages behind", "bytes", "seconds")
_LAG_FIELDS: Final = ("messages", "bytes", "seconds")

Row = dict[str, Any]

to_option = click.option(
    "--to", "start", metavar="START", required=True,
    help="earliest, latest, a position (0.0.4096), last:N, or a time (ISO 8601).",
)  # fmt: skip


def ask_rows(settings: ConnectionSettings, request: Row, field: str) -> list[Row]:
    """Return the rows that the nodes list under a field of their answer."""
    answer = look(settings, request)
    with reading_answers():
        return [dict(row) for row in answer[field]]


def show_rows(
    headings: Sequence[str], rows: Sequence[Row], cells: Callable[[Row], list[str]]
) -> None:
    """Print rows of an answer as a table."""
    with reading_answers():
        printed = [cells(row) for row in rows]
    click.echo(table(headings, printed))


def lag_cells(row: Row) -> list[str]:
    """Return how far an object lags the end of the stream, as cells of `LAG_HEADINGS`."""
    return [f"{row[name]:,}" if name in row else "?" for name in _LAG_FIELDS]


def move(settings: ConnectionSettings, kind: str, name: str, start: str, *, as_json: bool) -> None:
    """Move a `cursor` or `group` to a start, and print the resulting position."""
    parse_start(start)
    answer = settings.ask({"do": f"{kind}-reset", "name": parse_cursor(name), "start": start})
    if as_json:
        print_json(answer)
    else:
        say(f"{kind} {name} moved to {printable(str(answer.get('position')))}")


def remove(settings: ConnectionSettings, kind: str, name: str) -> None:
    """Remove a `cursor` or `group`."""
    settings.ask({"do": f"{kind}-forget", "name": parse_cursor(name)})
    say(f"{kind} {name} forgotten")
