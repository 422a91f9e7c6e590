"""The process of a node: its streams, its port, its directory, and what puts them together.

Imports any room of `rt.node`; imported by the edges only.
"""
