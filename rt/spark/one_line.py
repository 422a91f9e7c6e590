"""OneLine: errors of rt reach a user of Spark as their message, without a Python traceback."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from rt.errors import RtError


@contextmanager
def one_line_errors() -> Iterator[None]:
    """Have Spark report an error of rt as its message, without a Python traceback.

    The worker that reports it ends afterwards, so the setting reaches no other error.
    """
    try:
        yield
    except RtError:
        spec = sys.modules["__main__"].__spec__
        if spec is not None and spec.name.startswith(
            "pyspark."
        ):  # a driver's Spark would inherit it
            os.environ["SPARK_HIDE_TRACEBACK"] = "1"
        raise
