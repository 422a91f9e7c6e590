"""SettingsSource: what the settings of a command are, and what of them is typed."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import click

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

_SETTINGS: Final = "rt_settings"  # where the callback of a command keeps its source


@dataclass(frozen=True, slots=True)
class SettingsSource:
    """What a command's settings are: their class, and their table in a file."""

    cls: type["DataclassInstance"]
    table: str | None


def attach_source(callback: Callable[..., Any], source: SettingsSource) -> None:
    """Give the callback of a command the source of its settings."""
    setattr(callback, _SETTINGS, source)


def settings_source(command: click.Command) -> SettingsSource | None:
    """Return what `click_options` has given a command; None for one without settings."""
    return getattr(command.callback, _SETTINGS, None)


def typed(value: Any) -> Any:
    """Return None for an option that was not given; a repeatable one is an empty tuple then.

    The texts of a repeatable one are divided at commas, as in a variable and nowhere in a file.
    """
    if isinstance(value, tuple):
        return tuple(part.strip() for each in value for part in str(each).split(",")) or None
    return value
