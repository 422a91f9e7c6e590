"""The commands that show the state of a cluster, a machine or a message.

Imports `common`. Only `rt.cli.program` imports it, by name.
"""
