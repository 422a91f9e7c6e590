"""Formats: what Spark calls: the sources `rt` and `rt-history`, the streams and the sink.

It imports `rt.spark.reading`; only the top level of `rt.spark` and `pyspark_rt*` import it.
"""
