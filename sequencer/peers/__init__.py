"""Connections between nodes, and the messages in which nodes report about themselves.

Imports `raft`; imported by the member and by nodes.
"""
