"""Founding a cluster: its nodes' files, and the state that it may continue from.

Imports nothing of `rt.node`; imported by `admin`, `host`, clients and the edges.
"""
