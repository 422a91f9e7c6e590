"""Logs: formats log records for stderr, one line each, and sets which levels are shown."""

import logging
import sys
from typing import Any, Final

import click

from rt.text import json_text, printable, time_text

TEXT, JSON = "text", "json"
# fields of `extra` that are shown
_DETAILS: Final = ("event", "term", "hop", "session", "node", "position")
_FORMAT: Final = "%(asctime)s %(levelname)s %(name)s: %(message)s"


class LineFormatter(logging.Formatter):
    """Formats a record as one line, even if it has newlines from a peer; a traceback follows it."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        """Return the line, with control characters escaped."""
        return printable(super().formatMessage(record))

    def formatException(self, ei: Any) -> str:  # noqa: N802 - logging's name
        """Return the traceback, with control characters escaped within each line."""
        return "\n".join(map(printable, super().formatException(ei).split("\n")))


class JsonFormatter(logging.Formatter):
    """Formats a record as one JSON object a line, for a program that collects logs."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the object: time, level, logger, message, event and the event's details."""
        fields = {
            "ts": time_text(int(record.created * 1e9)), "level": record.levelname.lower(),
            "logger": record.name, "msg": printable(record.getMessage()),
            **{name: getattr(record, name) for name in _DETAILS if hasattr(record, name)},
        }  # fmt: skip
        if record.exc_info:
            fields["traceback"] = self.formatException(record.exc_info)
        return json_text(fields)


def configure_log(level: int) -> None:
    """Log to stderr as text from now on.

    Args:
        level: The lowest level that is shown.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(LineFormatter(_FORMAT))
    handler.setLevel(level)  # other handlers, such as the page's, may want more than stderr shows
    logging.basicConfig(level=level, handlers=[handler], force=True)


def use_format(form: str) -> None:
    """Switch the log's format to `TEXT` or `JSON`."""
    for handler in logging.getLogger().handlers:
        handler.setFormatter(JsonFormatter() if form == JSON else LineFormatter(_FORMAT))


def format_option() -> click.Option:
    """Return the option `--log-format`; if a user gives it, it sets the format of the log."""
    return click.Option(
        ["--log-format"], type=click.Choice([TEXT, JSON]), envvar="RT_LOG_FORMAT",
        expose_value=False, callback=_take_format,
        hidden=True,
    )  # fmt: skip


def add_verbosity(command: click.Command) -> None:
    """Let a command and its subcommands accept -v and --debug too, as `rt` itself does.

    Only `rt --help` lists them: the same three lines in sixty other help texts would say nothing
    new.
    """
    if any(param.name == "verbose" for param in command.params):
        return
    command.params += [
        click.Option(["-v", "--verbose"], is_flag=True, expose_value=False,
                     callback=_lower(logging.INFO), hidden=True),
        click.Option(["--debug"], is_flag=True, expose_value=False,
                     callback=_lower(logging.DEBUG), hidden=True),
        format_option(),
    ]  # fmt: skip
    if isinstance(command, click.Group):
        for part in command.commands.values():
            add_verbosity(part)


def _lower(level: int) -> Any:
    def lower(_context: click.Context, _param: click.Parameter, value: Any) -> None:
        root = logging.getLogger()
        if value and root.level > level:
            root.setLevel(level)
            for handler in root.handlers:
                handler.setLevel(level)

    return lower


def _take_format(_context: click.Context, _param: click.Parameter, value: Any) -> None:
    if value is not None:
        use_format(value)
