"""History: `spark.read.format("rt-history")`, the manifest's record of every file of a log."""

from collections.abc import Iterator
from typing import Any

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from rt.errors import Misuse
from rt.position import Position
from rt.spark.reading.plan import LogView, open_log

SCHEMA = (
    "file string, state string, position bigint, end bigint, bytes bigint, messages bigint, "
    "first_number bigint, next_number bigint, first_time timestamp, last_time timestamp, "
    "rolled_at timestamp, archived_at timestamp, archive_reason string, archived_by bigint, "
    "sessions string, digest string"
)


class RtHistory(DataSource):
    """One row for each file of a log: rolled, archived, or active."""

    @classmethod
    def name(cls) -> str:
        """Return the name for `format()`."""
        return "rt-history"

    def schema(self) -> str:
        """Return the columns as DDL."""
        # independent of spark.sql.timestampType
        return SCHEMA.replace(" timestamp", " timestamp_ltz")

    def reader(self, schema: StructType) -> "RtHistoryReader":
        """Return the reader of a query; `Misuse` if no path was given."""
        path = self.options.get("path")
        if not path:
            raise Misuse("the rt-history source needs the directory of a log")
        return RtHistoryReader(path, schema)


class RtHistoryReader(DataSourceReader):
    """Reads the rows of one log from its manifest."""

    def __init__(self, path: str, schema: StructType) -> None:
        from pyspark.sql.pandas.types import to_arrow_schema  # noqa: PLC0415 - Spark's, and heavy

        self._path = path
        self._schema = to_arrow_schema(schema, timezone="UTC")

    def partitions(self) -> list[InputPartition]:
        """Return one task, which is enough for a manifest."""
        return [InputPartition(None)]

    def read(self, partition: InputPartition) -> Iterator[Any]:  # noqa: ARG002 - Spark's
        """Read the manifest; runs in a worker."""
        import pyarrow as pa  # noqa: PLC0415 - heavy, and only workers need it

        rows = file_rows(self._path)
        try:
            arrays = [pa.array([r[each.name] for r in rows], each.type) for each in self._schema]
        except KeyError as error:
            raise Misuse(f"there is no column {error}; there are {SCHEMA}") from None
        yield pa.RecordBatch.from_arrays(arrays, schema=self._schema)


def file_rows(path: str) -> list[dict[str, Any]]:
    """Return one row for each file of a log, oldest first; `Misuse` if there is no log."""
    with open_log(path, strict=False) as view:
        rolled = view.log.manifest.rolled
        rows = [_rolled_row(view, file) for file in view.log.manifest.order]
        actives = (each for each in view.files() if each[0] not in rolled)
        return rows + [{**_row(*each), "state": "active"} for each in actives]


def _rolled_row(view: LogView, file: Position) -> dict[str, Any]:
    line, archived = view.log.manifest.rolled[file], view.log.manifest.archived.get(file)
    return {
        **_row(file, line.end),
        "state": "rolled" if archived is None else "archived",
        "messages": line.messages,
        "first_number": line.first,
        "next_number": line.next,
        "first_time": line.first_time_ns // 1000,
        "last_time": line.last_time_ns // 1000,
        "rolled_at": line.at_ns // 1000,
        "archived_at": archived and archived.at_ns // 1000,
        "archive_reason": archived and archived.reason,
        "archived_by": (archived and archived.by) or None,
        "sessions": line.sessions or None,
        "digest": line.digest or None,
    }


def _row(file: Position, end: int) -> dict[str, Any]:
    empty = dict.fromkeys(each.split()[0] for each in SCHEMA.split(", "))
    place = {"file": file.file_name, "position": int(file), "end": int(file + end), "bytes": end}
    return {**empty, **place}
