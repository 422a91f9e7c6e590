"""Connections between nodes, and what nodes say of themselves.

Imports `raft`; imported by the member and by nodes.
"""
