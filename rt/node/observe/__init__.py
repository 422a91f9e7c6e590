"""A node as seen from outside, without waiting for its threads.

Imports any room but `host`; imported by `admin`, `host` and the edges.
"""
