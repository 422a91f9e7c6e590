"""Options: derives a command's options from the dataclass of its settings."""

import functools
from collections.abc import Callable, Container
from dataclasses import MISSING
from typing import Any, Final, TypeVar

import click

from rt.cli.common.completing import complete_group, complete_session, complete_stream
from rt.cli.common.settings_source import SettingsSource, attach_source, typed
from rt.config.kinds import SettingKind, parse_seconds, show_seconds
from rt.config.settings import SettingsType, load, option_name, settings_of, variable_name
from rt.errors import Misuse, spoken
from rt.position import Position

_LOADS: Final = "rt.loads"  # key under which a command keeps the function that loads its settings
_CONFIG: Final = "rt.config"  # key of the path of its configuration file
_COMPLETED: Final = {
    "stream": complete_stream, "session": complete_session, "group": complete_group,
}  # fmt: skip
SECONDS_MAX: Final = 366 * 24 * 3600
Command = TypeVar("Command", bound=Callable[..., Any])


def click_options(
    cls: type[SettingsType], table: str | None = None, listed: Container[str] | None = None
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator that gives a command `--config` and an option for each field of `cls`.

    The command gets the loaded settings as the argument `settings`, in addition to its others.
    Options are read as text and converted by `rt.config.settings.load`, as environment variables
    are, so that all sources have the same syntax and the same error messages. The help of an option
    is the field's metadata `help`.

    Args:
        cls: The frozen dataclass.
        table: The command's table in the configuration file; None for the file's top level.
        listed: The settings that the help lists; None lists all. The others are accepted too.
    """
    names = list(settings_of(cls))

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(command)
        def run(*args: Any, config: str | None, **parameters: Any) -> Any:
            options = {name: typed(parameters.pop(name)) for name in names}
            loads = functools.partial(load, cls, config, table, options=options)
            click.get_current_context().meta.update({_LOADS: loads, _CONFIG: config})
            try:
                settings = loads()
            except (Misuse, FileNotFoundError) as error:
                raise click.UsageError(spoken(error)) from error
            return command(*args, settings=settings, **parameters)

        attach_source(run, SettingsSource(cls, table))
        for option in reversed([*_options(cls, listed), _config_option(table)]):
            run = option(run)
        return run

    return decorate


def reloaded(cls: type[SettingsType]) -> SettingsType:
    """Load the running command's settings again from the same sources.

    Raises:
        Misuse: A setting is wrong, or the command's settings are not of class `cls`.
        OSError: The configuration file cannot be read.
    """
    settings = click.get_current_context().meta[_LOADS]()
    if not isinstance(settings, cls):
        raise Misuse(f"this command has no {cls.__name__}")
    return settings


def config_path() -> str:
    """Return the path of the running command's configuration file; "" if it has none."""
    context = click.get_current_context(silent=True)
    return "" if context is None else str(context.meta.get(_CONFIG) or "")


def flag(*names: str, help: str) -> Callable[[Command], Command]:  # noqa: A002 - click's name
    """Return a decorator that adds an option without a value, such as `--yes`."""
    return click.option(*names, is_flag=True, help=help)


def json_option(what: str) -> Callable[[Command], Command]:
    """Return a decorator that adds the option `--json`, whose help says that it prints `what`."""
    return flag("--json", "as_json", help=f"Print {what} as JSON.")


def parse_position(_context: Any, _parameter: Any, text: str | None) -> Position | None:
    """Parse the value of an option that takes a position; None if the option is not given."""
    try:
        return None if text is None else Position.parse(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


class Duration(click.types.FloatParamType):
    """The type of an option that takes a time such as 500ms or 1h, of up to 366 days.

    It accepts what a setting accepts. Give the option's default as text too, so that the help shows
    it as a user would write it.
    """

    name = "time"  # click shows it in capitals, as the option's metavar

    def __init__(self, bare_unit: str = "s") -> None:
        """Prepare to parse one option.

        Args:
            bare_unit: the unit of a number that is given without a unit.
        """
        self._bare_unit = bare_unit

    def convert(self, value: Any, param: Any, ctx: Any) -> float:
        """Return the value in seconds."""
        text = str(value)
        try:
            seconds = parse_seconds(text if text[-1:].isalpha() else text + self._bare_unit)
        except ValueError:
            self.fail(f"{text!r} is not a time such as 500ms, 90s or 1h", param, ctx)
        if seconds > SECONDS_MAX:
            self.fail(f"{text!r} is longer than {show_seconds(SECONDS_MAX)}", param, ctx)
        return seconds


def _config_option(table: str | None) -> Callable[[Command], Command]:
    part = f", table [{table}]" if table else ""
    return click.option(
        "--config", metavar="FILE", envvar="RT_CONFIG",
        help=f"TOML file with these settings{part}.  [RT_CONFIG]",
    )  # fmt: skip


def _options(
    cls: type[SettingsType], listed: Container[str] | None
) -> list[Callable[[Command], Command]]:
    options = []
    for name, (field, kind) in settings_of(cls).items():
        default = field.default_factory() if field.default_factory is not MISSING else field.default
        text = f"{field.metadata.get('help', '')}  [{variable_name(name)}"
        text += (
            "; required]"
            if default is MISSING
            else f"; default {kind.explained_text(default) or 'none'}]"
        )
        hidden = listed is not None and name not in listed
        options.append(_option(name, kind, text.lstrip(), hidden=hidden))
    return options


def _option(
    name: str, kind: SettingKind, text: str, *, hidden: bool
) -> Callable[[Command], Command]:
    declared = option_name(name)
    if kind.native == (bool,):
        return click.option(
            f"{declared}/--no-{declared[2:]}", name, default=None, help=text, hidden=hidden
        )
    multiple = list in kind.native
    return click.option(
        declared, name, multiple=multiple, metavar="VALUE", help=text, hidden=hidden,
        shell_complete=_COMPLETED.get(name),
    )  # fmt: skip
