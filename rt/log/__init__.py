"""A log directory on disk: writing, reading, watching and following it.

Imports `rt.format`, `rt.config` and what is below them; everything above may import its rooms.
"""
