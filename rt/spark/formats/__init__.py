"""Formats: the classes that Spark calls: the sources `rt` and `rt-history`, the streams, the sink.

It imports `rt.spark.reading`; only the top level of `rt.spark` and `pyspark_rt*` import it.
"""
