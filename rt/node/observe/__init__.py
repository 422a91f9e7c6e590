"""A node as seen from outside, without waiting for its threads.

Imports any room but `host` and `admin`; imported by `host`, clients and the edges.
"""
