"""The commands that say how a cluster, a machine or a message is.

Imports `common`; imported by `rt.cli.program` only, by name.
"""
