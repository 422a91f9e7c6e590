"""Too old: what `format("rt")` is on a Spark that rt does not support."""

from typing import Any

from pyspark import __version__
from pyspark.sql.datasource import DataSource

from rt.spark.registration import check_version


class RefusingSource(DataSource):
    """Refuses every load and save, and says which Spark is needed."""

    def __init__(self, options: Any) -> None:
        super().__init__(options)
        check_version(__version__)

    @classmethod
    def name(cls) -> str:
        """The name for `format()`."""
        return "rt"
