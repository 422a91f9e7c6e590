"""The commands that make, run and change a cluster.

Imports `common`, `process` and `data`; imported by `rt.cli.program`, by name, and the demo.
"""
