"""The commands by which operators decide: retention, sessions, cursors and groups.

Imports `common`; imported by `rt.cli.program` only, by name.
"""
