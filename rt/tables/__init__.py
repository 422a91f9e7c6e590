"""Tables: exports a log to a Parquet dataset or an Iceberg table, each message exactly once.

It needs no Spark. `rt.spark` reads these tables back, and the command line writes them.
"""
