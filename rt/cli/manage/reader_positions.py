"""Reader positions: the commands that `rt group` and `rt cursor registered` have in common."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import click

from rt.cli.common.completing import complete_asked
from rt.cli.common.console import print_json, say, show_outcome, table
from rt.cli.common.link import ask_latest_or_any, link_options
from rt.cli.common.options import Command
from rt.client.readers.settings import ConnectionSettings
from rt.log.read.start import parse_start
from rt.names import parse_cursor
from rt.net.admin import reading_answers
from rt.text import printable

_LAG: Final = ("messages", "bytes", "seconds")

Row = dict[str, Any]

to_option = click.option(
    "--to", "start", metavar="START", required=True,
    help="Where to start: earliest, latest, a position (0.0.4096), last:N, or a time (ISO 8601).",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of reader whose positions the nodes keep, either groups or registered cursors."""

    noun: str  # group or cursor; requests use it too
    path: str  # the beginning of its commands, such as `rt group`
    reset: str  # first sentence of the help of its command `reset`
    forget: str  # first sentence of the help of its command `forget`
    headings: Sequence[str]  # of further columns, after the name, the position and the lag
    cells: Callable[[Row], Sequence[object]]  # returns a row's cells in these columns
    details: Callable[[Row], None] = lambda _: None  # prints what `show` adds below the table

    @property
    def field(self) -> str:
        """The plural of the noun; it names the request for a list, and the list in the answer."""
        return f"{self.noun}s"

    def ask(self, settings: ConnectionSettings, **which: str) -> list[Row]:
        """Return the groups or cursors that the nodes keep, a row for each.

        Args:
            settings: How to reach the nodes.
            which: `name="etl"` asks for the one of that name; nothing asks for all.
        """
        answer = ask_latest_or_any(settings, {"do": self.field, **which})
        with reading_answers():
            return [dict(row) for row in answer[self.field]]

    def show(self, rows: Sequence[Row]) -> None:
        """Print rows as a table."""
        headings = (self.noun, "position", "messages behind", *_LAG[1:], *self.headings)
        with reading_answers():
            printed = [[printable(str(each)) for each in self._all_cells(row)] for row in rows]
        click.echo(table(headings, printed))

    def _all_cells(self, row: Row) -> list[object]:
        lag = [f"{row[name]:,}" if name in row else "?" for name in _LAG]
        return [row[self.noun], row["position"], *lag, *self.cells(row)]


def add_commands(group: click.Group, kind: Kind) -> None:
    """Give a group the commands list, show, reset and forget."""
    for make in (_list_command, _show_command, _reset_command, _forget_command):
        group.add_command(make(kind))


def _list_command(kind: Kind) -> click.Command:
    first = f"List the {kind.field} that a stream's nodes keep, and how far each lags."

    @click.command("list", help=_help(first, f"{kind.path} list", _SECONDS))
    @link_options("pull", json=f"the {kind.field}")
    def command(settings: ConnectionSettings, *, as_json: bool) -> None:
        rows = kind.ask(settings)
        if as_json:
            print_json(rows)
        elif not rows:
            say(f"the nodes of stream {settings.stream} keep no {kind.field}")
        else:
            kind.show(rows)

    return command


def _show_command(kind: Kind) -> click.Command:
    @click.command("show", help=_help(f"Show one {kind.noun}.", f"{kind.path} show etl"))
    @_name_argument(kind)
    @link_options("pull", json=f"the {kind.noun}")
    def command(settings: ConnectionSettings, *, name: str, as_json: bool) -> None:
        rows = kind.ask(settings, name=parse_cursor(name))
        if as_json:
            print_json(rows[0])
        else:
            kind.show(rows)
            kind.details(rows[0])

    return command


def _reset_command(kind: Kind) -> click.Command:
    @click.command("reset", help=_help(kind.reset, f"{kind.path} reset etl --to last:100", _AGAIN))
    @_name_argument(kind)
    @to_option
    @link_options("pull", json="the outcome")
    def command(settings: ConnectionSettings, *, name: str, start: str, as_json: bool) -> None:
        parse_start(start)
        request = {"do": f"{kind.noun}-reset", "name": parse_cursor(name), "start": start}
        answer = settings.ask(request)
        words = f"{kind.noun} {name} moved to {printable(str(answer.get('position')))}"
        show_outcome(answer, words, as_json=as_json)

    return command


def _forget_command(kind: Kind) -> click.Command:
    @click.command("forget", help=_help(kind.forget, f"{kind.path} forget etl"))
    @_name_argument(kind)
    @link_options("pull")
    def command(settings: ConnectionSettings, *, name: str) -> None:
        settings.ask({"do": f"{kind.noun}-forget", "name": parse_cursor(name)})
        say(f"{kind.noun} {name} forgotten")

    return command


def _name_argument(kind: Kind) -> Callable[[Command], Command]:
    return click.argument("name", shell_complete=complete_asked(kind.field))


_SECONDS: Final = (
    "The lag in seconds is the time from the merge of the first message that is not acknowledged "
    "to the merge of the last message."
)
_AGAIN: Final = "Messages after the new position are delivered again; messages before it are not."


def _help(first: str, example: str, more: str = "") -> str:
    return "\n\n".join(filter(None, (first, more, f"\b\n{example} --config clients.toml")))
