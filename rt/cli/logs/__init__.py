"""The commands that work on a log directory on this machine.

Imports `common`; imported by `rt.cli.program` only, by name.
"""
