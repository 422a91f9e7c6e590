"""How much the holders of one certificate may take.

Imports `wire`; imported by `serve` and nodes.
"""
