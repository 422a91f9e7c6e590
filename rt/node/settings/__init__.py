"""How a node is configured, as dataclasses that a file, the environment or options fill.

Imports nothing of `rt.node`; any room may import it.
"""
