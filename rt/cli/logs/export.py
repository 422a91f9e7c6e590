"""`rt export`: a log in the formats of other programs."""

from typing import TYPE_CHECKING

import click

from rt.cli.common.command_group import CommandGroup
from rt.cli.common.console import ProgressBar, note, print_json
from rt.cli.common.options import json_option, parse_position
from rt.errors import Misuse
from rt.position import Position
from rt.text import counted

if TYPE_CHECKING:
    from rt.spark.tables.export import Exported


@click.group(cls=CommandGroup)
def export() -> None:
    """Convert a log that will be read many times.

    \b
    rt export parquet /var/lib/rt/flights/out /data/flights.parquet
    rt export iceberg /var/lib/rt/flights/out flights.messages --warehouse /data/warehouse
    """  # noqa: D301 - click reads the backspace character


@export.command()
@click.argument("directory")
@click.argument("out", type=click.Path(file_okay=False))
@click.option(
    "--partition", type=click.Choice(["none", "day", "month", "stream"]),
    help="Directories of the dataset: by merge time (default: day; for a session: none).",
)  # fmt: skip
@click.option("--include-active", is_flag=True, help="Export the active file too, as far as it is.")
@click.option("--allow-gaps", is_flag=True, help="Skip files archived before they were exported.")
@click.option(
    "--from", "start", metavar="POSITION", callback=parse_position, help="Begin at this position."
)
@json_option("the outcome")
def parquet(
    directory: str,
    out: str,
    *,
    partition: str | None,
    include_active: bool,
    allow_gaps: bool,
    start: Position | None,
    as_json: bool,
) -> None:
    """Add to the Parquet dataset in OUT whatever it lacks of the log in DIRECTORY.

    Run it again and it adds what is new. No message is added twice, even if a run is killed. The
    record of what was added is OUT.rt-export.json, beside the dataset; move both together.

    \b
    rt export parquet /var/lib/rt/flights/out /data/flights.parquet
    """  # noqa: D301 - click reads the backspace character
    try:
        from rt.spark.tables.export import Exported, ExportSettings, to_parquet  # noqa: PLC0415 - optional
    except ImportError as error:
        raise Misuse(f"{error.name} is missing: pip install pyarrow numpy") from None
    settings = ExportSettings(
        partition=partition or "", include_active=include_active, allow_gaps=allow_gaps,
        start=start or Position(0),
    )  # fmt: skip
    with ProgressBar() as progress:

        def show(done: Exported, total: int) -> None:
            progress.show(f"{counted(done.messages)} of {total / 1e6:,.0f} MB", done.bytes)

        done = to_parquet(directory, out, settings, progress=show)
    _report(out, done, as_json=as_json)


@export.command()
@click.argument("directory")
@click.argument("table")
@click.option("--warehouse", type=click.Path(file_okay=False), help="A local one, with SQLite.")
@click.option("--catalog", metavar="NAME", help="A catalog of pyiceberg's configuration.")
@click.option("--include-active", is_flag=True, help="Export the active file too, as far as it is.")
@click.option("--allow-gaps", is_flag=True, help="Skip files archived before they were exported.")
@click.option(
    "--from", "start", metavar="POSITION", callback=parse_position, help="Begin at this position."
)
@json_option("the outcome")
def iceberg(
    directory: str,
    table: str,
    *,
    warehouse: str | None,
    catalog: str | None,
    include_active: bool,
    allow_gaps: bool,
    start: Position | None,
    as_json: bool,
) -> None:
    """Add to the Iceberg table TABLE (namespace.name) whatever it lacks of the log in DIRECTORY.

    Run it again and it adds what is new. How far the log was added is a property of the table and
    changes with its rows in one commit, so no message is added twice, even if a run is killed.

    \b
    rt export iceberg /var/lib/rt/flights/out flights.messages --warehouse /data/warehouse
    """  # noqa: D301 - click reads the backspace character
    if (warehouse is None) == (catalog is None):
        raise Misuse("say where the table is: --warehouse DIR, or --catalog NAME")
    try:
        from pyiceberg.catalog import load_catalog  # noqa: PLC0415 - optional

        from rt.spark.tables.iceberg import (  # noqa: PLC0415 - optional
            IcebergSettings,
            local_catalog,
            to_iceberg,
        )
    except ImportError as error:
        raise Misuse(
            f"{error.name} is missing: pip install '.[iceberg]' in a clone of rt"
        ) from None
    opened = local_catalog(warehouse) if warehouse is not None else load_catalog(catalog)
    settings = IcebergSettings(include_active, allow_gaps, start or Position(0))
    with ProgressBar() as progress:

        def show(done: "Exported", total: int) -> None:
            progress.show(f"{counted(done.messages)} of {total / 1e6:,.0f} MB", done.bytes)

        done = to_iceberg(directory, table, opened, settings, progress=show)
    _report(table, done, as_json=as_json)


def _report(out: str, done: "Exported", *, as_json: bool) -> None:
    if as_json:
        print_json({
            "directory": out, "files": done.files, "messages": done.messages,
            "added_before": done.left, "gaps": done.gaps, "messages_waiting": done.waiting,
        })  # fmt: skip
        return
    added = f"added {counted(done.files, 'file')} with {counted(done.messages)} to {out}"
    note(f"{added}; {counted(done.left, 'file')} had been added before")
    if done.waiting:
        note(
            f"{counted(done.waiting)} wait in the active file: a run after it is rolled (at 1 GiB, "
            "unless its writer rolls earlier) adds them, and --include-active adds them now"
        )
    if done.gaps:
        names = ", ".join(done.gaps[:5])
        note(f"skipped {counted(len(done.gaps), 'file')} archived before: {names}")
