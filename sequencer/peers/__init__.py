"""Connections between nodes, and the messages in which nodes report about themselves.

Imports `journal` and `raft`; imported by the member and by nodes.
"""
