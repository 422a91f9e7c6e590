"""Spark imports every module called `pyspark_*` and takes its `DefaultSource`: this one is `rt`.

It must never raise: one such module that does hides every other from Spark.
"""

import contextlib

with contextlib.suppress(Exception):
    from pyspark import __version__

    from rt.spark import check_version

    check_version(__version__)
    from rt.spark.source import RtSource as DefaultSource

__all__ = ["DefaultSource"]
