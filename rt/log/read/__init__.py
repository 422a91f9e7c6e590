"""Reads a log from any position while it grows, and reports parts that were archived.

Imports `files`; imported by every reader.
"""
