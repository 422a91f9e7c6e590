"""A node's resources: its directory, disk space, and other nodes' addresses.

Imports `settings`; any other room may import it.
"""
