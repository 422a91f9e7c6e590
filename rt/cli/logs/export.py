"""`rt export`: converts a log to formats that other programs read."""

import functools
import os
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import click

from rt.amounts import duration_text, size_text
from rt.cli.common.command_group import CommandGroup
from rt.cli.common.console import ProgressBar, print_json, say
from rt.cli.common.options import Duration, click_options, flag, json_option, parse_position
from rt.cli.common.web import shown_over_http
from rt.cli.process.service_manager import ServiceManager
from rt.cli.process.stop_signals import StopSignals
from rt.config.kinds import parse_bytes
from rt.errors import Misuse
from rt.node.settings.http import HttpSettings
from rt.position import Position
from rt.text import counted
from rt.web.serving.recent import RecentEvents

if TYPE_CHECKING:
    from rt.tables.export import Exported, ExportSettings
    from rt.tables.follow import TableFollower
    from rt.tables.table_state import TableState
    from rt.web.serving.site import Site

_PARTITIONS: Final = click.Choice(["none", "day", "month", "stream", "session"])


@click.group(cls=CommandGroup)
def export() -> None:
    """Convert a log to Parquet or Iceberg, once or continuously.

    \b
    rt export parquet /var/lib/rt/flights/out /data/flights.parquet
    rt export iceberg /var/lib/rt/flights/out flights.messages --warehouse /data/warehouse --follow
    rt export status /var/lib/rt/flights/out /data/flights.parquet
    """  # noqa: D301 - click reads the backspace character


def _parsed(parse: Callable[[str], Any]) -> Callable[..., Any]:
    def callback(_context: Any, _parameter: Any, text: str) -> Any:
        try:
            return parse(text)
        except ValueError as error:
            raise click.BadParameter(str(error)) from None

    return callback


_OPTIONS: Final = (
    click.option(
        "--partition", type=_PARTITIONS,
        help="Partition by day or month of the merge, by stream or session. A new Parquet "
        "dataset has day, or for a session none; a new Iceberg table has none.",
    ),
    flag("--include-active", help="Export the complete frames of the active file, too."),
    flag("--allow-gaps", help="Skip files that were archived before an export."),
    click.option(
        "--from", "start", metavar="POSITION", callback=parse_position,
        help="First position to export.",
    ),
    click.option(
        "--target-size", "target_bytes", default="128Mi", show_default=True, metavar="SIZE",
        callback=_parsed(parse_bytes), help="Size of a Parquet file.",
    ),
    click.option(
        "--json-columns", metavar="FILE", type=click.Path(exists=True, dir_okay=False),
        help="File of JSON fields to export as columns, one a line: delay double. Payloads that "
        "do not parse go to a table of dead letters.",
    ),
    click.option(
        "--keep", "keep_s", type=Duration(), default="1h", show_default=True,
        help="How long to keep replaced files for readers.",
    ),
    flag("--follow", help="Keep adding new messages until stopped."),
    click.option(
        "--every", "every_s", type=Duration(), default="30s", show_default=True,
        help="With --follow: how often to commit.",
    ),
)  # fmt: skip


