"""Spark takes one `DefaultSource` of a module `pyspark_*`: this one is `rt-history`.

It must never raise, just like `pyspark_rt`.
"""

import contextlib

with contextlib.suppress(Exception):
    from rt.spark.formats.history import RtHistory as DefaultSource

__all__ = ["DefaultSource"]
