"""`rt help`, and HelpContext, which wraps examples and lists to fit a narrow terminal."""

import copy
import os
import re
import shutil
import sys
import textwrap
from typing import Any, Final

import click

from rt.text import counted

_COMMAND: Final = re.compile(r" +(\S.*\| )?rt ")  # the line of an example
_WORD: Final = re.compile(r"""(?:'[^']*'|"[^"]*"|\S)+""")  # one word, quoted as in a shell
_FULL: Final = "help_all"  # name of the option that shows all options
_ITEM: Final = re.compile(r" *\S+ {2,}")  # a list entry: a name or number, then its meaning


class _Folding(click.HelpFormatter):
    """A formatter of help texts that also wraps examples and lists, which click leaves as is."""

    def getvalue(self) -> str:
        """Return the help text."""
        text = super().getvalue()
        if not (sys.stdout.isatty() or "COLUMNS" in os.environ):
            return text
        room = shutil.get_terminal_size().columns
        return "".join(f"{folded(line, room)}\n" for line in text.splitlines())


class HelpContext(click.Context):
    """A click context that wraps its help text; `fold_help` makes a command use it."""

    formatter_class = _Folding


def fold_help(command: click.Command) -> None:
    """Make a command and its subcommands wrap their help."""
    command.context_class = HelpContext
    if isinstance(command, click.Group):
        for part in command.commands.values():
            fold_help(part)


def add_full_help(command: click.Command) -> None:
    """Add the option --help-all to each command that hides options: this one and those below.

    Hidden options without a help text, such as --debug, do not count: `rt --help` lists them.
    """
    if any(each.name == _FULL for each in command.params):
        return
    left = sum(map(_is_left_out, command.params))
    if left:
        words = f"Show {counted(left, 'more option')} too, and exit."
        command.params.append(click.Option(
            ["--help-all", _FULL], is_flag=True, is_eager=True, expose_value=False,
            callback=_show_full_help, help=words,
        ))  # fmt: skip
    if isinstance(command, click.Group):
        for part in command.commands.values():
            add_full_help(part)


def _is_left_out(parameter: click.Parameter) -> bool:
    return isinstance(parameter, click.Option) and parameter.hidden and bool(parameter.help)


def _show_full_help(context: click.Context, _parameter: click.Parameter, value: Any) -> None:
    if not value or context.resilient_parsing:
        return
    whole = copy.copy(context.command)
    whole.params = [copy.copy(each) for each in whole.params if each.name != _FULL]
    for each in whole.params:
        if isinstance(each, click.Option):
            each.hidden = each.hidden and not each.help
    shown = whole.context_class(whole, info_name=context.info_name, parent=context.parent)
    click.echo(whole.get_help(shown))
    context.exit()


def folded(line: str, room: int) -> str:
    r"""Break a line at spaces into lines of at most `room` columns, as far as spaces allow.

    An example stays a valid shell command: all of its lines but the last end with a backslash.

    >>> print(folded("  rt publish --session jfk --key-field 'the flight'", 30))
      rt publish --session jfk \
        --key-field 'the flight'
    >>> print(folded("  1  degraded: it works, but a node is down", 30))
      1  degraded: it works, but a
         node is down
    """
    if len(line) <= room:
        return line
    start = len(line) - len(line.lstrip())
    if _COMMAND.match(line):
        return " \\\n".join(_broken(line, start, room - 2))
    item = _ITEM.match(line)
    lines = textwrap.wrap(
        line, room, subsequent_indent=" " * (item.end() if item else start),
        break_long_words=False, break_on_hyphens=False,
    )  # fmt: skip
    # A word wider than its column starts further left.
    return "\n".join(each if len(each) <= room else each.strip().rjust(room) for each in lines)


def _broken(line: str, start: int, room: int) -> list[str]:
    """Split an example into lines of at most `room` columns, and indent all but the first."""
    lines = [" " * (start - 1)]
    for word in _WORD.findall(line):
        if len(lines[-1]) + 1 + len(word) > room and lines[-1].strip():
            lines.append(" " * (start + 1))
        lines[-1] += f" {word}"
    return lines


def _complete(context: click.Context, _parameter: click.Parameter, begun: str) -> list[str]:
    """Complete the name of a subcommand of the command typed so far."""
    here = context.find_root().command
    for word in context.params.get("words") or ():
        found = here.get_command(context, word) if isinstance(here, click.Group) else None
        if found is None:
            return []
        here = found
    names = here.list_commands(context) if isinstance(here, click.Group) else []
    return [name for name in names if name.startswith(begun)]


@click.command("help")
@click.argument("words", metavar="[COMMAND]...", nargs=-1, shell_complete=_complete)
@click.pass_context
def show_help(context: click.Context, words: tuple[str, ...]) -> None:
    """Show the help of a command, as its option --help does.

    \b
    rt help
    rt help publish
    rt help archive policy set
    """  # noqa: D301 - click reads the backspace character
    here = context.find_root()
    for place, word in enumerate(words):
        group = here.command
        if not isinstance(group, click.Group):
            raise click.UsageError(f"{here.command_path} has no subcommands", here)
        name, command, _ = group.resolve_command(here, list(words[place:]))
        if command is None:
            raise click.UsageError(f"no such command: {word!r}", here)
        here = command.context_class(command, info_name=name, parent=here)
    click.echo(here.get_help())
