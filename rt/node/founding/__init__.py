"""Founding a cluster: its nodes' files, and the state that it may continue from.

Imports `settings`; imported by `host` and the edges.
"""
