"""The commands that change how a cluster treats data: retention, sessions, cursors and groups.

Imports `common` and `data`; imported by `rt.cli.program` only, by name.
"""
