"""The command reference as Markdown, made from the commands' own help."""

import inspect
from collections.abc import Iterator
from typing import Final

import click

from rt.cli.common.exits import CODES_HELP
from rt.cli.program import rt

# options of every command, described once
COMMON: Final = frozenset({"verbose", "debug", "log_format", "help"})


def command_reference() -> str:
    """Return the page: the common options, then each command."""
    context = program_context()
    parts = ["# Commands", _prose(rt), "## Options of every command"]
    parts += [
        _options(rt, context, all_of=True),
        "## Exit codes",
        _code_block(CODES_HELP.partition("Exit codes:\n")[2]),
    ]
    for command, inner in commands(rt, context):
        depth = len(inner.command_path.split())
        parts += [f"{'#' * depth} {inner.command_path}", _prose(command)]
        if not isinstance(command, click.Group):
            parts += [_code_block(_usage(command, inner)), _options(command, inner)]
    return "\n\n".join(part for part in parts if part) + "\n"


def program_context() -> click.Context:
    """Return a context of `rt` as its command line makes it.

    A command remembers the help option of the first context that asks for it.
    """
    return click.Context(rt, info_name="rt", **rt.context_settings)


def commands(
    group: click.Group, context: click.Context
) -> Iterator[tuple[click.Command, click.Context]]:
    """Yield each command below a group, with its context, in the order of its help."""
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if command is None or command.hidden:
            continue
        inner = click.Context(command, info_name=name, parent=context)
        yield command, inner
        if isinstance(command, click.Group):
            yield from commands(command, inner)


def _prose(command: click.Command) -> str:
    """Return the paragraphs of a help text; those that click keeps as they are become code."""
    paragraphs = inspect.cleandoc(command.help or "").split("\n\n")
    return "\n\n".join(
        _code_block(text.removeprefix("\b\n")) if text.startswith("\b") else _escaped(text)
        for text in paragraphs
    )


def _usage(command: click.Command, context: click.Context) -> str:
    return " ".join([context.command_path, *command.collect_usage_pieces(context)])


def _options(command: click.Command, context: click.Context, *, all_of: bool = False) -> str:
    rows = [
        f"| `{record[0]}` | {_cell(record[1])} |"
        for option in command.get_params(context)
        if all_of or option.name not in COMMON
        if (record := option.get_help_record(context)) is not None and record[1]
    ]
    return "\n".join(["| option | |", "|---|---|", *rows]) if rows else ""


def _cell(text: str) -> str:
    return " ".join(_escaped(text).split())


def _escaped(text: str) -> str:
    """Return plain text escaped for Markdown."""
    return "".join(f"\\{each}" if each in "*[]<`|" else each for each in text)


def _code_block(text: str) -> str:
    return f"```text\n{inspect.cleandoc(text)}\n```"
