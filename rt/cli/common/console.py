"""Console: prints output and messages; colours and progress only on a terminal."""

import os
import shutil
import sys
import textwrap
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, Self

import click

from rt.amounts import size_text
from rt.text import json_text, printable

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress

_SHOW_AFTER_S: Final = 1.0
_SHOW_EVERY_S: Final = 0.1


def say(*lines: str) -> None:
    """Print lines to stdout, with control characters escaped.

    Newlines within a line are escaped too: text from a peer must not be able to forge a line.
    """
    click.echo("\n".join(map(printable, lines)))


def print_json(value: Any) -> None:
    """Print a value to stdout as indented JSON, for a script."""
    click.echo(json_text(value, indent=1))


def show_outcome(value: Any, words: str, *, as_json: bool) -> None:
    """Print an outcome: as JSON for a script, or as a sentence for a person."""
    if as_json:
        print_json(value)
    else:
        say(words)


def teller(*, as_json: bool) -> Callable[..., None]:
    """Return the function with which a command prints the sentences of its answer.

    They go to stdout or, with `--json`, to stderr, so that stdout has only the JSON.
    """
    return note if as_json else say


def complain(reason: str) -> None:
    """Print an error to stderr: the reason why the program ends."""
    click.echo(f"{_styled('rt:', fg='red', bold=True)} {printable(reason)}", err=True)


def note(remark: str) -> None:
    """Print a remark to stderr, where it does not mix with the output."""
    click.echo(f"{_styled('rt:', fg='cyan')} {printable(remark)}", err=True)


def table(names: Sequence[str], rows: Sequence[Sequence[str]], spare: Sequence[str] = ()) -> str:
    """Return rows in aligned columns, below the column names.

    If stdout is not a terminal, columns are as wide as needed. On a terminal that is too narrow,
    the columns named in `spare` are left out, one after the other; if that is not enough, each row
    becomes a block of lines, one per cell, so that nothing is cut off or wrapped out of its column.

    >>> print(table(["file", "bytes"], [["log.0.0", "12"]]))
    file     bytes
    log.0.0  12
    """
    safe = [[printable(cell) for cell in row] for row in rows]
    room = shutil.get_terminal_size().columns if sys.stdout.isatty() else sys.maxsize
    columns = [list(column) for column in zip(names, *safe, strict=True)]
    for name in (None, *spare):
        columns = [column for column in columns if column[0] != name]
        widths = [max(map(len, column)) for column in columns]
        if sum(widths) + 2 * (len(widths) - 1) <= room:
            return _aligned(columns, widths)
    return _blocks(names, safe, room)


def _aligned(columns: Sequence[Sequence[str]], widths: Sequence[int]) -> str:
    layout = "  ".join(f"{{:<{width}}}" for width in widths).format
    head, *lines = (layout(*row).rstrip() for row in zip(*columns, strict=True))
    return "\n".join([_styled(head, to=sys.stdout, bold=True), *lines])


def _blocks(names: Sequence[str], rows: Sequence[Sequence[str]], room: int) -> str:
    """Return each row as a block of lines, one for each cell that is not empty."""
    width = max(map(len, names))
    wrapped = textwrap.TextWrapper(
        max(1, room - width - 2), break_long_words=False, break_on_hyphens=False
    ).wrap
    under = "\n" + " " * (width + 2)
    blocks = (
        "\n".join(
            f"{_styled(f'{name:<{width}}', to=sys.stdout, bold=True)}  {under.join(wrapped(cell))}"
            for name, cell in zip(names, row, strict=True)
            if cell
        )
        for row in rows
    )
    return "\n\n".join(blocks)


def _styled(text: str, to: Any = None, **style: Any) -> str:
    stream = to or sys.stderr
    plain = os.environ.get("NO_COLOR") or not stream.isatty()
    return text if plain else click.style(text, **style)


class ProgressBar:
    """A progress line on stderr for a long command.

    It appears after a second, and only on a terminal.
    """

    def __init__(self, total: int | None = None) -> None:
        self.files = 0  # how many `count` has shown
        self._total = total
        self._bar: RichProgress | None = None
        self._next_s = time.monotonic() + _SHOW_AFTER_S if sys.stderr.isatty() else float("inf")

    def show(self, text: str, done: int = 0) -> None:
        """Show progress; cheap enough to call for every piece of work.

        Args:
            text: What has been done so far, for the user.
            done: How much has been done, in the unit of the bar's total.
        """
        now = time.monotonic()
        if now >= self._next_s:
            self._next_s = now + _SHOW_EVERY_S
            self._draw(printable(text), done)

    def count(self, file: str, size: int) -> None:
        """Show that one more file is done: its name, and its size in bytes."""
        self.files += 1
        self.show(f"{file}: {size_text(size)}", self.files)

    def _draw(self, text: str, done: int) -> None:
        if self._bar is None:
            self._bar = _bar(self._total)
            self._bar.start()
        self._bar.update(self._bar.task_ids[0], description=text, completed=done)
        self._bar.refresh()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        if self._bar is not None:
            self._bar.stop()


def _bar(total: int | None) -> "RichProgress":
    # slow to import, and most commands end before it is needed
    from rich.console import Console  # noqa: PLC0415
    from rich.progress import BarColumn, SpinnerColumn, TextColumn  # noqa: PLC0415
    from rich.progress import Progress as RichProgress  # noqa: PLC0415

    text = TextColumn("{task.description}", markup=False)
    columns = [text, BarColumn()] if total else [SpinnerColumn(), text]
    bar = RichProgress(*columns, console=Console(stderr=True), transient=True, auto_refresh=False)
    bar.add_task("", total=total)
    return bar
