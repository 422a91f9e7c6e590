"""The replicator: copies the tail of one log directory to another machine, in both directions.

Imports `rt.net`, `rt.log` and what is below them, neither other service; nodes, clients and the
edges may import it.
"""
