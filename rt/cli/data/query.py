"""`rt query`: SQL over a log, by DuckDB."""

import errno
import json
import os
import sys
import tempfile
from base64 import b64encode
from collections.abc import Iterator
from contextlib import suppress
from decimal import Decimal
from typing import Any, Final

import click
from rich.console import Console
from rich.table import Table

from rt.arrow import LogTable
from rt.cli.common.completing import complete_session
from rt.cli.common.console import say
from rt.cli.common.options import click_options
from rt.cli.data.subscribe import ReadSettings
from rt.errors import Misuse
from rt.names import merged_directory
from rt.text import counted, json_text, printable

_ROWS: Final = 10_000  # of a batch
_COLUMNS: Final = (
    "position", "time", "time_ns", "merge_time", "session", "seq", "number", "key", "payload",
    "payload_size", "headers",
)  # fmt: skip
_SHOWN_MAX: Final = 1000  # rows of a table


@click.command()
@click_options(ReadSettings, "subscribe")
@click.argument("sql")
@click.argument("directory", metavar="[DIR]", required=False)
@click.option("--json", "output", flag_value="json", help="Print a JSON object for each row.")
@click.option("--csv", "output", flag_value="csv", help="Print CSV, with the columns' names first.")
@click.option(
    "--parquet", metavar="FILE", type=click.Path(dir_okay=False),
    help="Write the result to this file instead; it must not exist.",
)  # fmt: skip
@click.option(
    "--from", "start", metavar="START", default="earliest", show_default=True,
    help="Where to begin: earliest, a position (0.0.4096), last:N, a time (ISO 8601), or with one "
    "session sequence:N.",
)  # fmt: skip
@click.option(
    "--to", "end", metavar="END", default="latest", show_default=True,
    help="Where to stop, in the same forms; exclusive.",
)  # fmt: skip
@click.option(
    "--session", "sessions", metavar="GLOB", multiple=True, shell_complete=complete_session,
    help="Only messages of these sessions; repeat for more.",
)  # fmt: skip
@click.option(
    "--key", "keys", metavar="KEY", multiple=True,
    help="Only messages with this key; AA* is all keys that begin with AA. Repeat for more.",
)  # fmt: skip
@click.option(
    "--copies",
    metavar="DIR|URL",
    help="Read archived files from this store of `rt archive offload`.",
)  # fmt: skip
@click.option("--allow-gaps", is_flag=True, help="Leave out what is archived in this range.")
def query(
    settings: ReadSettings, *, sql: str, directory: str | None, output: str | None,
    parquet: str | None, start: str, end: str, sessions: tuple[str, ...], keys: tuple[str, ...],
    copies: str | None, allow_gaps: bool,
) -> None:  # fmt: skip
    """Query the table `log` by SQL: the log in DIR, or the copy of a stream.

    \b
    rt query "select session, count(*) from log group by 1" rt-data/flights/out
    rt query "select key, max(time) from log group by 1" --stream flights --from last:100000
    rt query "select decode(payload)->>'$.delay', seq from log" flights/out
    rt query "select count(*) from log" flights/out --from 0.0.0 --copies /mnt/backup/flights

    The columns of log are position, time, time_ns, merge_time, session, seq, number, key, payload,
    payload_size and headers; only those that the query needs are decoded. decode(payload) returns
    the payload as text, and decode(payload)->>'$.delay' a field of a JSON payload. --from, --to,
    --session and --key choose what is read, by the log's index; a condition in the query is checked
    for each message. The query reads the log as it is when the query begins, and no other file.

    The exit code is 1 if messages in the range are damaged, or were archived and --allow-gaps is
    not given; 2 if the query or an option is wrong.
    """  # noqa: D301 - click reads the backspace character
    place = directory or merged_directory(settings.root, settings.stream)
    try:
        table = LogTable(
            place, columns=_COLUMNS, start=start, end=end, sessions=sessions or None,
            keys=keys or None, on_gap="skip" if allow_gaps else "raise", copies=copies,
        )  # fmt: skip
        import duckdb  # noqa: PLC0415 - optional, and heavy
    except ImportError as error:
        words = str(error).partition(";")[0] if "needs" in str(error) else "duckdb is missing"
        raise Misuse(f"{words}: pip install '.[query]' in a clone of rt") from None
    with tempfile.TemporaryDirectory() as spilled, duckdb.connect() as database:
        database.execute("set temp_directory = ?", [spilled])
        database.execute("set enable_external_access = false")
        database.execute("set TimeZone = 'UTC'")
        try:
            _demand_one(database, sql)
            database.register("log", table.schema.empty_table())
            table.decoded = _needed(database, sql, table.schema.names)
            database.register("log", table)
            result: Any = database.sql(sql)
            if result is None:
                raise Misuse("the query has no result; use select")
            read = getattr(result, "to_arrow_reader", None) or result.fetch_arrow_reader
            _write(read(_ROWS), output, parquet)
        except duckdb.Error as error:
            if table.error is not None:
                raise table.error from None
            raise Misuse(f"the query failed: {_first(str(error))}") from None


