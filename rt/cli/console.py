"""Console: what a command says to a person on stderr; colours and progress on a terminal only."""

import os
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, Self

import click

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress

_SHOW_AFTER_S: Final = 1.0
_SHOW_EVERY_S: Final = 0.1


def complain(words: str) -> None:
    """Say why the program ends."""
    click.echo(f"{_styled('rt:', fg='red', bold=True)} {words}", err=True)


def note(words: str) -> None:
    """Say something beside the output."""
    click.echo(f"{_styled('rt:', fg='cyan')} {words}", err=True)


def counted(number: int, noun: str = "message") -> str:
    """Return a number with its noun.

    >>> counted(1), counted(2000, "file")
    ('1 message', '2,000 files')
    """
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def table(names: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return rows in aligned columns, as wide as they need: they may go into a pipe.

    >>> print(table(["file", "bytes"], [["log.0.0", "12"]]))
    file     bytes
    log.0.0  12
    """
    columns = zip(names, *rows, strict=True)
    widths = [max(map(len, column)) for column in columns]
    layout = "  ".join(f"{{:<{width}}}" for width in widths).format
    head, *lines = (layout(*row).rstrip() for row in [names, *rows])
    return "\n".join([_styled(head, to=sys.stdout, bold=True), *lines])


def _styled(text: str, to: Any = None, **style: Any) -> str:
    stream = to or sys.stderr
    plain = os.environ.get("NO_COLOR") or not stream.isatty()
    return text if plain else click.style(text, **style)


class ProgressBar:
    """One line on stderr that tells how far a long command came.

    Nothing is shown before a second has passed, nor where stderr is no terminal.
    """

    def __init__(self, total: int | None = None) -> None:
        self._total = total
        self._bar: RichProgress | None = None
        self._next_s = time.monotonic() + _SHOW_AFTER_S if sys.stderr.isatty() else float("inf")

    def show(self, words: str, done: int = 0) -> None:
        """Tell where the work stands; cheap enough to be called for every piece of work.

        Args:
            words: what was done so far.
            done: how much of the total.
        """
        now = time.monotonic()
        if now >= self._next_s:
            self._next_s = now + _SHOW_EVERY_S
            self._draw(words, done)

    def _draw(self, words: str, done: int) -> None:
        if self._bar is None:
            self._bar = _bar(self._total)
            self._bar.start()
        self._bar.update(self._bar.task_ids[0], description=words, completed=done)
        self._bar.refresh()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        if self._bar is not None:
            self._bar.stop()


def _bar(total: int | None) -> "RichProgress":
    # heavy, and most commands are done before it is needed
    from rich.console import Console  # noqa: PLC0415
    from rich.progress import BarColumn, SpinnerColumn, TextColumn  # noqa: PLC0415
    from rich.progress import Progress as RichProgress  # noqa: PLC0415

    words = TextColumn("{task.description}", markup=False)
    columns = [words, BarColumn()] if total else [SpinnerColumn(), words]
    bar = RichProgress(*columns, console=Console(stderr=True), transient=True, auto_refresh=False)
    bar.add_task("", total=total)
    return bar
