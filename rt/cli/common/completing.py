"""Completing: the streams, sessions, cursors, groups and nodes that shell completion offers."""

import os
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import MISSING
from typing import Any, Final

import click

from rt.cli.common.settings_source import settings_source, typed
from rt.config.settings import explain, load, settings_of
from rt.names import MERGED_NAME, stream_directory

_PATIENCE_S: Final = 1.5  # the shell is blocked meanwhile
_IDENTIFIED_BY: Final = {"sessions": "session", "cursors": "cursor", "groups": "group"}

Complete = Callable[[click.Context, click.Parameter, str], list[str]]


def _offering(names: Callable[[click.Context], Iterable[str]]) -> Complete:
    def complete(context: click.Context, _parameter: click.Parameter, begun: str) -> list[str]:
        with suppress(Exception):  # completion has nowhere to show an error
            return _begun(begun, names(context))
        return []

    return complete


def _local(names: Callable[[dict[str, Any]], Iterable[str]]) -> Complete:
    return _offering(lambda context: names(_settings(context)))


def _directories(path: str) -> list[str]:
    return [each.name for each in os.scandir(path) if each.is_dir() and each.name[0] != "."]


def _sessions(settings: dict[str, Any]) -> Iterable[str]:
    stream = stream_directory(settings["root"], settings["stream"])
    return [name for name in _directories(stream) if name != MERGED_NAME]


def _groups(settings: dict[str, Any]) -> Iterable[str]:
    from rt.log.files.identity import read_log_identity  # noqa: PLC0415 - as for cursors

    stream = stream_directory(settings["root"], settings["stream"])
    logs = (read_log_identity(os.path.join(stream, name)) for name in _sessions(settings))
    return {log.group for log in logs if log is not None and log.group}


def _bridged(names: Callable[[dict[str, Any]], Iterable[str]]) -> Complete:
    def found(settings: dict[str, Any]) -> set[str]:
        root = os.path.join(settings["root"], "to")
        return {
            name
            for stream in _directories(root)
            for name in names({"root": root, "stream": stream})
        }

    return _local(found)


def _cursors(settings: dict[str, Any]) -> Iterable[str]:
    from rt.client.readers.cursor import read_cursors  # noqa: PLC0415 - most completions need none

    return read_cursors(settings["root"], settings["stream"])


# from the root directory and, except for streams, the stream that the command would use
complete_stream: Final = _local(lambda settings: _directories(settings["root"]))
complete_session: Final = _local(_sessions)
complete_group: Final = _local(_groups)
complete_cursor: Final = _local(_cursors)
complete_bridge_session: Final = _bridged(_sessions)
complete_bridge_group: Final = _bridged(_groups)


def _nodes(context: click.Context) -> Iterable[str]:
    from rt.client.readers.settings import ConnectionSettings  # noqa: PLC0415 - loads TLS

    path = _file(context)
    return load(ConnectionSettings, path, "pull" if path else None).nodes


def _listed(context: click.Context) -> Iterable[str]:
    from rt.node.settings.node import NodeSettings  # noqa: PLC0415 - most completions need none

    settings = load(NodeSettings, _file(context), "node")
    return [each.stream for each in settings.each_stream if each.stream != settings.stream]


# from the configuration file that the command would use: a client's, or a node's
complete_node: Final = _offering(_nodes)
complete_listed_stream: Final = _offering(_listed)


def complete_asked(field: str, *, file: str = "") -> Complete:
    """Return a function that completes names known to the nodes.

    Args:
        field: The field of a status answer: sessions, cursors, groups or members.
        file: The parameter with the client's configuration file, for a command that takes several
            files; "" for a command with the usual settings.
    """

    def complete(context: click.Context, _parameter: click.Parameter, begun: str) -> list[str]:
        found: list[str] = []

        def ask() -> None:
            with suppress(Exception):
                found.extend(_asked(context, field, file))

        asking = threading.Thread(target=ask, daemon=True)
        asking.start()
        asking.join(_PATIENCE_S)
        return _begun(begun, found)

    return complete


def _asked(context: click.Context, field: str, file: str) -> list[str]:
    from rt.client.readers.settings import ConnectionSettings  # noqa: PLC0415 - loads TLS

    if file:
        known = load(ConnectionSettings, context.params[file], "pull")
    else:
        given = _settings(context)
        known = ConnectionSettings(
            **{name: given[name] for name in settings_of(ConnectionSettings)}
        )
    key = _IDENTIFIED_BY.get(field, "name")
    return [str(each[key]) for each in known.ask({"do": field})[field]]


def _settings(context: click.Context) -> dict[str, Any]:
    """Return the settings that the command would run with, given what has been typed so far."""
    source = settings_source(context.command)
    if source is None:
        return {}
    options: dict[str, object] = {}
    for name, (field, _) in settings_of(source.cls).items():
        is_required = field.default is MISSING and field.default_factory is MISSING
        options[name] = typed(context.params.get(name)) or ("-" if is_required else None)
    given = explain(source.cls, _file(context), source.table, options=options)
    return context.params | {name: each.value for name, each in given.items()}


def _file(context: click.Context) -> str | None:
    return context.params.get("config") or os.environ.get("RT_CONFIG")


def _begun(begun: str, names: Iterable[str]) -> list[str]:
    return sorted(name for name in names if name.startswith(begun))
