"""A node: one process that serves, sequences and retains a stream.

Its rooms import the three services and compose them; clients, sites and commands may import it.
"""
