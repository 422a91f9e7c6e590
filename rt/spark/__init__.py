"""Spark: logs as DataFrames, and DataFrames as messages.

    import rt.spark
    rt.spark.register(spark)
    spark.read.format("rt").load("/data/flights/out").groupBy("session").count().show()

Nothing here imports Spark before it is needed, so that `gaps` and `to_parquet` work without it.
"""

from typing import Any

from rt.errors import Misuse
from rt.events import Gap

__all__ = ["gaps", "register"]


def register(spark: Any) -> None:
    """Let `spark` know the formats `rt` and `rt-history`.

    Not needed where `rt` is installed for the driver's Python: Spark then finds them itself.

    Args:
        spark: a `SparkSession`, of PySpark 4.2 or newer.

    Raises:
        Misuse: this PySpark is too old.
    """
    check_version(spark.version)
    from rt.spark.source import RtSource  # noqa: PLC0415 - needs Spark

    spark.dataSource.register(RtSource)


def check_version(version: str) -> None:
    """Refuse a Spark that takes swapped columns for right ones, `Misuse` saying so."""
    numbers = tuple(int(part) for part in version.split(".")[:2])
    if numbers < (4, 2):
        raise Misuse(
            f"this is Spark {version}; rt needs PySpark 4.2 or newer, since older ones do not "
            "check the columns a source returns: pip install 'pyspark>=4.2'"
        )


def gaps(path: str) -> list[Gap]:
    """Return what was archived of a log, or is missing: what `failOnDataLoss=false` passes over.

    Args:
        path: of the log directory, or its URI.
    """
    from rt.spark.plan import all_gaps  # noqa: PLC0415 - quick to import what is not needed

    return all_gaps(path)
