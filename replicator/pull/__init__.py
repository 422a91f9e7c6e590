"""Copies a merged log from a node, and serves the copy to others.

Imports `sink`, `serve` and `wire`; imported by nodes, clients and commands.
"""
