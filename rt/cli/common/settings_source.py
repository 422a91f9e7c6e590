"""SettingsSource: where a command's settings come from, and which of them were typed."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import click

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

_SETTINGS: Final = "rt_settings"  # name of the callback's attribute that holds its source


@dataclass(frozen=True, slots=True)
class SettingsSource:
    """The class of a command's settings, and their table in the configuration file."""

    cls: type["DataclassInstance"]
    table: str | None


def attach_source(callback: Callable[..., Any], source: SettingsSource) -> None:
    """Record on a command's callback where the command's settings come from."""
    setattr(callback, _SETTINGS, source)


def settings_source(command: click.Command) -> SettingsSource | None:
    """Return the source that `click_options` attached to a command; None if it has no settings."""
    return getattr(command.callback, _SETTINGS, None)


def typed(value: Any) -> Any:
    """Return an option's value; None if it was not given, even if click passes an empty tuple.

    The values of a repeatable option are split at commas, as those of an environment variable are.
    """
    if isinstance(value, tuple):
        return tuple(part.strip() for each in value for part in str(each).split(",")) or None
    return value
