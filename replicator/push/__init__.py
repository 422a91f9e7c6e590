"""Ships the sessions of a machine to the nodes.

Imports `source` and `wire`; imported by nodes, clients and commands.
"""
