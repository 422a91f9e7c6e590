"""The commands that change how a cluster treats data: retention, sessions, cursors and groups.

Imports `common` and `data`. Only `rt.cli.program` imports it, by name.
"""
