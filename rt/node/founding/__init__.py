"""Making a cluster: the files of its nodes, and the state that a new one continues from.

Imports `settings`; imported by `host` and the edges.
"""
