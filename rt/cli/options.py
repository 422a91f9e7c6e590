"""Options: the command line of a program, made from the dataclass of its settings."""

import functools
import math
from collections.abc import Callable
from dataclasses import MISSING, fields
from typing import Any, Final, TypeVar

import click

from rt.config.kinds import SettingKind
from rt.config.settings import SettingsType, kinds_of, load, option_name, variable_name
from rt.errors import Misuse, spoken

SECONDS_MAX: Final = 366 * 24 * 3600
Command = TypeVar("Command", bound=Callable[..., Any])


def click_options(
    cls: type[SettingsType], table: str | None = None
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator that gives a command `--config` and an option for each field of `cls`.

    The command is called with the loaded settings as `settings`, beside its other parameters.
    Options are read as text and converted by `rt.config.settings.load`, as the environment is: one
    definition, one grammar, one wording of errors. A field's help is its metadata `help`.

    Args:
        cls: The frozen dataclass.
        table: The table of the file that belongs to this program.
    """
    names = [field.name for field in fields(cls)]

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(command)
        def run(*args: Any, config: str | None, **parameters: Any) -> Any:
            options = {name: _said(parameters.pop(name)) for name in names}
            try:
                settings = load(cls, config, table, options=options)
            except (Misuse, FileNotFoundError) as error:
                raise click.UsageError(spoken(error)) from error
            return command(*args, settings=settings, **parameters)

        for option in reversed([*_options(cls), _config_option(table)]):
            run = option(run)
        return run

    return decorate


class Seconds(click.FloatRange):
    """A time to wait, on the command line; no time and ever are none."""

    def __init__(self) -> None:
        super().__init__(min=0, max=SECONDS_MAX)

    def convert(self, value: Any, param: Any, ctx: Any) -> float:
        """Return the number; one that is none is refused too."""
        seconds = float(super().convert(value, param, ctx))
        if math.isnan(seconds):
            self.fail(f"{value} is no number of seconds.", param, ctx)
        return seconds


def _said(value: Any) -> Any:
    """Tell a repeated option that was not given, an empty tuple, from one that was."""
    return None if value == () else value


def _config_option(table: str | None) -> Callable[[Command], Command]:
    part = f", table [{table}]" if table else ""
    return click.option(
        "--config",
        metavar="FILE",
        envvar="RT_CONFIG",
        help=f"TOML file with these settings{part}.  [RT_CONFIG]",
    )


def _options(cls: type[SettingsType]) -> list[Callable[[Command], Command]]:
    kinds = kinds_of(cls)
    options = []
    for field in fields(cls):
        kind = kinds[field.name]
        default = field.default_factory() if field.default_factory is not MISSING else field.default
        words = f"{field.metadata.get('help', '')}  [{variable_name(field.name)}"
        words += (
            "; required]" if default is MISSING else f"; default {kind.text(default) or 'none'}]"
        )
        options.append(_option(field.name, kind, words.lstrip()))
    return options


def _option(name: str, kind: SettingKind, words: str) -> Callable[[Command], Command]:
    declared = option_name(name)
    if kind.native == (bool,):
        return click.option(f"{declared}/--no-{declared[2:]}", name, default=None, help=words)
    multiple = list in kind.native
    return click.option(declared, name, multiple=multiple, metavar="VALUE", help=words)
