"""How a log's readers and its publisher hear of what has happened to it.

Imports `files`; any room of `rt.log` may import it.
"""
