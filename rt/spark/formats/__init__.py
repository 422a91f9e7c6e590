"""Formats: the classes that Spark calls, for the sources `rt` and `rt-history` and for the sink.

It imports `rt.spark.reading`; only the top level of `rt.spark` and `pyspark_rt*` import it.
"""