def _settings_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options that Parquet and Iceberg share; `command` gets their values as `given`."""

    @functools.wraps(command)
    def run(*, partition: str | None, include_active: bool, allow_gaps: bool,
            start: Position | None, target_bytes: int, json_columns: str | None, keep_s: float,
            follow: bool, **others: Any) -> None:  # fmt: skip
        try:
            from rt.tables.export import ExportSettings  # noqa: PLC0415 - optional
            from rt.tables.payloads import NO_COLUMNS, read_columns  # noqa: PLC0415
        except ImportError as error:
            raise Misuse(f"{error.name} is missing: pip install pyarrow numpy") from None
        if target_bytes <= 0:
            raise click.UsageError("--target-size is the size of a file; give for example 128Mi")
        if others["every_s"] <= 0:
            raise click.UsageError("--every is the time between two commits; give for example 30s")
        given = ExportSettings(
            partition or "", include_active or follow, allow_gaps, start or Position(0),
            target_bytes, read_columns(json_columns) if json_columns else NO_COLUMNS, keep_s,
        )  # fmt: skip
        command(given=given, follow=follow, **others)

    for option in reversed(_OPTIONS):
        run = option(run)
    return run


@export.command()
@click_options(HttpSettings, "export", ("http",))
@click.argument("directory")
@click.argument("out", type=click.Path(file_okay=False))
@_settings_options
@json_option("the outcome")
def parquet(
    settings: HttpSettings, directory: str, out: str, *, given: "ExportSettings", follow: bool,
    every_s: float, as_json: bool,
) -> None:  # fmt: skip
    """Bring the Parquet dataset in OUT up to date with the log in DIRECTORY.

    Run it again, or with --follow, to add what is new. No message is added twice, even if a run is
    killed. Beside the dataset are its manifest, OUT.rt-export.json, and with --follow its newest
    rows, OUT.rt-export.tail; move all of them together. Dead letters, which are payloads that do
    not parse, are in OUT.dead.

    \b
    rt export parquet /var/lib/rt/flights/out /data/flights.parquet
    rt export parquet /var/lib/rt/flights/out /data/flights.parquet --follow --http 127.0.0.1:9430
    """  # noqa: D301 - click reads the backspace character
    from rt.tables.export import parquet_opener, to_parquet  # noqa: PLC0415 - optional
    from rt.tables.follow import TableFollower  # noqa: PLC0415

    if follow:
        opener = parquet_opener(out, given)
        follower = TableFollower(directory, opener, given, every_s)
        _follow(follower, out, settings, as_json=as_json)
        return
    _once(out, partial(to_parquet, directory, out, given), as_json=as_json)


@export.command()
@click_options(HttpSettings, "export", ("http",))
@click.argument("directory")
@click.argument("table")
@click.option(
    "--warehouse",
    type=click.Path(file_okay=False),
    help="Directory of a local warehouse, whose catalog is a SQLite file.",
)
@click.option("--catalog", metavar="NAME", help="Catalog from pyiceberg's configuration.")
@_settings_options
@json_option("the outcome")
def iceberg(
    settings: HttpSettings, directory: str, table: str, *, warehouse: str | None,
    catalog: str | None, given: "ExportSettings", follow: bool, every_s: float, as_json: bool,
) -> None:  # fmt: skip
    """Bring the Iceberg table TABLE (namespace.name) up to date with the log in DIRECTORY.

    Run it again, or with --follow, to add what is new. The position reached is a property of the
    table and of each snapshot, committed together with the rows, so no message is added twice,
    even if a run is killed. Dead letters, which are payloads that do not parse, are in TABLE_dead.

    \b
    rt export iceberg /var/lib/rt/flights/out flights.messages --warehouse /data/warehouse
    rt export iceberg /var/lib/rt/flights/out flights.messages --catalog prod --follow --every 60s
    """  # noqa: D301 - click reads the backspace character
    from rt.tables.export import iceberg_opener, to_iceberg  # noqa: PLC0415 - optional
    from rt.tables.follow import TableFollower  # noqa: PLC0415

    if follow:
        opener = iceberg_opener(table, lambda: _catalog(warehouse, catalog), given)
        follower = TableFollower(directory, opener, given, every_s)
        _follow(follower, table, settings, as_json=as_json)
        return
    opened = _catalog(warehouse, catalog)
    _once(table, partial(to_iceberg, directory, table, opened, given), as_json=as_json)


@export.command()
@click.argument("directory")
@click.argument("table")
@click.option(
    "--warehouse",
    type=click.Path(file_okay=False),
    help="Directory of an Iceberg table's local warehouse.",
)
@click.option(
    "--catalog", metavar="NAME", help="Catalog of an Iceberg table, from pyiceberg's configuration."
)
@json_option("how far the table follows")
def status(
    directory: str, table: str, *, warehouse: str | None, catalog: str | None, as_json: bool
) -> None:
    """Show how far the table TABLE follows the log in DIRECTORY.

    TABLE is the directory of a Parquet dataset, or with --warehouse or --catalog the name of an
    Iceberg table. Nothing is changed, and the table may be in use by --follow meanwhile.

    \b
    rt export status /var/lib/rt/flights/out /data/flights.parquet
    rt export status /var/lib/rt/flights/out flights.messages --warehouse /data/warehouse
    """  # noqa: D301 - click reads the backspace character
    try:
        from rt.spark.table import lag_of, read_table  # noqa: PLC0415 - optional
    except ImportError as error:
        raise Misuse(f"{error.name} is missing: pip install pyarrow numpy") from None
    if warehouse and not os.path.isdir(warehouse):
        raise Misuse(f"there is no warehouse at {warehouse}")

    opened = _catalog(warehouse, catalog) if warehouse or catalog else None
    state = read_table(directory, table, opened)
    messages, since_ns = lag_of(directory, state.position)
    lag_s = 0.0 if since_ns is None else max(0.0, (time.time_ns() - since_ns) / 1e9)
    if as_json:
        print_json({
            "table": table, "stream": state.log.stream, "position": str(state.position),
            "messages": state.rows, "files": len(state.files),
            "bytes": sum(each.bytes for each in state.files),
            "gaps": [[str(first), str(last)] for first, last in state.gaps],
            "lag_messages": messages, "lag_s": round(lag_s, 3),
        })  # fmt: skip
        return
    _tell(table, state, messages, lag_s)


def _tell(table: str, state: "TableState", messages: int, lag_s: float) -> None:
    files = counted(len(state.files), "file")
    say(f"{table} has {counted(state.rows)} in {files}, complete up to {state.position}")
    for first, last in state.gaps:
        say(f"without the messages from {first} to {last}: archived before, or left out by --from")
    waits = f"; the first was merged {duration_text(lag_s)} ago" if messages else ""
    say(f"{counted(messages)} of the log not added yet{waits}")


def _catalog(warehouse: str | None, catalog: str | None) -> Any:
    if (warehouse is None) == (catalog is None):
        raise Misuse("say where the table is: --warehouse DIR, or --catalog NAME")
    try:
        from pyiceberg.catalog import load_catalog  # noqa: PLC0415 - optional

        from rt.tables.iceberg import local_catalog  # noqa: PLC0415 - optional
    except ImportError as error:
        raise Misuse(
            f"{error.name} is missing: pip install '.[iceberg]' in a clone of rt"
        ) from None
    if warehouse is not None:
        return local_catalog(warehouse)
    try:
        return load_catalog(catalog)
    except ValueError as error:
        raise Misuse(f"catalog {catalog}: {error}") from None


def _follow(follower: "TableFollower", table: str, web: HttpSettings, *, as_json: bool) -> None:
    """Keep a table up to date with its log until a signal; then commit a write that has begun."""
    if as_json:
        raise click.UsageError("--json is for one run; with --follow, ask rt export status")
    manager = ServiceManager()

    def site_of(events: RecentEvents) -> "Site":
        from rt.web.programs.table_site import TableSite  # noqa: PLC0415 - optional

        return TableSite(follower, table, events)

    with StopSignals(reloads=True) as signals:
        try:
            pause_s = follower.turn()
            with shown_over_http(web, site_of):
                attend = manager.attend(signals, lambda: None, lambda: "")
                while signals.wait(pause_s):
                    pause_s = follower.turn()
                    attend()
        finally:
            manager.stopping()
            follower.close()
    done = follower.status
    say(f"stopped: {counted(done.messages)} added, complete up to {done.position}")


def _once(out: str, export_to: Callable[..., "Exported"], *, as_json: bool) -> None:
    with ProgressBar() as progress:

        def show(done: "Exported", total: int) -> None:
            progress.show(f"{counted(done.messages)} of {size_text(total)}", done.bytes)

        done = export_to(progress=show)
    if as_json:
        print_json({
            "directory": out, "files": done.files, "messages": done.messages,
            "dead_letters": done.dead, "added_before": done.left, "gaps": done.gaps,
            "messages_waiting": done.waiting,
        })  # fmt: skip
        return
    added = f"added {counted(done.files, 'file')} with {counted(done.messages)} to {out}"
    say(f"{added}; {counted(done.left, 'file')} had been added before")
    if done.dead:
        say(f"{counted(done.dead)} could not be parsed and were added to the dead letters")
    if done.waiting:
        say(
            f"{counted(done.waiting)} wait in the active file: a run after it is rolled (at 1 GiB, "
            "unless its writer rolls earlier) adds them, and --include-active adds them now"
        )
    if done.gaps:
        names = ", ".join(done.gaps[:5])
        say(f"skipped {counted(len(done.gaps), 'file')} archived before: {names}")
