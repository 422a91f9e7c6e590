"""Tables: exports a log to a Parquet dataset or an Iceberg table, each message exactly once.

It needs no Spark and imports `rt.spark.reading`; the top level of `rt.spark` and the command line
import it.
"""
