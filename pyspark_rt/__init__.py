"""Spark imports every module called `pyspark_*` and takes its `DefaultSource`: this one is `rt`.

It must never raise: a module that does hides all the others from Spark.
"""

import contextlib

with contextlib.suppress(Exception):
    from rt.spark.formats.batch import RtSource as DefaultSource

__all__ = ["DefaultSource"]
