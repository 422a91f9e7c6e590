"""The commands that make, run and change a cluster.

Imports `common`, `process` and `data`. The demo imports it; `rt.cli.program` imports it by name.
"""
