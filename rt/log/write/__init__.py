"""Appending to a log: its one writer, its frames, its syncs and its limits.

Imports `files` and `notify`; imported by publishers, sinks and nodes.
"""
