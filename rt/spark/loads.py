"""Loads: `rt.spark.read`, which builds the options of a load step by step."""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from rt.errors import Misuse
from rt.log.read.start import Start
from rt.position import Position
from rt.spark.launch import register
from rt.spark.reading.options import FAILFAST, read_options, split_columns
from rt.spark.reading.plan import parsed_edge

if TYPE_CHECKING:
    from rt.spark.reading.summary import Summary

# columns returned in addition to the fields of JSON payloads
_BESIDE: Final = "session, position, time"
_NEEDED: Final = ("session", "position", "payload")


@dataclass(frozen=True)
class Loading:
    """A load that is built step by step: most methods return a copy with one more option.

    Attributes:
        path: the path of the log, or several paths; as for `load()`.
        options: the options of the load, as docs/SPARK.md lists them.
    """

    path: str | tuple[str, ...]
    options: Mapping[str, str] = field(default_factory=dict)

    def between(self, start: Start | str = "earliest", end: Start | str = "latest") -> "Loading":
        """Limit the load to a part of the log; unlike `where`, this avoids reading the rest.

        Args:
            start: where to begin: a position (`Position`, "0.0.4096"), a merge time (in a session:
                a publish time; an aware `datetime`, ISO 8601), `last:100`, `sequence:41` if one
                session was chosen before, or `earliest`.
            end: where to stop, exclusive: `latest`, or one of the forms of `start`.

        Raises:
            Misuse: an argument has none of these forms.
        """
        return self.option(
            **self._edge("starting", start, "earliest"), **self._edge("ending", end, "latest")
        )

    def sessions(self, *names: str) -> "Loading":
        """Read only these sessions: names, or globs."""
        return self.option(sessions=",".join(names))

    def streams(self, *names: str) -> "Loading":
        """Read only the logs of these streams: names, or globs."""
        return self.option(streams=",".join(names))

    def schema(self, columns: str) -> "Loading":
        """Choose the columns, such as `"session, payload_size"`, with or without their types."""
        return self.option(columns=columns)

    def option(self, **options: object) -> "Loading":
        """Set options of the load by their names, as docs/SPARK.md lists them."""
        return replace(self, options={**self.options, **{k: str(v) for k, v in options.items()}})

    def load(self, spark: Any = None) -> Any:
        """Return the load as a DataFrame; later appends to the log do not change what it reads.

        Args:
            spark: a `SparkSession`; the active one by default.

        Raises:
            Misuse: there is no active session, or PySpark is too old.
        """
        spark = spark or _active()
        register(spark)
        reader = spark.read.format("rt").options(**self.options)
        return reader.load(self.path if isinstance(self.path, str) else list(self.path))

    def json(self, schema: Any, *, mode: str = FAILFAST, spark: Any = None) -> Any:
        """Return a DataFrame with the fields of JSON payloads, parsed by Spark's `from_json`.

        The DataFrame also has the columns that `schema()` chose, or session, position and time.

        Args:
            schema: the schema of the fields, in Spark's DDL or as a `StructType`.
            mode: what happens to a malformed payload. `FAILFAST`: a query that uses a field fails,
                and the error has the message's session and position. `PERMISSIVE`: the payload's
                text is in the column `_corrupt_record`. `DROPMALFORMED`: there is no row for it.
            spark: a `SparkSession`; the active one by default.

        Raises:
            Misuse: as for `load`, or a field has the name of one of the log's columns.
        """
        from rt.spark.formats.json_payloads import json_frame  # noqa: PLC0415 - needs Spark

        beside = [e.split()[0] for e in split_columns(self.options.get("columns", _BESIDE))]
        needed = [each for each in _NEEDED if each not in {name.lower() for name in beside}]
        frame = self.schema(",".join([*beside, *needed])).load(spark)
        return json_frame(frame, schema, mode, beside)

    def table(self, table: str, *, catalog: Any = None, spark: Any = None) -> Any:
        """Return a DataFrame with the rows of an exported table, and of the log after its position.

        No message is missing or duplicated, even while `rt export --follow` writes the table. Later
        writes to the table and the log do not change what the DataFrame reads.

        Args:
            table: directory of a Parquet dataset, or the name of an Iceberg table.
            catalog: the Iceberg catalog: a warehouse directory, or a pyiceberg catalog.
            spark: a `SparkSession`; the active one by default.

        Raises:
            Misuse: the load selects messages, or the table belongs to another log.
            GapError: messages after the table's position were archived.
        """
        from rt.spark.reading.log_paths import log_paths  # noqa: PLC0415 - few need it
        from rt.spark.table import table_frame  # noqa: PLC0415 - optional, and heavy

        spark = spark or _active()
        register(spark)
        if isinstance(catalog, str):
            from rt.tables.iceberg import local_catalog  # noqa: PLC0415 - optional

            catalog = local_catalog(catalog)
        paths = log_paths(self._given_paths())
        if len(paths) > 1:
            raise Misuse(f"a table is of one log, and there are {len(paths)}")
        return table_frame(paths[0], self.options, table, catalog, spark)

    def summary(self) -> "Summary":
        """Count the messages and find the first and the last, without Spark; reads headers only.

        Raises:
            Misuse: the load has several logs, or selects keys.
            GapError: part of the load was archived.
            CorruptLog: a header is damaged.
        """
        from rt.spark.reading.summary import summarize  # noqa: PLC0415 - few need it

        return summarize(read_options({**self.options, "paths": json.dumps(self._given_paths())}))

    def _edge(self, name: str, given: Start | str, default: str) -> dict[str, object]:
        options = self.options
        sessions = [options["sessions"]] if "sessions" in options else None
        place, time_ns = parsed_edge(
            self._given_paths(), given, options.get("copies", ""), sessions
        )
        if time_ns is not None:
            return {f"{name}Timestamp": time_ns}
        if place == default:
            return {}
        if not isinstance(place, Position):
            raise Misuse(f"{place} would read nothing; a load goes from earliest to latest")
        return {f"{name}Position": place}

    def _given_paths(self) -> tuple[str, ...]:
        return (self.path,) if isinstance(self.path, str) else self.path


def read(path: str | os.PathLike[str] | list[str] | tuple[str, ...]) -> Loading:
    """Begin a load of the log at `path`, or of several.

    Args:
        path: log directories, globs, parent directories or URIs, as for `load()`.

    Examples:
        >>> import tempfile
        >>> from rt import Publisher
        >>> import rt.spark
        >>> root = tempfile.mkdtemp()
        >>> with Publisher(root, stream="flights", session="jfk") as publisher:
        ...     _ = publisher.publish_many([b"AA1", b"B6 2", b"DL 3"])
        >>> rt.spark.read(f"{root}/flights/jfk").between("last:2").summary().messages
        2
    """
    if isinstance(path, list | tuple):
        return Loading(tuple(path))
    return Loading(os.fspath(path))


def _active() -> Any:
    from pyspark.sql import SparkSession  # noqa: PLC0415 - optional, and heavy

    spark = SparkSession.getActiveSession()
    if spark is None:
        raise Misuse("there is no active Spark session; make one: rt.spark.session()")
    return spark
