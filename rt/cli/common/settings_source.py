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
    """Where a command's settings come from: their class, and their table in a file."""

    cls: type["DataclassInstance"]
    table: str | None


def attach_source(callback: Callable[..., Any], source: SettingsSource) -> None:
    """Attach the source of its settings to a command's callback."""
    setattr(callback, _SETTINGS, source)


def settings_source(command: click.Command) -> SettingsSource | None:
    """Return the source that `click_options` attached to a command; None if it has no settings."""
    return getattr(command.callback, _SETTINGS, None)


def typed(value: Any) -> Any:
    """Return None for an option that was not given, for which click passes None or an empty tuple.

    The values of a repeatable option are split at commas, as in a variable but not in a file.
    """
    if isinstance(value, tuple):
        return tuple(part.strip() for each in value for part in str(each).split(",")) or None
    return value
