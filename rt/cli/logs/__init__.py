"""The commands that work on a log directory on this machine.

Imports `common` and `process`; imported by `rt.cli.program` only, by name.
"""
