"""`rt export`: a log in the formats of others."""

import click

from rt.cli.console import ProgressBar, counted, note
from rt.errors import Misuse


@click.group()
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
    help="Go on behind files that were archived before they were exported.",
)  # fmt: skip
def parquet(directory: str, out: str, *, allow_gaps: bool) -> None:
    """Add the rolled files of the log in DIRECTORY to the Parquet dataset in OUT.

    Only what was not added before is read, and no message is added twice, though a run be
    killed. The active file is left for a later run.

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
    words = f"added {counted(done.files, 'file')} with {counted(done.messages)} to {out}"
    note(f"{words}; {counted(done.left, 'file')} had been added before")
    if done.gaps:
        note(f"{counted(len(done.gaps), 'file')} were archived before: {', '.join(done.gaps[:5])}")
