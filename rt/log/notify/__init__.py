"""Notifies a log's readers and its publisher of changes.

Imports `files`; any room of `rt.log` may import it.
"""
