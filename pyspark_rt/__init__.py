"""Spark imports every module called `pyspark_*` and takes its `DefaultSource`: this one is `rt`.

It must never raise: a module that does hides all the others from Spark.
"""

import contextlib

with contextlib.suppress(Exception):
    from pyspark import __version__

    from rt.spark.registration import is_supported

    if is_supported(__version__):
        from rt.spark.source import RtSource as DefaultSource
    else:
        from rt.spark.too_old import RefusingSource as DefaultSource

__all__ = ["DefaultSource"]
