"""Finding damaged files and replacing them by another node's copy.

Imports `pull` and `wire`; imported by nodes and commands.
"""
