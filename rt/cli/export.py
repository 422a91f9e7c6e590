"""`rt export`: converts a log to the formats of other systems."""

import click

from rt.cli.console import ProgressBar, counted, note, print_json
from rt.cli.groups import CommandGroup
from rt.cli.options import json_option
from rt.errors import Misuse


@click.group(cls=CommandGroup)
def export() -> None:
    """Convert a log for data that is read many times.

    \b
    rt export parquet /var/lib/rt/flights/out /data/flights.parquet
    """  # noqa: D301 - click reads the backspace character


@export.command()
@click.argument("directory")
@click.argument("out", type=click.Path(file_okay=False))
@click.option(
    "--allow-gaps", is_flag=True,
    help="Continue after files that were archived before they were exported.",
)  # fmt: skip
@json_option("the outcome")
def parquet(directory: str, out: str, *, allow_gaps: bool, as_json: bool) -> None:
    """Add the rolled files of the log in DIRECTORY to the Parquet dataset in OUT.

    Reads only what was not added before, and adds no message twice, even if a run is killed. The
    active file is left for a later run.

    \b
    rt export parquet /var/lib/rt/flights/out /data/flights.parquet
    """  # noqa: D301 - click reads the backspace character
    try:
        from rt.spark.export import Exported, to_parquet  # noqa: PLC0415 - heavy, and optional
    except ImportError as error:
        raise Misuse(f"{error.name} is missing: pip install 'rt-transport[spark]'") from None
    with ProgressBar() as progress:

        def show(done: Exported, total: int) -> None:
            progress.show(f"{counted(done.messages)} of {total / 1e6:,.0f} MB", done.bytes)

        done = to_parquet(directory, out, allow_gaps=allow_gaps, progress=show)
    if as_json:
        print_json({
            "directory": out, "files": done.files, "messages": done.messages,
            "added_before": done.left, "gaps": list(done.gaps),
        })  # fmt: skip
        return
    added = f"added {counted(done.files, 'file')} with {counted(done.messages)} to {out}"
    note(f"{added}; {counted(done.left, 'file')} had been added before")
    if done.gaps:
        note(f"{counted(len(done.gaps), 'file')} were archived before: {', '.join(done.gaps[:5])}")
