"""The commands that work on a log directory on this machine.

Imports `common` and `process`. Only `rt.cli.program` imports it, by name.
"""
