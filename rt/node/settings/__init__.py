"""A node's configuration, as dataclasses filled from a file, the environment or options.

Imports nothing of `rt.node`; any room may import it.
"""
