"""Spark: logs as DataFrames, and DataFrames as messages.

    import rt.spark
    rt.spark.register(spark)
    spark.read.format("rt").load("/data/flights/out").groupBy("session").count().show()

Spark is imported only where it is needed, so `gaps` and `to_parquet` work without it.
"""

from typing import TYPE_CHECKING

from rt.position import Position
from rt.spark.launch import register, session, ship
from rt.spark.loads import read
from rt.spark.reading.plan import gaps

if TYPE_CHECKING:
    from rt.tables.export import Exported

__all__ = ["gaps", "read", "register", "session", "ship", "to_parquet"]


def to_parquet(
    path: str,
    out: str,
    *,
    partition: str = "",
    include_active: bool = False,
    allow_gaps: bool = False,
    start: str | int = 0,
    columns: str = "",
) -> "Exported":
    """Bring a Parquet dataset up to date with a log; needs pyarrow, not Spark.

    Args:
        path: the log, or its URI.
        out: a local directory.
        partition: `none`, `day`, `month`, `stream` or `session`. "" keeps the dataset's own; a new
            dataset then has `day`, or `none` if the log is a session's.
        include_active: whether to export the active file too, as far as it is written.
        allow_gaps: whether to skip files that were archived before they were exported.
        start: messages before this position are not exported.
        columns: JSON fields of the payloads that become columns: `carrier string, delay double`.

    Raises:
        RtError: as `rt.tables.export.to_parquet`.
    """
    from rt.tables import export, payloads  # noqa: PLC0415 - need pyarrow

    begin = Position.parse(start) if isinstance(start, str) else Position(start)
    settings = export.ExportSettings(
        partition, include_active, allow_gaps, begin, columns=payloads.parse_columns(columns)
    )
    return export.to_parquet(path, out, settings)
