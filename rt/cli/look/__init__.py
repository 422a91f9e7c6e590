"""The commands that show the state of a cluster, a machine or a message.

Imports `common`; imported by `rt.cli.program` only, by name.
"""
