"""Spark takes one `DefaultSource` of a module `pyspark_*`: this one is `rt-history`.

It must never raise, just like `pyspark_rt`.
"""

import contextlib

with contextlib.suppress(Exception):
    from pyspark import __version__

    from rt.spark.registration import is_supported

    if is_supported(__version__):
        from rt.spark.history import RtHistory as DefaultSource

__all__ = ["DefaultSource"]