def _demand_one(database: Any, sql: str) -> None:
    count = len(database.extract_statements(sql))
    if count != 1:
        raise Misuse(f"the query has {counted(count, 'statement')}; give one")


def _needed(database: Any, sql: str, names: list[str]) -> set[str]:
    """Return the columns of `names` that DuckDB reads for a query; all if the plan names none."""
    found: set[str] = set()
    left = json.loads(database.execute(f"explain (format json) {sql}").fetchall()[0][1])
    while left:
        node = left.pop()
        left += node["children"]
        if "ARROW_SCAN" in node["name"]:
            columns = node["extra_info"].get("Projections")
            found.update([columns] if isinstance(columns, str) else columns or names)
    return found & set(names) or set(names)


def _first(words: str) -> str:
    """Return the first paragraph of DuckDB's error message, on one line."""
    return " ".join(words.partition("\n\n")[0].split())


def _write(reader: Any, output: str | None, parquet: str | None) -> None:
    if parquet is not None:
        say(f"{parquet}: {_to_parquet(reader, parquet):,} rows")
    elif output is None:
        _show(reader)
    else:
        import csv  # noqa: PLC0415 - only here

        rows = csv.writer(sys.stdout, lineterminator="\n")
        if output == "csv":
            rows.writerow(reader.schema.names)
        for row in _rows(reader):
            if output == "csv":
                rows.writerow(["" if each is None else _text(each) for each in row])
            else:
                click.echo(json_text(dict(zip(reader.schema.names, map(_plain, row), strict=True))))


def _rows(reader: Any) -> Iterator[tuple[Any, ...]]:
    for batch in reader:
        yield from zip(*(each.to_pylist() for each in batch.columns), strict=True)


def _show(reader: Any) -> None:
    table, rest = Table(*map(printable, reader.schema.names)), 0
    for number, row in enumerate(_rows(reader)):
        if number < _SHOWN_MAX:
            table.add_row(*("" if each is None else printable(_text(each)) for each in row))
        else:
            rest += 1
    Console(markup=False, highlight=False).print(table)
    if rest:
        say(f"{rest:,} more rows are not shown; --csv, --json or --parquet has them all")


def _to_parquet(reader: Any, path: str) -> int:
    from pyarrow.parquet import ParquetWriter  # noqa: PLC0415 - optional

    directory, name = os.path.split(path)
    # a killed query leaves this draft; its name is unlike any that users choose
    count, draft = 0, os.path.join(directory, f".{name}.rt-part")
    if os.path.lexists(path):
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
    try:
        with open(draft, "wb") as file, ParquetWriter(file, reader.schema) as writer:
            for batch in reader:
                writer.write_batch(batch)
                count += batch.num_rows
        os.link(draft, path)  # unlike a rename, a link never replaces a file
    finally:
        with suppress(FileNotFoundError):
            os.unlink(draft)
    return count


def _text(value: Any) -> str:
    if isinstance(value, bytes):
        return value.decode(errors="backslashreplace")
    return str(value)


def _plain(value: Any) -> Any:
    """Return a value that JSON can hold; bytes that are not UTF-8 become base64."""
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return b64encode(value).decode()
    if isinstance(value, dict):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if isinstance(value, Decimal) and value == value.to_integral_value():
        return int(value)  # the sum of whole numbers
    return value if value is None or isinstance(value, str | int | float | bool) else str(value)
