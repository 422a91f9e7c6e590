"""Reading a log while it grows, from any place, past whatever was archived.

Imports `files`; imported by every reader.
"""
