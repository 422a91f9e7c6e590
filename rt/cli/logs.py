"""Logs: what `-v` and `--debug` show, on every command, one safe line a record."""

import logging
import sys
from typing import Any, Final

import click

from rt.text import printable

_FORMAT: Final = "%(asctime)s %(levelname)s %(name)s: %(message)s"


class LineFormatter(logging.Formatter):
    """Formats a record as one line, whatever a peer put into it; a traceback follows as it is."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        """Return the line, with control characters escaped."""
        return printable(super().formatMessage(record))

    def formatException(self, ei: Any) -> str:  # noqa: N802 - logging's name
        """Return the traceback, with control characters escaped within each line."""
        return "\n".join(map(printable, super().formatException(ei).split("\n")))


def configure_log(level: int) -> None:
    """Log to stderr from now on.

    Args:
        level: The lowest level that is shown.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(LineFormatter(_FORMAT))
    logging.basicConfig(level=level, handlers=[handler], force=True)


def add_verbosity(command: click.Command) -> None:
    """Let a command and its subcommands take -v and --debug too, as `rt` itself does."""
    if any(param.name == "verbose" for param in command.params):
        return
    command.params += [
        click.Option(["-v", "--verbose"], is_flag=True, expose_value=False,
                     callback=_lower(logging.INFO), help="Log to stderr what is going on."),
        click.Option(["--debug"], is_flag=True, expose_value=False,
                     callback=_lower(logging.DEBUG), help="Log everything."),
    ]  # fmt: skip
    if isinstance(command, click.Group):
        for part in command.commands.values():
            add_verbosity(part)


def _lower(level: int) -> Any:
    def lower(_context: click.Context, _param: click.Parameter, value: Any) -> None:
        root = logging.getLogger()
        if value and root.level > level:
            root.setLevel(level)

    return lower
