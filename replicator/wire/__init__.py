"""The messages that two machines exchange, and the connection that carries them.

Imports nothing of `replicator`; any room may import it.
"""
