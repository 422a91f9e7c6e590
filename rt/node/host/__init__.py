"""A node's process: its streams, its port, its directory, and how they are put together.

Imports any room of `rt.node`; imported by the edges only.
"""
