"""The replicator: copies the tail of one log directory to another machine, in both directions.

Imports `rt.net`, `rt.log` and what is below them, but neither of the other services. Nodes, clients
and the edges may import it.
"""
