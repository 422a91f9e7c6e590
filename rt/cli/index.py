"""`rt index`: checks or rebuilds the index of a log, which only ever costs time if it is gone."""

import click

from rt.cli.console import ProgressBar, counted, note
from rt.errors import FrameError, Misuse
from rt.log.appender import log_files
from rt.log.directory import LogDirectory
from rt.log.disk import OsDisk
from rt.log.indexing import IndexState, check_index, rebuild_index
from rt.position import Position

_ACTIVE_HELP = "The file that is written last, too; no program may be writing it."


@click.group()
def index() -> None:
    """Check or rebuild the index of a log.

    \b
    rt index check rt-data/flights/out
    rt index rebuild rt-data/flights/out

    Readers check every frame an index leads them to, so a wrong one costs time and nothing else.
    """  # noqa: D301 - click reads the backspace character


@index.command()
@click.argument("directory", metavar="DIR")
@click.option("--active", is_flag=True, help=_ACTIVE_HELP)
def rebuild(*, directory: str, active: bool) -> None:
    """Make the indexes of the log in DIR anew from its frames.

    \b
    rt index rebuild rt-data/flights/out
    rt index rebuild rt-data/flights/out --active

    Each index is replaced as a whole: killed at any point, the old one or the new one is there.
    """  # noqa: D301 - click reads the backspace character
    log = _open(directory)
    files = _files(log, active=active)
    total = 0
    with ProgressBar(len(files)) as progress:
        for place, start in enumerate(files):
            progress.show(start.file_name, place)
            total += rebuild_index(OsDisk(), log, start)
    note(f"{directory}: the index of {counted(len(files), 'file')} rebuilt, {total:,} entries")


@index.command()
@click.argument("directory", metavar="DIR")
@click.option("--active", is_flag=True, help=_ACTIVE_HELP)
@click.pass_context
def check(context: click.Context, *, directory: str, active: bool) -> None:
    """Compare the indexes of the log in DIR with its frames; exit code 1 if one differs.

    \b
    rt index check rt-data/flights/out
    """  # noqa: D301 - click reads the backspace character
    log = _open(directory)
    wrong = 0
    for start in _files(log, active=active):
        try:
            state: str = check_index(log, start)
        except FrameError as error:
            state = f"the file is damaged: {error}"
        click.echo(f"{start.file_name}  {state}")
        wrong += state != IndexState.GOOD
    if wrong:
        note(f"mend with: rt index rebuild {directory}")
        context.exit(1)


def _open(directory: str) -> LogDirectory:
    log = LogDirectory(directory)
    log.refresh()
    if not log.is_there:
        raise Misuse(f"{directory}: there is no log, for it holds no manifest")
    return log


def _files(log: LogDirectory, *, active: bool) -> list[Position]:
    manifest = log.manifest
    return [
        start
        for start in log_files(OsDisk(), log.path)
        if start not in manifest.archived and (active or start in manifest.rolled)
    ]
