"""The commands that make, run and change a cluster.

Imports `common` and `process`; imported by `rt.cli.program` only, by name.
"""
