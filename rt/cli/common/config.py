"""`rt config`: shows the settings of a command, and where each comes from."""

import copy
from collections.abc import Mapping
from typing import Any, Final

import click

from rt.cli.common.command_group import CommandGroup
from rt.cli.common.console import print_json, table
from rt.cli.common.options import flag, json_option
from rt.cli.common.settings_source import settings_source
from rt.config.settings import Given, explain, kinds_of, settings_of
from rt.errors import Misuse, spoken

_HEADINGS: Final = ("setting", "value", "from")


@click.group(cls=CommandGroup)
def config() -> None:
    """Show the settings of a command, and where each comes from.

    \b
    rt config explain node --config n1.toml
    rt config explain push
    """  # noqa: D301 - click reads the backspace character


@config.command("explain", context_settings={"ignore_unknown_options": True})
@click.argument("command", metavar="COMMAND")
@click.argument("arguments", metavar="[OPTIONS]...", nargs=-1, type=click.UNPROCESSED)
@flag("--set", "only_set", help="Show only settings that differ from their defaults.")
@json_option("the settings")
@click.pass_context
def explain_config(
    context: click.Context, *, command: str, arguments: tuple[str, ...], only_set: bool,
    as_json: bool,
) -> None:  # fmt: skip
    """Show each setting that COMMAND would run with, its value, and where that comes from.

    Values come from these sources, and later ones override earlier ones: defaults, the file of
    --config or RT_CONFIG, the environment, options. COMMAND is not run. Give its options after it.
    Put quotes around a command with a subcommand, such as 'session list'.

    \b
    rt config explain node --config n1.toml --listen 0.0.0.0:7420
    RT_FRAME_BYTES=64Ki rt config explain publish --session jfk
    rt config explain 'session list' --json
    """  # noqa: D301 - click reads the backspace character
    found = _command(context, command)
    given = _given(found, command, list(arguments))
    source = settings_source(found)
    kinds = {} if source is None else kinds_of(source.cls)
    if only_set:
        given = {name: each for name, each in given.items() if each.source != "default"}
    if as_json:
        print_json([
            {"setting": name, "value": kinds[name].text(each.value), "source": each.source}
            for name, each in given.items()
        ])  # fmt: skip
        return
    click.echo(table(_HEADINGS, [
        (name, kinds[name].explained_text(each.value), each.source) for name, each in given.items()
    ]))  # fmt: skip


def explained(program: click.Context, command: str, config_path: str | None) -> Mapping[str, Given]:
    """Return the settings that a command would run with.

    Raises:
        click.UsageError: There is no such command, or it has no settings, or one is wrong.
        OSError: The configuration file cannot be read.
    """
    found = _command(program, command)
    return _given(found, command, [] if config_path is None else ["--config", config_path])


def commands_with_settings(program: click.Context) -> list[str]:
    """Return the names of all commands with settings; subcommands are named like `session list`."""
    return _below(program.command, program, "")


def _below(command: click.Command, context: click.Context, name: str) -> list[str]:
    found = [name] if name and settings_source(command) else []
    if isinstance(command, click.Group):
        for each in command.list_commands(context):
            below = command.get_command(context, each)
            if below is not None:
                found += _below(below, context, f"{name} {each}".strip())
    return found


def _command(context: click.Context, name: str) -> click.Command:
    """Return the command of this name, such as `push` or `session list`.

    Raises:
        click.UsageError: There is no such command, or it has no settings.
    """
    program = context.find_root()
    command: click.Command | None = program.command
    for word in name.split():
        if not isinstance(command, click.Group):
            command = None
            break
        command = command.get_command(program, word)
    if command is None or settings_source(command) is None:
        names = ", ".join(f"'{each}'" if " " in each else each for each in
                          commands_with_settings(program))  # fmt: skip
        raise click.UsageError(f"{name!r} is not a command with settings; these are: {names}")
    return command


def _given(command: click.Command, name: str, arguments: list[str]) -> dict[str, Given]:
    """Parse arguments as the command would; return the settings, or raise `UsageError`."""
    source = settings_source(command)
    if source is None:
        return {}
    options: list[click.Parameter] = [
        _optional(each) for each in command.params if isinstance(each, click.Option)
    ]
    with click.Command(name, params=options).make_context(f"rt {name}", arguments) as context:
        parameters: dict[str, Any] = context.params
    chosen = {each: parameters[each] for each in settings_of(source.cls)}
    chosen = {each: None if value == () else value for each, value in chosen.items()}
    try:
        return explain(source.cls, parameters["config"], source.table, options=chosen)
    except (Misuse, FileNotFoundError) as error:
        raise click.UsageError(spoken(error)) from error


def _optional(option: click.Option) -> click.Option:
    """Return a copy of an option that may be left out, even if the command itself requires it."""
    found = copy.copy(option)
    found.required = False
    return found
