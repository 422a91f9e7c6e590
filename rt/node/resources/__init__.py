"""What a node has on its machine and its network: directory, disk space, other nodes' addresses.

Imports `settings`; any other room may import it.
"""
