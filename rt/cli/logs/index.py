"""`rt index`: checks or rebuilds the index of a log; without an index, seeking takes longer."""

from typing import Final

import click

from rt.cli.common.command_group import CommandGroup
from rt.cli.common.console import ProgressBar, print_json, say, teller
from rt.cli.common.options import json_option
from rt.errors import FrameError
from rt.inspect.verify import open_log
from rt.log.files.directory import LogDirectory
from rt.log.files.disk import OsDisk
from rt.log.files.indexing import IndexState, check_index, rebuild_index
from rt.log.files.listing import log_files
from rt.position import Position
from rt.text import counted

_ACTIVE_HELP: Final = "Include the last file; no program may be writing to it."


@click.group(cls=CommandGroup)
def index() -> None:
    """Check or rebuild the index of a log.

    \b
    rt index check rt-data/flights/out
    rt index rebuild rt-data/flights/out

    Readers check every frame that an index points to, so a wrong index costs time and nothing else.
    """  # noqa: D301 - click reads the backspace character


@index.command()
@click.argument("directory", metavar="DIR")
@click.option("--active", is_flag=True, help=_ACTIVE_HELP)
@json_option("the outcome")
def rebuild(*, directory: str, active: bool, as_json: bool) -> None:
    """Rebuild the indexes of the log in DIR from its frames.

    \b
    rt index rebuild rt-data/flights/out
    rt index rebuild rt-data/flights/out --active

    Each index is replaced atomically: if the command is killed, either the old or the new one is
    there.
    """  # noqa: D301 - click reads the backspace character
    log = open_log(directory)
    files = _files(log, active=active)
    total = 0
    with ProgressBar(len(files)) as progress:
        for place, start in enumerate(files):
            progress.show(start.file_name, place)
            total += rebuild_index(OsDisk(), log, start)
    if as_json:
        print_json({"directory": directory, "files": len(files), "entries": total})
    else:
        say(f"{directory}: the index of {counted(len(files), 'file')} rebuilt, {total:,} entries")


@index.command()
@click.argument("directory", metavar="DIR")
@click.option("--active", is_flag=True, help=_ACTIVE_HELP)
@json_option("the outcome")
@click.pass_context
def check(context: click.Context, *, directory: str, active: bool, as_json: bool) -> None:
    """Compare the indexes of the log in DIR with its frames; exit code 1 if one differs.

    \b
    rt index check rt-data/flights/out
    """  # noqa: D301 - click reads the backspace character
    log = open_log(directory)
    states: dict[str, str] = {}
    for start in _files(log, active=active):
        try:
            states[start.file_name] = check_index(log, start).value
        except FrameError as error:
            states[start.file_name] = f"the file is damaged: {error}"
        if not as_json:
            say(f"{start.file_name}  {states[start.file_name]}")
    if as_json:
        files = [{"file": file, "index": state} for file, state in states.items()]
        print_json({"directory": directory, "files": files})
    if any(state != IndexState.GOOD for state in states.values()):
        teller(as_json=as_json)(f"rebuild with: rt index rebuild {directory}")
        context.exit(1)


def _files(log: LogDirectory, *, active: bool) -> list[Position]:
    manifest = log.manifest
    return [
        start
        for start in log_files(OsDisk(), log.path)
        if start not in manifest.archived and (active or start in manifest.rolled)
    ]
