"""Errors: shows Spark's users the errors of rt as one line, without a traceback."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from rt.errors import Misuse, RtError

SPARK_MIN: Final = (4, 2)


def check_version(version: str) -> None:
    """Raise `Misuse` for a Spark before 4.2, which does not check the columns a source returns."""
    if tuple(int(part) for part in version.split(".")[:2]) < SPARK_MIN:
        raise Misuse(
            f"this is Spark {version}; rt needs PySpark 4.2 or newer, since older ones do not "
            "check the columns a source returns: pip install 'pyspark>=4.2'"
        )


@contextmanager
def one_line_errors() -> Iterator[None]:
    """Make Spark report an `RtError` of the block as its message, without a Python traceback.

    It sets an environment variable in Spark's worker. The worker ends after it has reported the
    error, so the variable affects no other error.
    """
    try:
        yield
    except RtError:
        spec = sys.modules["__main__"].__spec__
        # set in a driver, it would be inherited by Spark
        if spec is not None and spec.name.startswith("pyspark."):
            os.environ["SPARK_HIDE_TRACEBACK"] = "1"
        raise
