"""Limits on what the holders of one certificate name may use.

Imports `wire`; imported by `serve` and nodes.
"""
